"""Rows as frames: the Arrow types are those of an export, whoever makes the frame; a missing package is named."""

from __future__ import annotations

import sys
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
from understudy_node.stores.export_columns import export_columns
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


def test_pandas_and_polars_keep_integers_that_may_be_null() -> None:
    of_pandas, of_polars = frames.to_pandas(ENTRY, ROWS), frames.to_polars(ENTRY, ROWS)
    assert of_pandas["n"].dtype == pd.ArrowDtype(pa.int64())
    assert [of_pandas["n"][0], of_pandas["n"].isna()[1]] == [2**53 + 1, True]
    assert of_polars.schema["at"] == polars.Datetime("us", "UTC")
    assert of_polars["n"].to_list() == [2**53 + 1, None]


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
