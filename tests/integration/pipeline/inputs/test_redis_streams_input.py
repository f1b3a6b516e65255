"""Redis Streams as an input, against a real server that is trimmed, emptied, frozen and killed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.sentinel_trio import sentinel_url, sentinels_of
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.protocol import DataLostError, Fetched, InputError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.redis_streams import RedisConfig, RedisInput
from understudy_aligned.open_inputs import open_reader
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import Planner
from understudy_shared.base.clock import SystemClock

TP = TopicPartition("weather", 0)
KEY = "weather:0"
START = Cursor()
SHORT_MS = 1000
PATIENT_MS = 10_000


@pytest.fixture
def reads(redis: RedisServer) -> Iterator[RedisInput]:
    reads = RedisInput(config(redis))
    yield reads
    reads.close()


def config(redis: RedisServer, *, fail: bool = True, partitions: int | None = 1, **rest: Any) -> RedisConfig:
    rest = {"request_timeout_ms": PATIENT_MS, **rest}
    return RedisConfig(redis.url, ("weather",), partitions, fail_on_data_loss=fail, **rest)


def add(redis: RedisServer, *ids: int | str, key: str = KEY) -> None:
    for each in ids:
        redis.command("XADD", key, f"{each}-0" if isinstance(each, int) else each, "key", "k", "value", f"v{each}")


def beginning(reads: RedisInput) -> Cursor:
    """Where a query begins that is new now."""
    return reads.beginnings([TP], timeout_ms=1000)[TP]


def started(reads: RedisInput, cursor: Cursor | None = None) -> RedisInput:
    reads.seek({TP: cursor or beginning(reads)}, timeout_ms=1000)
    return reads


def fetched(reads: RedisInput, pieces: Sequence[int] = (1000,)) -> list[dict[str, Any]]:
    """Everything that is there, in turns that ask for so many."""
    rows: list[dict[str, Any]] = []
    for turn in range(10_000):
        answer = reads.fetch({TP: pieces[turn % len(pieces)]}, timeout_ms=0)
        rows += rows_of(answer)
        if answer.lags.get(TP) == 0:
            return rows
    raise AssertionError("no end of it")


def rows_of(answer: Fetched) -> list[dict[str, Any]]:
    return [row for chunk in answer.chunks for row in chunk.rows.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[str]:
    return [row["offset"] for row in rows]


def behind(row: dict[str, Any]) -> Cursor:
    return Cursor(row["offset"], row["ordinal"] + 1)


def read_range(of: RedisConfig, start: Cursor, end: Cursor) -> list[dict[str, Any]]:
    reader = open_reader(of)
    try:
        return [row for batch in reader.read(Range(TP, start, end)) for row in batch.to_pylist()]
    finally:
        reader.close()


def warned(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.__dict__.get("action") == "data-lost" for record in caplog.records)


@settings(max_examples=25)
@given(gaps=st.lists(st.integers(1, 3), max_size=20), trimmed=st.integers(0, 5), data=st.data())
def test_pieces_and_ranges_give_the_rows_that_one_reading_gives(
    module_redis: RedisServer, gaps: list[int], trimmed: int, data: st.DataObject
) -> None:
    module_redis.flush()
    add(module_redis, *[sum(gaps[: at + 1]) for at in range(len(gaps))])
    module_redis.command("XTRIM", KEY, "MAXLEN", "=", max(len(gaps) - trimmed, 0))
    of = config(module_redis)
    every = fetched(started(RedisInput(of)))
    assert [row["ordinal"] for row in every] == list(range(min(trimmed, len(gaps)), len(gaps)))
    assert [row["timestamp_ms"] for row in every] == [int(row["offset"][:-2]) for row in every]
    assert fetched(started(RedisInput(of)), data.draw(st.lists(st.integers(1, 4), min_size=1))) == every
    if every:
        first, last = sorted(data.draw(st.tuples(*[st.integers(-1, len(every) - 1)] * 2)))
        start, end = (behind(every[at]) if at >= 0 else beginning(RedisInput(of)) for at in (first, last))
        assert fetched(started(RedisInput(of), start)) == every[first + 1 :]
        assert read_range(of, start, end) == every[first + 1 : last + 1]


def test_a_stream_that_does_not_exist_yet_is_empty_with_lag_0_and_then_read(
    redis: RedisServer, reads: RedisInput
) -> None:
    assert reads.ends([TP], timeout_ms=1000) == {TP: START}
    answer = started(reads).fetch({TP: 9}, timeout_ms=20)
    assert (answer.chunks, answer.lags) == ([], {TP: 0})
    add(redis, 1)
    assert offsets(fetched(reads)) == ["1-0"]


def test_the_lag_counts_what_lies_behind(redis: RedisServer, reads: RedisInput) -> None:
    add(redis, 1, 2, 3)
    started(reads)
    assert [reads.fetch({TP: 1}, timeout_ms=0).lags[TP] for _ in range(3)] == [2, 1, 0]
    add(redis, 4)
    assert reads.fetch({TP: 9}, timeout_ms=0).lags == {TP: 0}


def test_a_waiting_fetch_returns_when_a_record_comes(redis: RedisServer, reads: RedisInput) -> None:
    other = TopicPartition("weather", 1)
    add(redis, 1)
    fetched(started(reads))
    reads.seek({other: START}, timeout_ms=1000)
    answers: list[Fetched] = []
    waiting = Thread(target=lambda: answers.append(reads.fetch({TP: 9, other: 9}, timeout_ms=60_000)))
    waiting.start()
    wait_until(lambda: b"blocked_clients:1" in info(redis), what="a client that waits")
    add(redis, 2, key="weather:1")
    waiting.join(20)
    assert [(chunk.partition, chunk.rows.num_rows) for chunk in answers[0].chunks] == [(other, 1)]
    assert answers[0].lags == {TP: 0, other: 0}


def info(redis: RedisServer) -> bytes:
    reply = redis.command("INFO", "clients")
    assert isinstance(reply, dict | bytes)
    return reply if isinstance(reply, bytes) else "\n".join(f"{k}:{v}" for k, v in reply.items()).encode()


def harm(redis: RedisServer, kind: str) -> None:
    """Damage a stream of records 1 to 6 of which 1 to 3 were read."""
    match kind:
        case "trimmed":
            redis.command("XTRIM", KEY, "MINID", 5)
        case "trimmed-to-nothing":
            redis.command("XTRIM", KEY, "MAXLEN", 0)
        case "emptied-by-xdel":
            redis.command("XDEL", KEY, *[f"{each}-0" for each in range(1, 7)])
        case "deleted":
            redis.command("DEL", KEY)
        case "flushed":
            redis.flush()
        case "made-anew":
            redis.command("DEL", KEY)
            add(redis, 1, 2)
        case "made-anew-behind":
            redis.command("DEL", KEY)
            add(redis, 7, 8)


HARMS = {
    "trimmed": ["5-0", "6-0"],
    "trimmed-to-nothing": [],
    "emptied-by-xdel": [],
    "deleted": [],
    "flushed": [],
    "made-anew": ["1-0", "2-0"],
    "made-anew-behind": ["7-0", "8-0"],
}


@pytest.mark.parametrize("kind", HARMS)
@pytest.mark.parametrize("when", ["reading", "restarted"])
def test_entries_that_go_unread_are_a_loss_that_is_reported(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, kind: str, when: str
) -> None:
    add(redis, *range(1, 7))
    strict, lenient = (RedisInput(config(redis, fail=fail)) for fail in (True, False))
    for reads in (strict, lenient):
        rows = rows_of(started(reads).fetch({TP: 3}, timeout_ms=0))
    harm(redis, kind)
    with pytest.raises(DataLostError, match="'weather:0' behind 3-0 are lost") as caught:
        started(strict, behind(rows[-1])) if when == "restarted" else strict.fetch({TP: 9}, timeout_ms=0)
    assert caught.value.where == redis.url
    with caplog.at_level(logging.WARNING):
        if when == "restarted":
            started(lenient, behind(rows[-1]))
        left = fetched(lenient)
        assert offsets(left) == HARMS[kind]
        assert [row["ordinal"] for row in left] == [3, 4][: len(left)]
        assert fetched(lenient) == []
    assert warned(caplog) == lenient.losses == 1
    add(redis, 10)
    assert offsets(fetched(lenient)) == ["10-0"]
    strict.close()
    lenient.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_ends_by_itself_notices_a_stream_that_is_shorter_than_what_was_read_of_it(
    redis: RedisServer, *, fails: bool
) -> None:
    add(redis, 8, 9)
    of = AlignedOptions(inputs=(config(redis, fail=fails),), topics=("weather",), fail_on_data_loss=fails)
    read = {TP: Cursor("6-0", 1_000_000)}
    planner = Planner(of, SystemClock())
    planner.finish_at_current_ends(timeout_ms=PATIENT_MS)
    start = replace(planner.initial(timeout_ms=PATIENT_MS), cursors=read)
    add(redis, 10)
    try:
        if fails:
            with pytest.raises(DataLostError, match="the stream was created again"):
                planner.plan(start)
            return
        batch = planner.plan(start)
        assert batch is not None
        assert batch.end.cursors[TP] == Cursor("9-0", 1_000_002, 9)
        assert planner.plan(batch.end) is None
    finally:
        planner.stop()


@pytest.mark.parametrize("kind", ["trimmed", "end-deleted", "middle-deleted", "flushed"])
def test_a_range_is_read_as_it_was_planned_or_not_at_all(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    add(redis, *range(1, 7))
    with_reads = RedisInput(config(redis))
    rows = fetched(started(with_reads))
    with_reads.close()
    match kind:
        case "trimmed":
            redis.command("XTRIM", KEY, "MINID", 3)
        case "end-deleted":
            redis.command("XDEL", KEY, "6-0")
        case "middle-deleted":
            redis.command("XDEL", KEY, "4-0")
        case "flushed":
            redis.flush()
    with pytest.raises(DataLostError, match="up to 6-0 are lost"):
        read_range(config(redis), behind(rows[0]), behind(rows[5]))
    lenient = config(redis, fail=False)
    expected = {"trimmed": 4, "end-deleted": 4, "middle-deleted": 4, "flushed": 0}
    assert len(read_range(lenient, behind(rows[0]), behind(rows[5]))) == expected[kind]
    assert warned(caplog) == 1


def test_long_ranges_come_in_pages(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_aligned.inputs.redis_streams.FIRST_ENTRIES", 3)
    monkeypatch.setattr("understudy_aligned.inputs.redis_streams.MAX_BYTES", 50)
    add(redis, *range(1, 31))
    reads = RedisInput(config(redis))
    rows = fetched(started(reads))
    reads.close()
    reader = open_reader(config(redis))
    pages = list(reader.read(Range(TP, START, behind(rows[-2]))))
    reader.close()
    assert [row for page in pages for row in page.to_pylist()] == rows[:-1]
    assert len(pages) > 2


@pytest.fixture
def fragile() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_a_server_that_hangs_or_is_away_is_an_input_error_and_then_reading_goes_on(
    fragile: RedisServer, fault: str
) -> None:
    add(fragile, 1)
    of = config(fragile, request_timeout_ms=SHORT_MS, partitions=None)
    reads = RedisInput(of)
    cursor = behind(fetched(started(reads))[0])
    if fault == "frozen":
        fragile.pause()
    else:
        fragile.kill()
    said = f"did not answer within {SHORT_MS} ms" if fault == "frozen" else "cannot be reached"
    for call in (
        lambda: reads.fetch({TP: 9}, timeout_ms=SHORT_MS),
        lambda: reads.partitions(timeout_ms=SHORT_MS),
        lambda: reads.ends([TP], timeout_ms=SHORT_MS),
        lambda: reads.seek({TP: cursor}, timeout_ms=SHORT_MS),
        lambda: read_range(of, START, cursor),
    ):
        with pytest.raises(InputError, match=said):
            call()
    if fault == "frozen":
        fragile.resume()
        add(fragile, 2)
        assert offsets(fetched(reads)) == ["2-0"]
    else:
        fragile.start()
        with pytest.raises(DataLostError, match="the stream is gone"):
            reads.fetch({TP: 9}, timeout_ms=0)
    reads.close()


def test_a_refused_login_is_reported_without_the_password(redis: RedisServer) -> None:
    url = redis.url.replace("unix://", "unix://somebody:secret@")
    with pytest.raises(InputError, match="refused the login") as caught:
        RedisInput(RedisConfig(url, ("weather",))).partitions(timeout_ms=1000)
    assert "secret" not in str(caught.value)


@pytest.mark.full
def test_streams_are_read_from_the_primary_that_sentinels_name() -> None:
    with redis_server(port=0) as redis, sentinels_of(redis, count=1) as sentinels:
        add(redis, 1)
        of = RedisConfig(sentinel_url(sentinels), ("weather",), request_timeout_ms=PATIENT_MS)
        reads = RedisInput(of)
        assert reads.partitions(timeout_ms=1000) == {"weather": 1}
        rows = fetched(started(reads))
        assert offsets(rows) == ["1-0"]
        assert read_range(of, START, behind(rows[0])) == rows
        reads.close()
