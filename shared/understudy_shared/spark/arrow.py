"""The Arrow types of Spark's types, and values of which pyarrow makes arrays. pyarrow is imported by the first use."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from understudy_shared.spark import temporal
from understudy_shared.spark import types as t

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PRECISION: Final = 38


def arrow_type(spark_type: t.SparkType) -> pa.DataType:
    """Return the Arrow type of a column. Intervals of months are ISO 8601 texts, as answers have them."""
    import pyarrow as pa  # noqa: PLC0415

    match spark_type:
        case t.DecimalType(precision, scale):
            return pa.decimal128(min(precision, MAX_PRECISION), scale)
        case t.ArrayType(element):
            return pa.list_(arrow_type(element))
        case t.MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case t.StructType(fields):
            names = t.unique_names(each.name for each in fields)
            return pa.struct([(name, arrow_type(each.type)) for name, each in zip(names, fields, strict=True)])
        case _:
            make = _scalars().get(type(spark_type))
            return pa.string() if make is None else make()


@cache
def _scalars() -> Mapping[type[t.SparkType], Callable[[], Any]]:
    import pyarrow as pa  # noqa: PLC0415

    return {
        t.VoidType: pa.null,
        t.BooleanType: pa.bool_,
        t.ByteType: pa.int8,
        t.ShortType: pa.int16,
        t.IntType: pa.int32,
        t.LongType: pa.int64,
        t.FloatType: pa.float32,
        t.DoubleType: pa.float64,
        t.BinaryType: pa.binary,
        t.DateType: pa.date32,
        t.TimestampType: lambda: pa.timestamp("us", tz="UTC"),
        t.TimestampNtzType: lambda: pa.timestamp("us"),
        t.TimeType: lambda: pa.time64("ns"),
        t.DayTimeIntervalType: lambda: pa.duration("us"),
    }


Convert = Callable[[Any], object]


def converter(spark_type: t.SparkType) -> Convert:
    """Return a function from a printed value to one of which pyarrow makes an array; nulls do not come to it."""
    # One case for each type: the rule of a type is read at one place.
    match spark_type:
        case t.StructType(fields):
            names = t.unique_names(each.name for each in fields)
            inner = [(name, _or_null(each.type)) for name, each in zip(names, fields, strict=True)]
            return lambda value: {name: convert(value.get(name)) for name, convert in inner}
        case t.ArrayType(element):
            of_element = _or_null(element)
            return lambda value: [of_element(each) for each in value]
        case t.MapType(key, value_type):
            of_key, of_value = _or_null(key), _or_null(value_type)
            return lambda value: [
                (of_key(name), of_value(each)) for name, each in (value.items() if isinstance(value, dict) else value)
            ]
        case t.IntegralType():
            return int  # with `longs=string` they are texts
        case t.BooleanType() | t.VoidType():
            return lambda value: value
        case t.FloatType() | t.DoubleType():
            return float
        case t.DecimalType():
            return Decimal
        case t.StringType():
            return _text
        case t.BinaryType():
            return b64decode
        case _:
            return _PARSERS.get(type(spark_type), _text)


def _or_null(spark_type: t.SparkType) -> Convert:
    convert = converter(spark_type)
    return lambda value: None if value is None else convert(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it is not UTF-8")
    return value


_PARSERS: Final[Mapping[type[t.SparkType], Convert]] = {
    t.DateType: temporal.parse_date,
    t.TimestampType: temporal.parse_timestamp,
    t.TimestampNtzType: temporal.parse_timestamp_ntz,
    t.TimeType: temporal.parse_time,
    t.DayTimeIntervalType: temporal.parse_day_time,
}
