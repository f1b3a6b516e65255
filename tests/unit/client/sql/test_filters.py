"""Filters as DuckDB hands them over: read back as they were, narrowed to the least, with NaN the greatest number."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.typed.entries import entry_of, struct

from understudy.sql.dataset import Filter, read_filter
from understudy.sql.tables import AccessPath, Comparison, UnreadFilterError, narrowed, tables_of
from understudy_shared.spark import types as t

KEY = struct(k=t.StringType(), n=t.LongType())
VALUE = struct(
    d=t.DoubleType(), dec=t.DecimalType(10, 2), day=t.DateType(), ts=t.TimestampType(), raw=t.BinaryType(),
    low=t.StringType("UTF8_LCASE"), n=t.LongType(), w=struct(start=t.TimestampType()),
    both=t.StructType((t.Field("id", t.LongType()), t.Field("id", t.LongType()))),
)  # fmt: skip
(TABLE,) = tables_of([entry_of(VALUE, KEY)]).values()
UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    {
        "k": pa.string(),
        "key.n": pa.int64(),
        "d": pa.float64(),
        "dec": pa.decimal128(10, 2),
        "day": pa.date32(),
        "ts": UTC,
        "raw": pa.binary(),
        "low": pa.string(),
        "value.n": pa.int64(),
        "w": pa.struct([("start", UTC)]),
        "both": pa.struct([("id", pa.int64()), ("id_2", pa.int64())]),
        "took": pa.duration("us"),
    }
)
F = pc.field


def access(expression: pc.Expression) -> AccessPath:
    found = Filter(expression, SCHEMA)
    return narrowed(found.predicate, TABLE, found.names)


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        (F("d") <= 1.5, [("value.d", "<=", 1.5)]),
        (pa.scalar(3) < F("value.n"), [("value.n", ">", 3)]),
        (F("dec") != pa.scalar(Decimal("-12.30"), pa.decimal128(10, 2)), [("value.dec", "!=", "-12.30")]),
        (F("day") == pa.scalar(-1, pa.date32()), [("value.day", "=", "1969-12-31")]),
        (F("ts") >= pa.scalar(-1, UTC), [("value.ts", ">=", "1969-12-31T23:59:59.999999Z")]),
        (F("raw") == b"\x00a", [("value.raw", "=", "AGE=")]),
        (pc.field("w", "start") < pa.scalar(0, UTC), [("value.w.start", "<", "1970-01-01T00:00:00.000000Z")]),
        (pc.field("both", "id_2") == 5, [("value.both.id_2", "=", 5)]),
        (F("k").isin(["a", "b"]), [("key.k", "in", ["a", "b"])]),
        (
            pc.if_else(F("k").is_valid(), F("k").isin(["a", "b"]), pa.scalar(None, pa.bool_())),
            [("key.k", "in", ["a", "b"])],
        ),
        (F("d").is_valid() & (F("low") == "a"), [("value.d", "not_null")]),
        ((F("d") > 1) | (F("k") == "a"), []),
        (~(F("k") == "a"), []),
        (F("k").is_null(), []),
    ],
)
def test_what_is_understood_of_a_filter_narrows_the_scan(expression: pc.Expression, where: list[Any]) -> None:
    assert access(expression) == AccessPath(where=tuple(where))


def test_nan_is_the_greatest_number_and_null_matches_nothing() -> None:
    batch = pa.record_batch({"d": pa.array([None, math.nan, math.inf, 1.0, -0.0])})
    schema = pa.schema([("d", pa.float64())])
    for expression, expected in (
        (F("d") > 1.0, [math.nan, math.inf]),
        (F("d") >= math.inf, [math.nan, math.inf]),
        (~(F("d") > 1.0), [1.0, -0.0]),
        (F("d") < 1.0, [-0.0]),
        (F("d").isin([0.0, 1.0]), [1.0, -0.0]),
    ):
        assert repr(batch.filter(Filter(expression, schema).expression)["d"].to_pylist()) == repr(expected)
    for unread in (F("d") <= pa.scalar(math.nan), pc.starts_with(F("k"), "a")):
        with pytest.raises(UnreadFilterError):
            Filter(unread, SCHEMA)


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_damaged_filter_is_an_error_and_no_other_filter(cut: int) -> None:
    whole = bytes((F("k") == "a").to_substrait(pa.schema([("k", pa.string())])))
    assert read_filter(whole) == Comparison((0,), "=", "a")
    with pytest.raises(UnreadFilterError):
        read_filter(whole[: min(cut, len(whole) // 2)])
    with pytest.raises(UnreadFilterError):
        read_filter(b"\xff" * (cut + 1))
