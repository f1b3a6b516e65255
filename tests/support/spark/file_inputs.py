"""Folders of files for the input `files`, and an input that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

from understudy_pipeline.inputs.files import FilesConfig, FilesInput
from understudy_pipeline.inputs.opening import open_reader
from understudy_pipeline.inputs.protocol import Range
from understudy_pipeline.inputs.records import ROW_SCHEMA, Cursor, TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRule, TimestampRules

TP = TopicPartition("weather", 0)
BY_FIELD = TimestampRule("json", "t")
MANY = 1_000_000
START = Cursor()
STARTED: list[FilesInput] = []


def line(ms: int) -> bytes:
    return orjson.dumps({"t": ms})


def config(root: Path, *, rule: TimestampRule = BY_FIELD, fail_on_data_loss: bool = True) -> FilesConfig:
    return FilesConfig(root, ("weather",), TimestampRules(rule), fail_on_data_loss)


def write(root: Path, name: str, *values: bytes, end: bytes = b"\n", topic: str = "weather") -> Path:
    """A file as a careful writer writes it: complete when it appears."""
    folder = root / topic
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{Path(name).name}"
    hidden.write_bytes(b"\n".join(values) + (end if values else b""))
    return hidden.rename(folder / name)


def write_parquet(root: Path, name: str, columns: dict[str, Any], *, rows_of_group: int = 100) -> None:
    folder = root / "weather"
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), folder / name, row_group_size=rows_of_group)


def started(of: FilesConfig, cursor: Cursor = START) -> FilesInput:
    """Start a reader that is closed when the test ends."""
    reads = FilesInput(of)
    STARTED.append(reads)
    reads.seek({TP: cursor}, timeout_ms=1000)
    return reads


def fetched(reads: FilesInput, pieces: Sequence[int] = (MANY,)) -> list[dict[str, Any]]:
    """Everything that is there, in turns that ask for so many rows, round about."""
    rows: list[dict[str, Any]] = []
    for turn in range(100_000):
        answer = reads.fetch({TP: pieces[turn % len(pieces)]}, timeout_ms=0)
        assert sum(len(chunk.sizes) for chunk in answer.chunks) <= pieces[turn % len(pieces)]
        for chunk in answer.chunks:
            assert chunk.rows.schema == ROW_SCHEMA
            rows += chunk.rows.to_pylist()
        if answer.lags[TP] == 0:
            return rows
    raise AssertionError("no end of it")


def behind(row: dict[str, Any] | None) -> Cursor:
    return Cursor() if row is None else Cursor(row["offset"], row["ordinal"] + 1)


def read_range(of: FilesConfig, start: Cursor, end: Cursor) -> list[dict[str, Any]]:
    reader = open_reader(of)
    rows = [row for batch in reader.read(Range(TP, start, end)) for row in batch.to_pylist()]
    reader.close()
    return rows


def offsets(rows: list[dict[str, Any]]) -> list[str]:
    return [row["offset"] for row in rows]
