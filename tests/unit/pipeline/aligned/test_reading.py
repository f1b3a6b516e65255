"""Reading on executors: rows are those of the plan, from spool or input, and poison is handled as the option says."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedRecord, ScriptedServer, rows_of

from understudy_aligned.inputs.protocol import Input, InputError, Range, RangeReader
from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition, partition_times_ms
from understudy_aligned.open_inputs import OPENERS, Opener
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import (
    TASK_BYTES,
    CompactedNotes,
    DeadLetterError,
    PlannedRange,
    ReadTask,
    _Readers,
    pack_tasks,
    planned_ranges,
    read_task,
)
from understudy_aligned.rows import (
    Piece,
    RangeRows,
    RecordSource,
    RowOptions,
    Slice,
    TimedRecords,
    Times,
    UndecodableError,
    joined_rows,
    output_rows,
    with_effective_times,
)
from understudy_aligned.spool import Spool

TP = TopicPartition("weather", 3)


@dataclass(frozen=True)
class LogConfig:
    """One partition's log, which can be read and cannot be fetched."""

    times_ms: tuple[int | None, ...] = ()
    is_away: bool = False
    failures: int = 0
    """How many readers fail before one works."""
    breaks_behind: int | None = None
    """Records that the first reader hands out before it fails."""
    loses: bool = False
    """Whether a reader goes on behind lost records."""
    topics: tuple[str, ...] = (TP.topic,)
    server: str = "log"

    kind: str = "log"


class LogReader:
    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self.losses = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        config = self._config
        if config.is_away or opened.count(config) <= config.failures:
            raise InputError("no answer", where="log")
        self.losses += config.loses
        found = records(config.times_ms[span.start.ordinal : span.end.ordinal], first=span.start.ordinal)
        if config.breaks_behind is not None and opened.count(config) == 1:
            yield found.slice(0, config.breaks_behind)
            raise InputError("no answer", where="log")
        yield found

    def close(self) -> None:
        closed.append(self._config)


opened: list[LogConfig] = []


def _open_input(config: LogConfig) -> Input:
    raise AssertionError("an executor reads ranges")


def _open_reader(config: LogConfig) -> RangeReader:
    opened.append(config)
    return LogReader(config)


OPENERS["log"] = lambda: Opener(_open_input, _open_reader)
closed: list[LogConfig] = []


@pytest.fixture(autouse=True)
def _new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    opened.clear()
    closed.clear()
    monkeypatch.setattr("understudy_aligned.reading._READERS", _Readers())


def records(times_ms: Sequence[int | None], *, first: int = 0) -> pa.RecordBatch:
    return rows_of([ScriptedRecord(at, f"v{first + index}".encode()) for index, at in enumerate(times_ms)], first)


def planned(config: LogConfig, *, start: Cursor | None = None) -> PlannedRange:
    end = len(config.times_ms)
    return PlannedRange(Range(TP, start or Cursor(), Cursor(str(end - 1), end)), config, rank=1)


def rows(each: PlannedRange, options: RowOptions | None = None) -> list[dict[str, Any]]:
    task = ReadTask((each,), options or RowOptions())
    return [row for batch in read_task(task) for row in batch.to_pylist()]


def test_a_row_has_the_record_and_its_place_in_the_merge_order() -> None:
    (row,) = rows(planned(LogConfig((1_700_000_000_123,))))
    assert str(row.pop("timestamp")) == "2023-11-14 22:13:20.123000+00:00"
    assert row == {
        "topic": "weather",
        "partition": 3,
        "offset": "0",
        "timestampType": None,
        "key": None,
        "value": b"v0",
        "merge_order": {"batch": 0, "effective_ms": 1_700_000_000_123, "topic_rank": 1, "partition": 3, "ordinal": 0},
    }


@given(
    st.lists(st.integers(-100, 100), min_size=1, max_size=30),
    st.integers(0, 29),
    st.none() | st.integers(1, 50),
)
def test_effective_times_begin_anew_with_a_batch_within_what_a_timestamp_may_jump(
    times: list[int], cut: int, jump: int | None
) -> None:
    cut %= len(times)
    config, options = LogConfig(tuple(times)), RowOptions(max_timestamp_jump_ms=jump)
    whole = partition_times_ms(pa.array(times, pa.int64()), time_ms=NO_TIME_MS, max_jump_ms=jump)
    start = Cursor(str(cut - 1), cut, int(whole[cut - 1])) if cut else Cursor()
    got = [row["merge_order"] for row in rows(planned(config, start=start), options)]
    heads = [min(time_ms, int(reached_ms)) for time_ms, reached_ms in zip(times[cut:], whole[cut:], strict=True)]
    assert [order["effective_ms"] for order in got] == list(accumulate(heads, max))


def test_with_the_spool_the_input_is_not_asked_and_without_it_the_rows_are_the_same(tmp_path: Path) -> None:
    config = LogConfig((5, 3, 9))
    spool = Spool(tmp_path)
    written = spool.write([[records((5, 3)), records((9,), first=2)]])
    assert written is not None
    each = replace(planned(config), spooled=(written.path, written.parts[0]))
    from_spool = rows(each)
    assert opened == []
    spool.close()
    assert rows(each) == from_spool
    assert opened == [config]


Placed = Callable[[Sequence[tuple[RangeRows, pa.RecordBatch]]], list[Piece]]
"""How the records of ranges lie in memory."""


def whole(pieces: Sequence[tuple[RangeRows, pa.RecordBatch]]) -> list[Piece]:
    return [(rows, Slice.whole(each)) for rows, each in pieces]


def side_by_side(pieces: Sequence[tuple[RangeRows, pa.RecordBatch]]) -> list[Piece]:
    """Put all but the first into one batch, as a spool does, with a row between the second and the third."""
    (first, *others), found = pieces, []
    (joined,) = (
        pa.Table.from_batches([each for _, each in [*others[:1], first, *others[1:]]]).combine_chunks().to_batches()
    )
    begin = 0
    for number, (rows, each) in enumerate(others):
        begin += first[1].num_rows if number == 1 else 0
        found.append((rows, Slice(joined, begin, each.num_rows)))
        begin += each.num_rows
    return [(first[0], Slice.whole(first[1])), *found]


@given(
    logs=st.lists(st.lists(st.lists(st.integers(-9, 9), min_size=1), min_size=1, max_size=3), min_size=1, max_size=4),
    reached=st.lists(st.integers(-9, 9), min_size=4, max_size=4),
    most=st.sampled_from([3, 10_000]),
    has_poison=st.booleans(),
    jump=st.none() | st.integers(1, 9),
    placed=st.sampled_from([whole, side_by_side]),
)
def test_rows_of_many_ranges_at_once_are_those_of_each_range(
    *, logs: list[list[list[int]]], reached: list[int], most: int, has_poison: bool, jump: int | None, placed: Placed
) -> None:
    options, pieces, expected = RowOptions(max_timestamp_jump_ms=jump, undecodable="skip"), [], []
    for number, (log, time_ms) in enumerate(zip(logs, reached, strict=False)):
        span = Range(TopicPartition(f"t{number % 2}", number), Cursor("", 0, time_ms), Cursor("", 0))
        rows, ordinal, times = RangeRows(span, options, rank=number % 2), 0, Times(time_ms)
        for times_ms in log:
            found = [None if has_poison and at % 4 == 0 else at for at in times_ms]
            pieces.append((rows, records(found, first=ordinal)))
            kept, effective_ms, _, times = with_effective_times(
                pieces[-1][1], times, max_jump_ms=jump, undecodable="skip"
            )
            if kept.num_rows:
                part = TimedRecords([RecordSource(span.partition, number % 2, kept.num_rows)], kept, effective_ms)
                expected += output_rows([part], options, batch=7).to_pylist()
            ordinal += len(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("understudy_aligned.rows.ROWS", most)
        made = joined_rows(placed(pieces), options, batch=7)
        assert [row for rows in made for row in rows.to_pylist()] == expected


@pytest.fixture
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_aligned.reading._RETRY_PAUSES_S", (0.001, 0.001))


@pytest.mark.usefixtures("_quick_retries")
@pytest.mark.parametrize("failures", [0, 1, 9])
def test_an_input_that_is_back_in_time_fails_no_batch(failures: int) -> None:
    config = LogConfig((1, 2, 3), failures=failures)
    task = ReadTask((planned(config),), poll_timeout_ms=60_000)
    assert [batch.num_rows for batch in read_task(task)] == [3]
    assert len(opened) == failures + 1


def compacted(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Topic, partition and count of each message about compacted records."""
    found = [vars(record) for record in caplog.records if vars(record).get("action") == "compacted"]
    return [(each["topic"], each["partition"], each["records"]) for each in found]


@pytest.mark.usefixtures("_quick_retries")
@pytest.mark.parametrize("breaks_behind", [None, 2])
def test_records_that_were_planned_and_are_not_there_are_counted_once_and_the_log_names_their_place(
    breaks_behind: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = CompactedNotes(lambda: tmp_path)
    each = replace(planned(LogConfig((1, 2, 3), breaks_behind=breaks_behind), start=Cursor("6", 0)), records=5)
    for batch, total in ((7, 2), (7, 2), (8, 4)):
        task = ReadTask((each,), poll_timeout_ms=60_000, batch=batch, notes=notes.begin(batch))
        assert sum(rows.num_rows for rows in read_task(task)) == 3
        assert notes.total() == total
    assert compacted(caplog) == [("weather", 3, 2)] * 3
    assert "weather-3: 2 of the 5 records that batch 7 had behind offset 6 up to 2 are gone" in caplog.text
    assert len(list(tmp_path.iterdir())) == 1, "notes on earlier batches are removed"


@pytest.mark.parametrize(
    ("config", "known"),
    [(LogConfig((1, 2)), 2), (LogConfig((1, 2)), None), (LogConfig((1, 2)), 1), (LogConfig((1, 2), loses=True), 5)],
    ids=["all are there", "unknown how many were planned", "more than planned", "some are lost"],
)
def test_only_what_surely_was_planned_and_is_not_lost_counts_as_compacted(
    config: LogConfig, known: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = CompactedNotes(lambda: tmp_path)
    list(read_task(ReadTask((replace(planned(config), records=known),), notes=notes.begin(0))))
    assert notes.total() == 0
    assert compacted(caplog) == []


@pytest.mark.usefixtures("_quick_retries")
def test_an_input_that_breaks_is_read_on_behind_its_last_record() -> None:
    config = LogConfig((1, 9, 3), breaks_behind=2)
    task = ReadTask((planned(config),), poll_timeout_ms=60_000)
    found = [row for batch in read_task(task) for row in batch.to_pylist()]
    assert [(row["offset"], row["merge_order"]["effective_ms"]) for row in found] == [("0", 1), ("1", 9), ("2", 9)]
    assert len(opened) == 2


def test_an_input_is_not_asked_again_when_the_time_is_over_and_the_error_says_which_time() -> None:
    with pytest.raises(InputError, match=r"which waited for 1 ms \(poll_timeout_ms\)"):
        list(read_task(ReadTask((planned(LogConfig((1,), failures=1)),), poll_timeout_ms=1)))
    assert len(opened) == 1
    assert closed == opened


def test_poison_that_is_kept_comes_without_a_timestamp_in_the_place_that_the_log_gives_it() -> None:
    got = rows(planned(LogConfig((None, 5, None, 7))), RowOptions(undecodable="keep"))
    got.sort(key=lambda row: tuple(row["merge_order"].values()))
    assert [(row["offset"], row["timestamp"] is None) for row in got] == [
        ("0", True),
        ("1", False),
        ("2", True),
        ("3", False),
    ]


def test_poison_that_is_given_its_partitions_time_has_it_as_its_timestamp_or_fails_where_there_is_none() -> None:
    own = RowOptions(undecodable="skip", topic_undecodable={"weather": "partition-time"})
    got = rows(planned(LogConfig((5, None, 7, 6, None))), own)
    assert [(row["timestamp"].timestamp(), row["merge_order"]["effective_ms"]) for row in got] == [
        (0.005, 5),
        (0.005, 5),
        (0.007, 7),
        (0.006, 7),
        (0.007, 7),
    ]
    assert len(rows(planned(LogConfig((None, 5)), start=Cursor("", 0, 4)), own)) == 2, "the offset has the time"
    with pytest.raises(UndecodableError, match="topic weather, partition 3, offset 0"):
        rows(planned(LogConfig((None, 5))), own)


def aside_in(folder: Path) -> RowOptions:
    """The option, and its folder as `load()` makes it."""
    folder.mkdir()
    return RowOptions(undecodable="aside", undecodable_path=folder)


def test_poison_is_set_aside_once_however_often_its_range_is_read(tmp_path: Path) -> None:
    config = LogConfig((None, 5, None))
    options = aside_in(tmp_path / "aside")
    for _ in range(2):
        assert [row["offset"] for row in rows(planned(config), options)] == ["1"]
    (letters,) = (tmp_path / "aside").iterdir()
    letters_read = [orjson.loads(line) for line in letters.read_bytes().splitlines()]
    assert [(each["topic"], each["partition"], each["offset"]) for each in letters_read] == [
        ("weather", 3, "0"),
        ("weather", 3, "2"),
    ]
    assert base64.b64decode(letters_read[0]["value"]) == b"v0"


def test_poison_of_a_topic_that_was_created_again_replaces_none_of_the_topic_before_it(tmp_path: Path) -> None:
    options = aside_in(tmp_path / "aside")
    for topic_id in ("first", "second", "second"):
        rows(replace(planned(LogConfig((None, 5))), topic_id=topic_id), options)
    assert len(list((tmp_path / "aside").iterdir())) == 2
    (named,) = planned_ranges(options_for(("a",)), spans(("a",), 1), topic_ids={"a": "first"})
    assert named.topic_id == "first"


def test_poison_that_cannot_be_set_aside_is_not_dropped(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeadLetterError, match="1 records"):
        rows(planned(LogConfig((None,))), RowOptions(undecodable="aside", undecodable_path=tmp_path / "file"))


def options_for(topics: tuple[str, ...], **changed: object) -> AlignedOptions:
    config = ScriptedServer(dict.fromkeys(topics, 100)).config
    return replace(AlignedOptions(inputs=(config,), topics=topics), **changed)  # type: ignore[arg-type]


def spans(topics: Sequence[str], partitions: int) -> list[Range]:
    return [Range(TopicPartition(t, p), Cursor(), Cursor("0", 1)) for t in topics for p in range(partitions)]


@given(
    sizes=st.lists(st.integers(0, 5 * TASK_BYTES), max_size=12),
    tasks=st.integers(1, 5),
    merge=st.sampled_from(["task", "global"]),
)
def test_every_range_is_read_once_by_no_more_tasks_than_allowed(sizes: list[int], tasks: int, merge: str) -> None:
    options = options_for(("a", "b"), reader_tasks=tasks, merge=merge)
    ranges = planned_ranges(options, spans(("a", "b"), 6)[: len(sizes)], sizes=sizes)
    packed = pack_tasks(ranges, options, batch=1)
    assert len(packed) <= tasks
    assert all(task.ranges for task in packed)
    assert sorted(each.span for task in packed for each in task.ranges) == sorted(each.span for each in ranges)
    sums = [sum(each.bytes for each in task.ranges) for task in packed]
    biggest = max((sum(s for s, r in zip(sizes, ranges, strict=True) if _together(r, of)) for of in ranges), default=0)
    assert not sums or max(sums) - min(sums) <= max(biggest, max(sums) if len(packed) == 1 else 0)


def _together(one: PlannedRange, other: PlannedRange) -> bool:
    return one.span.partition.partition == other.span.partition.partition


def test_what_is_merged_together_is_read_together() -> None:
    options = options_for(("a", "b"), reader_tasks=2)
    packed = pack_tasks(planned_ranges(options, spans(("a", "b"), 4), sizes=[TASK_BYTES] * 8), options, batch=1)
    assert len(packed) == 2
    for task in packed:
        places = [each.span.partition for each in task.ranges]
        assert all(TopicPartition(topic, place.partition) in places for place in places for topic in ("a", "b"))


@given(sizes=st.lists(st.integers(TASK_BYTES // 2, TASK_BYTES), min_size=48, max_size=99), tasks=st.integers(1, 3))
def test_neighbours_among_many_small_ranges_stay_together(sizes: list[int], tasks: int) -> None:
    options = options_for(("a",), reader_tasks=tasks)
    ranges = planned_ranges(options, spans(("a",), len(sizes)), sizes=sizes)
    packed = pack_tasks(ranges, options, batch=1)
    assert [each for task in packed for each in task.ranges] == ranges
    sums = [sum(each.bytes for each in task.ranges) for task in packed]
    assert len(sums) == tasks
    assert max(sums) - min(sums) <= 2 * max(sizes)


def test_a_range_that_was_planned_across_a_loss_and_ends_before_its_start_is_read_by_one_task() -> None:
    options = options_for(("a",), reader_tasks=2)
    backwards = Range(TopicPartition("a", 0), Cursor("9999999", 10_000_000), Cursor("4", 5))
    (task,) = pack_tasks(planned_ranges(options, [backwards]), options, batch=1)
    assert [each.span for each in task.ranges] == [backwards]


def test_a_small_batch_is_one_task() -> None:
    options = options_for(("a", "b"), reader_tasks=8)
    assert len(pack_tasks(planned_ranges(options, spans(("a", "b"), 4), sizes=[1000] * 8), options, batch=1)) == 1
    assert pack_tasks([], options, batch=1) == []
