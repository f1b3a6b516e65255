"""Reading on executors: rows are those of the plan, from spool or input, and poison is handled as the option says."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.scripted_input import ScriptedRecord, rows_of

from understudy_pipeline.aligned.compacted import CompactedNotes
from understudy_pipeline.aligned.dead_letters import DeadLetterError
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.poison import UndecodableError
from understudy_pipeline.aligned.range_rows import COALESCE_BYTES, ROWS
from understudy_pipeline.aligned.reading import (
    PlannedRange,
    ReadTask,
    _Readers,
    read_task,
)
from understudy_pipeline.aligned.rows import RowOptions, arrow_schema
from understudy_pipeline.aligned.spool import Spool
from understudy_pipeline.inputs.opening import OPENERS, Opener
from understudy_pipeline.inputs.protocol import Input, InputError, Range, RangeReader
from understudy_pipeline.inputs.records import NO_TIME_MS, Cursor, TopicPartition, partition_times_ms

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
    monkeypatch.setattr("understudy_pipeline.aligned.reading._READERS", _Readers())


def records(times_ms: Sequence[int | None], *, first: int = 0) -> pa.RecordBatch:
    return rows_of([ScriptedRecord(at, f"v{first + index}".encode()) for index, at in enumerate(times_ms)], first)


def planned(config: LogConfig, *, start: Cursor | None = None, end: int | None = None) -> PlannedRange:
    end = len(config.times_ms) if end is None else end
    return PlannedRange(Range(TP, start or Cursor(), Cursor(str(end - 1), end)), config, rank=1)


def rows(each: PlannedRange, options: RowOptions | None = None) -> list[dict[str, object]]:
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


@pytest.mark.parametrize("long_offsets", [False, True])
@pytest.mark.parametrize("include_headers", [False, True])
@pytest.mark.parametrize("include_stream_time", [False, True])
def test_every_batch_has_exactly_the_schema_that_spark_was_given(
    *, include_headers: bool, include_stream_time: bool, long_offsets: bool
) -> None:
    options = RowOptions(
        include_headers=include_headers, include_stream_time=include_stream_time, long_offsets=long_offsets
    )
    for batch in read_task(ReadTask((planned(LogConfig((1, 2))),), options)):
        assert batch.schema.equals(arrow_schema(options), check_metadata=True)
        assert batch.column("offset").to_pylist() == ([0, 1] if long_offsets else ["0", "1"])


def test_the_stream_time_of_a_batch_is_in_each_of_its_rows_and_null_where_there_is_none() -> None:
    options = RowOptions(include_stream_time=True)
    for stream_time_ms, expected in ((NO_TIME_MS, None), (1_500, 1_500)):
        task = ReadTask((planned(LogConfig((1, 2))),), options, stream_time_ms=stream_time_ms)
        found = [row["stream_time"] for batch in read_task(task) for row in batch.to_pylist()]
        assert [at and at.timestamp() * 1000 for at in found] == [expected] * 2


@pytest.mark.parametrize(
    ("kinds", "is_long"),
    [((), False), (("kafka", "kafka"), True), (("kafka", "redis"), False), (("files",), False)],
)
def test_offsets_are_numbers_where_all_topics_are_kafkas(kinds: tuple[str, ...], is_long: bool) -> None:
    options = AlignedOptions(inputs=(), topics=("a",) * len(kinds), kinds=kinds, include_headers=True)
    assert options.long_offsets is is_long
    assert RowOptions.of(options) == RowOptions(include_headers=True, long_offsets=is_long)


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
    assert [order["effective_ms"] for order in got] == list(accumulate(heads, max))  # type: ignore[index]


def test_rows_come_in_batches_of_ten_thousand() -> None:
    task = ReadTask((planned(LogConfig(tuple(range(2 * ROWS + 1)))),))
    assert [batch.num_rows for batch in read_task(task)] == [ROWS, ROWS, 1]


@given(st.lists(st.sampled_from([1, 2, 4_000, ROWS - 1, ROWS, ROWS + 1]), min_size=1, max_size=6))
def test_small_ranges_come_in_few_batches_and_in_their_order(lengths: list[int]) -> None:
    task = ReadTask(tuple(planned(LogConfig(tuple(range(length)))) for length in lengths))
    batches = list(read_task(task))
    ordinals = [ordinal for batch in batches for ordinal in batch.column("offset").cast(pa.int64()).to_pylist()]
    assert ordinals == [ordinal for length in lengths for ordinal in range(length)]
    assert max(batch.num_rows for batch in batches) <= ROWS
    assert all(batch.nbytes <= COALESCE_BYTES for batch in batches if batch.num_rows not in lengths)
    for batch, following in pairwise(batches):
        assert batch.num_rows + following.num_rows > ROWS or batch.nbytes + following.nbytes > COALESCE_BYTES


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


def test_a_reader_is_kept_for_later_batches_and_let_go_after_it_failed() -> None:
    config, away = LogConfig((1, 2, 3)), LogConfig(is_away=True)
    rows(planned(config, end=1))
    rows(planned(config, end=2))
    assert opened == [config]
    for _ in range(2):
        with pytest.raises(InputError):
            rows(planned(away, end=1))
    assert opened == [config, away, away]
    assert closed == [away, away]


@pytest.fixture
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_pipeline.aligned.reading._RETRY_PAUSES_S", (0.001, 0.001))


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


def test_a_folder_of_notes_that_cannot_be_made_or_is_gone_fails_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Path:
        raise PermissionError

    assert CompactedNotes(refuse).begin(1) is None
    each = replace(planned(LogConfig((1, 2))), records=5)
    assert [rows.num_rows for rows in read_task(ReadTask((each,), notes=str(tmp_path / "gone")))] == [2]
    assert compacted(caplog) == [("weather", 3, 3)]


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


def test_a_worker_keeps_a_bounded_number_of_readers() -> None:
    for number in range(40):
        rows(planned(LogConfig((number,))))
    assert len(opened) - len(closed) == 16


def test_poison_fails_the_batch_by_default_and_is_named() -> None:
    with pytest.raises(UndecodableError, match="topic weather, partition 3, offset 1"):
        rows(planned(LogConfig((5, None))))


def test_skipped_poison_leaves_the_others_as_they_are() -> None:
    config = LogConfig((None, 5, None, 3, None))
    got = rows(planned(config), RowOptions(undecodable="skip"))
    assert [(row["offset"], row["merge_order"]["effective_ms"]) for row in got] == [("1", 5), ("3", 5)]  # type: ignore[index]


def test_poison_that_is_kept_comes_without_a_timestamp_in_the_place_that_the_log_gives_it() -> None:
    got = rows(planned(LogConfig((None, 5, None, 7))), RowOptions(undecodable="keep"))
    got.sort(key=lambda row: tuple(row["merge_order"].values()))  # type: ignore[attr-defined]
    assert [(row["offset"], row["timestamp"] is None) for row in got] == [
        ("0", True),
        ("1", False),
        ("2", True),
        ("3", False),
    ]


def test_poison_that_is_given_its_partitions_time_has_it_as_its_timestamp_or_fails_where_there_is_none() -> None:
    own = RowOptions(undecodable="skip", topic_undecodable={"weather": "partition-time"})
    got = rows(planned(LogConfig((5, None, 7, 6, None))), own)
    assert [(row["timestamp"].timestamp(), row["merge_order"]["effective_ms"]) for row in got] == [  # type: ignore
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


def test_ranges_of_one_partition_are_set_aside_in_files_of_their_own(tmp_path: Path) -> None:
    config = LogConfig((None, None))
    options = RowOptions(undecodable="aside", undecodable_path=tmp_path)
    rows(planned(config, end=1), options)
    rows(planned(config, start=Cursor("0", 1)), options)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("topic", ["a/../../b", "a:b", ".", "é" * 200, "x" * 249])
def test_any_topic_makes_a_file_name_of_that_folder(topic: str, tmp_path: Path) -> None:
    options = aside_in(tmp_path / "aside")
    each = planned(LogConfig((None,)))
    span = each.span._replace(partition=TopicPartition(topic, 0))
    assert rows(replace(each, span=span), options) == []
    assert len(list((tmp_path / "aside").iterdir())) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_poison_that_cannot_be_set_aside_is_not_dropped(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeadLetterError, match="1 records"):
        rows(planned(LogConfig((None,))), RowOptions(undecodable="aside", undecodable_path=tmp_path / "file"))


def test_an_executor_that_does_not_share_the_folder_makes_none_of_its_own(tmp_path: Path) -> None:
    options = RowOptions(undecodable="aside", undecodable_path=tmp_path / "shared" / "aside")
    with pytest.raises(DeadLetterError, match=r"1 records.*No such file.*all machines share"):
        rows(planned(LogConfig((None,))), options)
    assert list(tmp_path.iterdir()) == []
