"""Names of types: each that is shown reads back, and what is no type is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.support.spark.values import types

from understudy_shared.base.errors import UnsupportedError
from understudy_shared.spark import types as t


@given(types(3))
def test_every_name_reads_back_as_its_type(spark_type: t.SparkType) -> None:
    assert t.parse_type_name(spark_type.name) == spark_type


@pytest.mark.parametrize(
    "spark_type",
    [
        t.StringType("UNICODE_CI"),
        t.TimeType(9),
        t.YearMonthIntervalType("year"),
        t.DayTimeIntervalType("hour to second"),
        t.StructType(),
        t.StructType((t.Field("a:b", t.LongType()), t.Field("c,d", t.ArrayType(t.LongType())))),
        t.StructType((t.Field("", t.LongType()), t.Field("a<b>", t.MapType(t.StringType(), t.StructType())))),
    ],
)
def test_unusual_names_read_back(spark_type: t.SparkType) -> None:
    assert t.parse_type_name(spark_type.name) == spark_type


@pytest.mark.parametrize(
    "text",
    [
        *("", "object", "array<long", "array<>", "map<long>", "struct<a>", "long>", "struct<a:long"),
        *("array<" * 5000, "struct<" + ":" * 50_000, "struct<a:" * 2000 + "long" + ">" * 2000),
        "struct<" + "a:" * 20 + "long>",
    ],
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="is not known"):
        t.parse_type_name(text)
