"""Files as an input: every row is read once, in the order of names, in pieces of any size."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.spark.file_inputs import (
    STARTED,
    TP,
    behind,
    config,
    fetched,
    line,
    offsets,
    read_range,
    started,
    write,
    write_parquet,
)

from understudy_pipeline.inputs.files import FilesInput
from understudy_pipeline.inputs.opening import open_reader
from understudy_pipeline.inputs.protocol import Range, UnknownTopicError
from understudy_pipeline.inputs.records import Cursor, TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.base.errors import SettingsError


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().close()


lines = st.lists(
    st.one_of(st.integers(0, 999).map(line), st.sampled_from([b"", b"  ", b"no JSON", b'{"x": 1}'])), max_size=9
)


@given(st.lists(st.tuples(lines, st.sampled_from([b"", b"\n", b"\r\n"])), max_size=5), st.data())
def test_pieces_and_ranges_of_json_lines_give_the_rows_that_one_reading_gives(
    files: list[tuple[list[bytes], bytes]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        (root / "weather").mkdir()
        for number, (values, end) in enumerate(files):
            write(root, f"{number}.jsonl", *values, end=end)
        of = config(root)
        every = fetched(started(of))
        assert [row["value"] for row in every] == [each for values, _ in files for each in values if each.strip()]
        assert [row["ordinal"] for row in every] == list(range(len(every)))
        assert fetched(started(of), data.draw(st.lists(st.integers(1, 4), min_size=1))) == every
        if every:
            first, last = sorted(data.draw(st.tuples(*[st.integers(-1, len(every) - 1)] * 2)))
            start, end_at = (behind(every[at] if at >= 0 else None) for at in (first, last))
            assert read_range(of, start, end_at) == every[first + 1 : last + 1]
            assert fetched(started(of, start)) == every[first + 1 :], "and so does a restart"


@settings(max_examples=25)
@given(st.lists(st.integers(0, 25), max_size=3), st.integers(1, 7), st.data())
def test_pieces_and_ranges_of_parquet_give_the_rows_that_one_reading_gives(
    counts: list[int], rows_of_group: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        (root / "weather").mkdir()
        for number, count in enumerate(counts):
            values = [f"{number}-{row}" for row in range(count)]
            typed = {"value": pa.array(values, pa.string()), "timestamp": pa.array(range(count), pa.int64())}
            write_parquet(root, f"{number}.parquet", typed, rows_of_group=rows_of_group)
        of = config(root, rule=TimestampRule())
        every = fetched(started(of))
        assert [row["value"] for row in every] == [
            b"%d-%d" % (n, row) for n, c in enumerate(counts) for row in range(c)
        ]
        assert fetched(started(of), data.draw(st.lists(st.integers(1, 9), min_size=1))) == every
        if every:
            first, last = sorted(data.draw(st.tuples(*[st.integers(-1, len(every) - 1)] * 2)))
            start, end = (behind(every[at] if at >= 0 else None) for at in (first, last))
            assert read_range(of, start, end) == every[first + 1 : last + 1]
            assert fetched(started(of, start)) == every[first + 1 :]


def test_a_line_without_a_time_is_a_record_without_one_and_blank_lines_are_none(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(5), b"", b"no JSON", b'{"t": null}', line(7), end=b"")
    rows = fetched(started(config(tmp_path)))
    assert offsets(rows) == ["a.jsonl:0", "a.jsonl:2", "a.jsonl:3", "a.jsonl:4"]
    assert [row["timestamp_ms"] for row in rows] == [5, None, None, 7]
    assert [row["key"] for row in rows] == [None] * 4


def test_a_line_longer_than_a_block_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_pipeline.inputs.json_lines.BLOCK_BYTES", 7)
    values = [b'{"t": 1, "x": "%s"}' % (b"x" * size) for size in (0, 100, 3)]
    write(tmp_path, "a.jsonl", *values, end=b"\r\n")
    rows = fetched(started(config(tmp_path)), [1])
    assert [row["value"] for row in rows] == values
    assert read_range(config(tmp_path), behind(rows[0]), behind(rows[2])) == rows[1:]


def test_parquet_has_keys_and_times_of_its_own(tmp_path: Path) -> None:
    times = pa.array([1_500, None, 2**60], pa.timestamp("us", "UTC"))
    write_parquet(tmp_path, "a.parquet", {"key": ["k", None, ""], "value": [b"1", b"2", None], "timestamp": times})
    rows = fetched(started(config(tmp_path, rule=TimestampRule())))
    assert [(row["key"], row["value"], row["timestamp_ms"]) for row in rows] == [
        (b"k", b"1", 1),
        (None, b"2", None),
        (b"", None, None),  # a year that Spark does not have
    ]


def test_sizes_are_those_of_kip_770(tmp_path: Path) -> None:
    write_parquet(tmp_path, "a.parquet", {"key": ["ab", None], "value": [b"", None], "timestamp": [1, 2]})
    chunk = started(config(tmp_path, rule=TimestampRule())).fetch({TP: 9}, timeout_ms=0).chunks[0]
    assert chunk.sizes.tolist() == [8 + 8 + 4 + len("weather") + 2, 8 + 8 + 4 + len("weather")]


def test_names_that_begin_with_a_dot_or_an_underscore_are_not_there(tmp_path: Path) -> None:
    write(tmp_path, "b.jsonl", line(1))
    for name in (".a.jsonl", "_SUCCESS", "_a.csv"):
        (tmp_path / "weather" / name).write_bytes(line(0))
    (tmp_path / "weather" / "_temporary").mkdir()
    assert FilesInput(config(tmp_path)).partitions(timeout_ms=1000) == {"weather": 1}
    assert offsets(fetched(started(config(tmp_path)))) == ["b.jsonl:0"]


def test_folders_with_numbers_are_partitions_and_grow(tmp_path: Path) -> None:
    for partition in range(2):
        write(tmp_path, f"{partition}.jsonl", line(partition), topic=f"weather/{partition}")
    reads = FilesInput(config(tmp_path))
    assert reads.partitions(timeout_ms=1000) == {"weather": 2}
    partitions = [TopicPartition("weather", p) for p in range(2)]
    reads.seek(dict.fromkeys(partitions, Cursor()), timeout_ms=1000)
    answer = reads.fetch(dict.fromkeys(partitions, 9), timeout_ms=0)
    assert {chunk.partition: offsets(chunk.rows.to_pylist()) for chunk in answer.chunks} == {
        partitions[0]: ["0.jsonl:0"],
        partitions[1]: ["1.jsonl:0"],
    }
    reads.close()
    write(tmp_path, "2.jsonl", line(2), topic="weather/2")
    assert reads.partitions(timeout_ms=1000) == {"weather": 3}


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["0/a.jsonl", "2/a.jsonl"], "holds 0, 2"),
        (["0/a.jsonl", "a.jsonl"], "holds 0, a.jsonl"),
        (["x/a.jsonl"], "holds x"),
        (["a.csv"], "'a.csv' is not a file of records"),
        (["a.jsonl.gz"], "is not a file of records"),
    ],
    ids=["gap", "files-beside-partitions", "no-number", "other-kind", "gzip"],
)
def test_a_folder_that_cannot_be_meant_is_refused(tmp_path: Path, paths: list[str], said: str) -> None:
    for path in paths:
        (tmp_path / "weather" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "weather" / path).write_bytes(line(1))
    with pytest.raises(SettingsError, match=said):
        FilesInput(config(tmp_path)).partitions(timeout_ms=1000)


def test_a_topic_without_a_folder_is_unknown_and_those_that_are_there_are_reported(tmp_path: Path) -> None:
    (tmp_path / "wether").mkdir()
    with pytest.raises(UnknownTopicError, match="There are: wether"):
        FilesInput(config(tmp_path)).partitions(timeout_ms=1000)


def test_json_lines_need_the_field_of_their_time(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(1))
    with pytest.raises(SettingsError, match="json:<field>"):
        FilesInput(config(tmp_path, rule=TimestampRule())).partitions(timeout_ms=1000)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"timestamp": [1]}, "no column 'value'"),
        ({"value": [1], "timestamp": [1]}, "'value' is int64"),
        ({"value": ["x"], "key": [1.5], "timestamp": [1]}, "'key' is double"),
        ({"value": ["x"]}, "no column 'timestamp'"),
        ({"value": ["x"], "timestamp": ["2024"]}, "'timestamp' is string"),
    ],
    ids=["no-value", "value-type", "key-type", "no-time", "time-type"],
)
def test_a_parquet_schema_that_does_not_fit_is_reported_when_partitions_are_asked(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    write_parquet(tmp_path, "a.parquet", columns)
    with pytest.raises(SettingsError, match=said) as caught:
        FilesInput(config(tmp_path, rule=TimestampRule())).partitions(timeout_ms=1000)
    assert "a.parquet" in caught.value.where


def test_statement_52_what_is_wrong_with_a_file_is_reported_after_the_rows_before_it(tmp_path: Path) -> None:
    write_parquet(tmp_path, "a.parquet", {"value": ["x"], "timestamp": [1]})
    (tmp_path / "weather" / "b.parquet").write_bytes(b"PAR1 but nothing of it")
    reads = started(config(tmp_path, rule=TimestampRule()))
    answer = reads.fetch({TP: 9}, timeout_ms=0)
    assert offsets(answer.chunks[0].rows.to_pylist()) == ["a.parquet:0"]
    assert TP not in answer.lags, "what lies behind is not known"
    with pytest.raises(SettingsError, match=r"b\.parquet"):
        reads.fetch({TP: 9}, timeout_ms=0)


def test_the_lag_is_zero_when_every_file_was_read_to_its_end_and_only_then(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(1), line(2))
    write(tmp_path, "b.jsonl", line(3))
    reads = started(config(tmp_path))
    assert [reads.fetch({TP: 1}, timeout_ms=0).lags[TP] for _ in range(3)] == [2, 1, 0]
    write(tmp_path, "c.jsonl", line(4), line(5))
    assert reads.fetch({TP: 1}, timeout_ms=0).lags[TP] == 1


def test_from_now_on_is_behind_the_last_row(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line(1), line(2), b"", b" ")
    write(tmp_path, "b.jsonl")
    of = config(tmp_path)
    cursor = FilesInput(of).ends([TP], timeout_ms=1000)[TP]
    assert cursor.offset == "a.jsonl:1"
    write(tmp_path, "c.jsonl", line(3))
    assert offsets(fetched(started(of, cursor))) == ["c.jsonl:0"]
    (tmp_path / "empty" / "weather").mkdir(parents=True)
    assert FilesInput(config(tmp_path / "empty")).ends([TP], timeout_ms=1000)[TP] == Cursor()


def test_a_fetch_waits_for_a_file_no_longer_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "weather").mkdir()
    answer = started(config(tmp_path)).fetch({TP: 1}, timeout_ms=30)
    assert (answer.chunks, answer.lags) == ([], {TP: 0})


def test_ranges_that_follow_each_other_go_on_in_the_open_file(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", *[line(ms) for ms in range(6)])
    of = config(tmp_path)
    every = fetched(started(of))
    reader = open_reader(of)
    for first, last in ((0, 2), (2, 3), (1, 4), (4, 5)):
        span = Range(TP, behind(every[first]), behind(every[last]))
        assert [row for batch in reader.read(span) for row in batch.to_pylist()] == every[first + 1 : last + 1]
    reader.close()


def test_the_configuration_travels_to_executors(tmp_path: Path) -> None:
    of = config(tmp_path)
    assert pickle.loads(pickle.dumps(of)) == of
    assert hash(of) == hash(pickle.loads(pickle.dumps(of)))
