"""The Arrow types of Spark's types, and values of which pyarrow makes arrays. pyarrow is imported by the first use."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from understudy_shared.spark import temporal
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
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
    unique_names,
)

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PRECISION: Final = 38


def arrow_type(spark_type: SparkType) -> pa.DataType:
    """Return the Arrow type of a column. Intervals of months are ISO 8601 texts, as answers have them."""
    import pyarrow as pa  # noqa: PLC0415

    match spark_type:
        case DecimalType(precision, scale):
            return pa.decimal128(min(precision, MAX_PRECISION), scale)
        case ArrayType(element):
            return pa.list_(arrow_type(element))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            names = unique_names(each.name for each in fields)
            return pa.struct([(name, arrow_type(each.type)) for name, each in zip(names, fields, strict=True)])
        case _:
            make = _scalars().get(type(spark_type))
            return pa.string() if make is None else make()


@cache
def _scalars() -> Mapping[type[SparkType], Callable[[], Any]]:
    import pyarrow as pa  # noqa: PLC0415

    return {
        VoidType: pa.null,
        BooleanType: pa.bool_,
        ByteType: pa.int8,
        ShortType: pa.int16,
        IntType: pa.int32,
        LongType: pa.int64,
        FloatType: pa.float32,
        DoubleType: pa.float64,
        BinaryType: pa.binary,
        DateType: pa.date32,
        TimestampType: lambda: pa.timestamp("us", tz="UTC"),
        TimestampNtzType: lambda: pa.timestamp("us"),
        TimeType: lambda: pa.time64("ns"),
        DayTimeIntervalType: lambda: pa.duration("us"),
    }


Convert = Callable[[Any], object]


def converter(spark_type: SparkType) -> Convert:
    """Return a function from a printed value to one of which pyarrow makes an array; nulls do not come to it."""
    # One case for each type: the rule of a type is read at one place.
    match spark_type:
        case StructType(fields):
            names = unique_names(each.name for each in fields)
            inner = [(name, _or_null(each.type)) for name, each in zip(names, fields, strict=True)]
            return lambda value: {name: convert(value.get(name)) for name, convert in inner}
        case ArrayType(element):
            of_element = _or_null(element)
            return lambda value: [of_element(each) for each in value]
        case MapType(key, value_type):
            of_key, of_value = _or_null(key), _or_null(value_type)
            return lambda value: [
                (of_key(name), of_value(each)) for name, each in (value.items() if isinstance(value, dict) else value)
            ]
        case IntegralType():
            return int  # with `longs=string` they are texts
        case BooleanType() | VoidType():
            return lambda value: value
        case FloatType() | DoubleType():
            return float
        case DecimalType():
            return Decimal
        case StringType():
            return _text
        case BinaryType():
            return b64decode
        case _:
            return _PARSERS.get(type(spark_type), _text)


def _or_null(spark_type: SparkType) -> Convert:
    convert = converter(spark_type)
    return lambda value: None if value is None else convert(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it is not UTF-8")
    return value


_PARSERS: Final[Mapping[type[SparkType], Convert]] = {
    DateType: temporal.parse_date,
    TimestampType: temporal.parse_timestamp,
    TimestampNtzType: temporal.parse_timestamp_ntz,
    TimeType: temporal.parse_time,
    DayTimeIntervalType: temporal.parse_day_time,
}
