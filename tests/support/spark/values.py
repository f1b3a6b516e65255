"""Generated schemas and rows of Spark types, for property tests and for comparison with Spark itself.

Values stay within what Spark can hold; strings include text that is not UTF-8 (as surrogate escapes).
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from functools import cache

from hypothesis import strategies as st

from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntegralType,
    IntType,
    LongType,
    MapType,
    ShortType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
)

SCALAR_TYPES: tuple[SparkType, ...] = (
    BooleanType(),
    ByteType(),
    ShortType(),
    IntType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(10, 2),
    DecimalType(18, 18),
    DecimalType(19, 0),
    DecimalType(38, 18),
    StringType(),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestampNtzType(),
    TimeType(6),
    YearMonthIntervalType(),
    DayTimeIntervalType(),
    CalendarIntervalType(),
    VoidType(),
)


def struct_of(*types: SparkType) -> StructType:
    """Columns c0, c1, ... of these types."""
    return StructType(tuple(Field(f"c{index}", spark_type) for index, spark_type in enumerate(types)))


@cache
def types(depth: int = 3) -> st.SearchStrategy[SparkType]:
    scalars = st.sampled_from(SCALAR_TYPES)
    if depth == 0:
        return scalars
    inner = types(depth - 1)
    keys = st.sampled_from([t for t in SCALAR_TYPES if not isinstance(t, VoidType | CalendarIntervalType)])
    return st.one_of(
        scalars,
        structs(inner),
        st.builds(ArrayType, inner),
        st.builds(MapType, st.one_of(keys, st.just(StringType())), inner),
    )


def structs(inner: st.SearchStrategy[SparkType], max_size: int = 4) -> st.SearchStrategy[StructType]:
    names = st.sampled_from(["a", "b", "sum", "sum", "sum_2", "a b", "é'\"\\{x}"])
    field = st.builds(Field, names, inner)
    return st.lists(field, max_size=max_size).map(lambda fields: StructType(tuple(fields)))


def schemas() -> st.SearchStrategy[StructType]:
    wide = st.lists(st.sampled_from(SCALAR_TYPES), min_size=60, max_size=70).map(lambda each: struct_of(*each))
    return st.one_of(structs(types(2), max_size=6), structs(types(2), max_size=6), wide)


def rows(struct_type: StructType) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(*(nullable(field.type) for field in struct_type.fields))


def schemas_and_rows() -> st.SearchStrategy[tuple[StructType, tuple[object, ...]]]:
    return schemas().flatmap(lambda schema: st.tuples(st.just(schema), rows(schema)))


@cache
def nullable(spark_type: SparkType) -> st.SearchStrategy[object]:
    return (
        st.none() if isinstance(spark_type, VoidType) else st.one_of(values(spark_type), values(spark_type), st.none())
    )


@cache
def values(spark_type: SparkType) -> st.SearchStrategy[object]:
    """Values that are not null."""
    match spark_type:
        case StructType():
            return rows(spark_type)
        case ArrayType(element):
            return st.lists(nullable(element), max_size=5)
        case MapType(key, value):
            return st.lists(st.tuples(values(key), nullable(value)), max_size=4)
        case IntegralType():
            return _integers(spark_type.BITS)
        case DecimalType(precision, scale):
            limit = 10**precision - 1
            return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}E{-scale}"))
        case _:
            return _SCALARS[type(spark_type)]


def same(left: object, right: object) -> bool:
    """Equal to the bit: -0.0 is not 0.0 here, and NaN is NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and left == right


def _integers(bits: int) -> st.SearchStrategy[int]:
    limit = 1 << bits - 1
    return st.one_of(st.integers(-limit, limit - 1), st.sampled_from([-limit, -1, 0, 1, limit - 1]))


def _canonical(value: float) -> float:
    """Java has one NaN."""
    return math.nan if math.isnan(value) else value


_text = st.one_of(
    st.text('aZ09 é日😀\0"\\%/', max_size=12),
    st.binary(max_size=9).map(lambda data: data.decode("utf-8", "surrogateescape")),
)
_SCALARS: dict[type[SparkType], st.SearchStrategy[object]] = {
    BooleanType: st.booleans(),
    FloatType: st.floats(width=32).map(_canonical),
    DoubleType: st.floats().map(_canonical),
    StringType: _text,
    BinaryType: st.binary(max_size=20),
    DateType: _integers(32),
    TimestampType: _integers(64),
    TimestampNtzType: _integers(64),
    TimeType: st.integers(0, 86_399_999_999_999),
    YearMonthIntervalType: _integers(32),
    DayTimeIntervalType: _integers(64),
    CalendarIntervalType: st.tuples(_integers(32), _integers(32), _integers(64)),
}
