"""Rows as frames: the Arrow types are those of an export, whoever makes the frame; a missing package is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import orjson
import pandas as pd  # type: ignore[import-untyped]
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.support.checkpoint.described import described_store, reader_of
from tests.support.spark.values import schemas
from tests.support.typed.entries import entry_of, struct

from understudy.typed import frames
from understudy.typed.columns import read_entry
from understudy_node.questions.export.parts import export_columns
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.spark import types as spark
from understudy_shared.spark.types import StructType

ENTRY = entry_of(struct(n=spark.LongType(), at=spark.TimestampType()), struct(k=spark.StringType()))
ROWS: list[dict[str, Any]] = [
    {"key": {"k": "a"}, "value": {"n": 2**53 + 1, "at": "2024-01-01T00:00:00.000000Z"}},
    {"key": {"k": "b"}, "value": {"n": None, "at": None}},
]


@settings(max_examples=20)
@given(schemas())
def test_the_columns_of_a_described_store_are_those_of_its_export(value: StructType) -> None:
    key = StructType((spark.Field("k", spark.LongType()),))
    store = reader_of(described_store(key, value)).store
    entry = orjson.loads(orjson.dumps(store.described()))
    assert read_entry(entry).exported().columns() == export_columns(store)


def test_rows_are_a_table_with_the_types_of_an_export() -> None:
    table = frames.to_arrow(ENTRY, ROWS)
    types = {"k": pa.string(), "n": pa.int64(), "at": pa.timestamp("us", tz="UTC")}
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == types
    assert table["n"].to_pylist() == [2**53 + 1, None]
    assert frames.to_arrow(ENTRY, []).schema == table.schema
    assert frames.to_dicts(ENTRY, ROWS)[1] == {"k": "b", "n": None, "at": None}


def test_a_frame_has_the_column_problem_where_a_row_has_one() -> None:
    rows: list[dict[str, Any]] = [*ROWS, {"key": {"k": "c"}, "problem": {"type": "store-error"}}]
    assert frames.to_arrow(ENTRY, rows)["problem"].to_pylist() == [None, None, '{"type":"store-error"}']
    assert [each["problem"] for each in frames.to_dicts(ENTRY, rows)] == [None, None, {"type": "store-error"}]


def test_pandas_and_polars_keep_integers_that_may_be_null() -> None:
    of_pandas, of_polars = frames.to_pandas(ENTRY, ROWS), frames.to_polars(ENTRY, ROWS)
    assert of_pandas["n"].dtype == pd.ArrowDtype(pa.int64())
    assert [of_pandas["n"][0], of_pandas["n"].isna()[1]] == [2**53 + 1, True]
    assert of_polars.schema["at"] == polars.Datetime("us", "UTC")
    assert of_polars["n"].to_list() == [2**53 + 1, None]


def test_a_stream_reads_rows_as_they_come() -> None:
    read = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read
        for at in range(2 * frames.BATCH_ROWS + 1):
            read += 1
            yield {"key": {"k": str(at)}, "value": {"n": at, "at": None}}

    reader = pa.RecordBatchReader.from_stream(frames.ArrowRows(ENTRY, rows()))
    assert reader.read_next_batch().num_rows == read == frames.BATCH_ROWS
    assert [batch.num_rows for batch in reader] == [frames.BATCH_ROWS, 1]


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (frames.to_arrow, "pyarrow", "arrow"),
        (frames.to_pandas, "pandas", "pandas"),
        (frames.to_polars, "polars", "polars"),
        (lambda *given: pa.table(frames.ArrowRows(*given)), "pyarrow", "arrow"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    make: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed.*pip install 'understudy-spark\[{extra}"):
        make(ENTRY, ROWS)
