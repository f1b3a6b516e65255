"""Entries of a stream as records, and how unread removals are found: against a stream that knows."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.inputs.records import ROW_SCHEMA
from understudy_aligned.inputs.redis_rows import (
    Entry,
    EntryFields,
    StreamInfo,
    StreamPosition,
    advance,
    columns_of,
    entry_id,
    entry_rows,
    find_loss,
    lag_behind,
    position_after_loss,
    stream_info,
    with_known_counts,
)
from understudy_aligned.inputs.redis_streams import RedisConfig
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_shared.base.errors import SettingsError

FIELDS = EntryFields(b"key", b"value", TimestampRule())


class Stream:
    """A stream that remembers what it ever had."""

    def __init__(self, last: int) -> None:
        self.ids: list[int] = []
        self.last, self.added = last, 0

    def add(self, count: int) -> None:
        self.ids += range(self.last + 1, self.last + 1 + count)
        self.last += count
        self.added += count

    @property
    def info(self) -> StreamInfo:
        return StreamInfo((self.last, 0), (self.ids[0], 0) if self.ids else None, len(self.ids), self.added)

    def behind(self, offset: str, count: int) -> list[Entry]:
        after = entry_id(offset)[0] if offset else -1
        entries: list[Entry] = [(b"%d-0" % each, []) for each in self.ids if each > after]
        return entries[:count]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("trim"), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(1, 5)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=30,
)


@given(st.integers(0, 3), steps)
def test_trimming_is_a_loss_just_when_it_takes_an_unread_entry(trimmed_before: int, ops: list[tuple[str, int]]) -> None:
    stream = Stream(0)
    stream.add(4)
    del stream.ids[:trimmed_before]
    place = StreamPosition("", trimmed_before, trimmed_before)
    unread = list(stream.ids)
    for op, count in ops:
        match op:
            case "add":
                stream.add(count)
                unread += stream.ids[-count:]
            case "trim":
                del stream.ids[:count]
            case "restart":
                place = StreamPosition(place.offset, place.ordinal, place.ordinal)
            case "read":
                is_lost = bool(set(unread) - set(stream.ids))
                assert (find_loss(place, stream.info) is not None) == is_lost
                if is_lost:
                    return
                entries = stream.behind(place.offset, count)
                place = advance(with_known_counts(place, stream.info), entries, stream.info)
                del unread[: len(entries)]


@pytest.mark.parametrize(
    ("removed", "has_deleted", "is_lost"),
    [(2, False, False), (3, False, True), (3, True, False)],
    ids=["trimmed before the query began", "trimmed since", "some by XDEL"],
)
def test_a_stream_that_was_trimmed_before_its_first_read_lost_what_was_there_since_the_query_began(
    removed: int, has_deleted: bool, is_lost: bool
) -> None:
    info = StreamInfo((9, 0), (removed + 1, 0), 9 - removed, 9, has_deleted)
    place = StreamPosition("", 2, 2)
    assert (find_loss(place, info) is not None) == is_lost
    assert find_loss(position_after_loss(place, info), info) is None
    assert with_known_counts(position_after_loss(place, info), info).ordinal == removed


@given(st.integers(1, 5), st.integers(0, 5), st.integers(0, 30), st.integers(0, 8))
def test_a_stream_that_was_made_anew_never_passes_for_the_old_one(
    read: int, unread: int, last: int, added: int
) -> None:
    old, new = Stream(10), Stream(last)
    old.add(read + unread)
    place = advance(with_known_counts(StreamPosition("", 0, 0), old.info), old.behind("", read), old.info)
    new.add(added)
    if new.info.first is None or new.info.first > (10 + read, 0) or new.last < 10 + read:
        is_same_end = new.last == 10 + read and added >= read
        assert (find_loss(place, new.info) is None) == is_same_end
    assert find_loss(place, None) == "the stream is gone"


def test_an_entry_that_its_owner_deleted_is_no_loss_and_the_count_is_right_again_at_the_end() -> None:
    stream = Stream(0)
    stream.add(6)
    place = advance(with_known_counts(StreamPosition("", 0, 0), stream.info), stream.behind("", 2), stream.info)
    stream.ids.remove(4)
    assert find_loss(place, stream.info) is None
    place = advance(place, stream.behind(place.offset, 9), stream.info)
    assert (place.ordinal, place.counted) == (5, 6)
    stream.add(1)
    del stream.ids[:-1]
    assert find_loss(place, stream.info) is None


@pytest.mark.parametrize(
    ("counted", "added", "lag"),
    [(5, 9, 4), (5, 5, 1), (None, 9, 1), (5, None, 1)],
    ids=["counted", "made anew", "unknown position", "a server before 7.0"],
)
def test_the_lag_counts_entries_where_they_are_counted_and_else_says_that_there_are_some(
    counted: int | None, added: int | None, lag: int
) -> None:
    assert lag_behind(StreamPosition("5-0", 5, counted), StreamInfo((9, 0), (1, 0), 9, added)) == lag


def test_a_server_that_does_not_count_is_believed_when_the_end_was_read_and_not_otherwise() -> None:
    place = StreamPosition("5-0", 5, 5)
    assert find_loss(place, StreamInfo((9, 0), (5, 0), 5, None)) is None
    assert find_loss(place, StreamInfo((5, 0), None, 0, None)) is None
    assert "a server before 7.0" in str(find_loss(place, StreamInfo((9, 0), (6, 0), 4, None)))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (None, StreamPosition("", 5, None)),
        (StreamInfo((3, 0), (1, 0), 3, 3), StreamPosition("", 5, None)),
        (StreamInfo((9, 0), (8, 0), 2, 9), StreamPosition("5-0", 5, 7)),
        (StreamInfo((9, 0), (4, 0), 2, 2), StreamPosition("5-0", 5, None)),
    ],
    ids=["gone", "smaller-ids", "trimmed", "counted-anew"],
)
def test_after_a_loss_reading_goes_on_at_what_is_left(info: StreamInfo | None, expected: StreamPosition) -> None:
    place = position_after_loss(StreamPosition("5-0", 5, 5), info)
    assert place == expected
    assert find_loss(place, info) is None, "and it is reported once"


def test_the_reply_of_a_server_is_read_by_its_names() -> None:
    old = [b"length", 1, b"last-generated-id", b"7-2", b"groups", 0, b"first-entry", [b"5-1", []], b"last-entry", None]
    assert stream_info(old) == StreamInfo((7, 2), (5, 1), 1, None)
    assert stream_info([*old, b"entries-added", 9]) == StreamInfo((7, 2), (5, 1), 1, 9)
    assert stream_info([*old, b"entries-added", 9]).removed == 8


names = st.sampled_from([b"key", b"value", b"x"])
pairs = st.lists(st.tuples(names, st.binary(max_size=3)), min_size=1, max_size=4)


@given(
    st.one_of(st.lists(pairs, max_size=6), st.tuples(pairs, st.integers(1, 4)).map(lambda each: [each[0]] * each[1]))
)
def test_the_fast_way_to_columns_finds_what_looking_at_each_entry_finds(
    entries: Sequence[list[tuple[bytes, bytes]]],
) -> None:
    flat = [[text for pair in entry for text in pair] for entry in entries]
    expected = [[next((value for name, value in entry if name == wanted), None) for entry in entries]
                for wanted in (b"key", b"value")]  # fmt: skip
    assert columns_of(flat, b"key", b"value") == expected


def test_the_time_is_the_first_half_of_the_id_unless_nobody_can_hold_it() -> None:
    entries: list[Entry] = [
        (b"0-1", []),
        (b"1700000000000-7", []),
        (b"253402300800000-0", []),
        (b"%d-0" % (2**64 - 1), []),
    ]
    rows = entry_rows(entries, FIELDS, ordinal=3)
    assert rows.schema == ROW_SCHEMA
    assert rows.column("timestamp_ms").to_pylist() == [0, 1_700_000_000_000, None, None]
    assert rows.column("ordinal").to_pylist() == [3, 4, 5, 6]
    assert rows.column("offset").to_pylist() == [entry[0].decode() for entry in entries]
    assert rows.column("value").to_pylist() == [None] * 4


def test_the_time_in_the_value_is_null_where_there_is_none() -> None:
    fields = EntryFields(b"k", b"v", TimestampRule("json", "t"))
    entries: list[Entry] = [(b"1-0", [b"v", b'{"t": 5}']), (b"2-0", [b"v", b"?"]), (b"3-0", [b"k", b"a"])]
    rows = entry_rows(entries, fields, ordinal=0)
    assert rows.column("timestamp_ms").equals(pa.array([5, None, None], pa.int64()))
    assert rows.column("key").to_pylist() == [None, None, b"a"]


def test_the_configuration_travels_to_executors_and_shows_no_secret() -> None:
    rules = TimestampRules(TimestampRule("json", "t"))
    of = RedisConfig("rediss://me:secret@host:1/0?ssl_password=secret", ("weather",), timestamp=rules)
    assert pickle.loads(pickle.dumps(of)) == of
    assert hash(of) == hash(pickle.loads(pickle.dumps(of)))
    assert "secret" not in f"{of!r} {of.server}"
    assert "host" in of.server


@pytest.mark.parametrize(
    ("url", "partitions"),
    [("redis+cluster://host", None), ("http://host", None), ("redis+sentinel://host", None), ("redis://host", 0)],
    ids=["cluster", "no-redis", "no-service", "no-partitions"],
)
def test_a_configuration_that_cannot_work_is_refused_at_once(url: str, partitions: int | None) -> None:
    with pytest.raises(SettingsError):
        RedisConfig(url, ("weather",), partitions)
