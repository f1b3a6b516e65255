"""Python values from what answers print, by Spark's type and without loss (pure).

int, float, Decimal, str, bytes, date, datetime (with a zone for TIMESTAMP, without for TIMESTAMP_NTZ), time, timedelta;
a struct is a dict, an array a list, a map a dict or, where the answer has pairs, a list of them. What Python's types
cannot hold (the year 10000, a nanosecond) stays the text that the answer has. A string that is not UTF-8 has surrogate
escapes, as Python's file names.
"""

from __future__ import annotations

import math
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from understudy.typed.intervals import CalendarInterval, YearMonthInterval
from understudy_shared.spark import temporal
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VariantType,
    VoidType,
    YearMonthIntervalType,
)

Convert = Callable[[Any], Any]

MISMATCHES: Final = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError)
"""The errors of conversions for a value that has not the form of its type."""

_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(spark_type: SparkType) -> Convert:
    """Return a function from a printed value to a Python value; nulls do not come to it."""
    match spark_type:
        case StructType(fields):
            names = unique_names(each.name for each in fields)
            inner = [(name, or_null(to_plain(each.type))) for name, each in zip(names, fields, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in inner}
        case ArrayType(element):
            return list_maker(or_null(to_plain(element)))
        case MapType(key, value_type):
            return _map_maker(to_plain(key), or_null(to_plain(value_type)))
        case IntegralType():
            return _integer
        case _:
            return _SCALARS[type(spark_type)]


def or_null(convert: Convert) -> Convert:
    """Return a conversion that keeps null."""
    return lambda value: None if value is None else convert(value)


def list_maker(of_element: Convert) -> Convert:
    """Return a conversion of arrays."""

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError("it is not an array")
        return [of_element(each) for each in value]

    return convert


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a printed map: an object, or pairs."""
    if isinstance(value, dict):
        return list(value.items())
    return [(key, of_key) for key, of_key in value]


def _map_maker(of_key: Convert, of_value: Convert) -> Convert:
    def convert(value: Any) -> Any:
        found = [(of_key(key), of_value(each)) for key, each in pairs_of(value)]
        return dict(found) if isinstance(value, dict) else found

    return convert


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("it is not true or false")
    return value


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is not str:  # `longs=string`
        raise TypeError("it is not an integer")
    return int(value)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    return _FLOATS[value] if isinstance(value, str) else float(value)


def _decimal(value: Any) -> Decimal:
    if type(value) is not str:
        raise TypeError("it is not a decimal in a text")
    return Decimal(value)


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raw: bytes = a2b_base64(value["base64"])
    return raw.decode("utf-8", "surrogateescape")


def _bytes(value: Any) -> bytes:
    return a2b_base64(value, strict_mode=True)


def _or_text(parse: Convert, text_check: Callable[[str], object]) -> Convert:
    """Return a conversion that keeps the text of what Python's type cannot hold, if Spark's can."""

    def convert(value: Any) -> Any:
        try:
            return parse(value)
        except ValueError:
            text_check(value)
            return value

    return convert


def _timestamp(value: str) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise TypeError("it has no offset from UTC")
    return found if found.tzinfo is UTC else found.astimezone(UTC)


def _timestamp_ntz(value: str) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is not None:
        raise TypeError("it has an offset from UTC")
    return found


def _time(value: str) -> time:
    if len(value) > len("00:00:00.000000"):
        raise ValueError("Python's times have no nanoseconds")
    return time.fromisoformat(value)


def _nothing(value: Any) -> None:
    raise ValueError("the column is always null")


_SCALARS: Final[Mapping[type[SparkType], Convert]] = {
    VoidType: _nothing,
    BooleanType: _boolean,
    FloatType: _float,
    DoubleType: _float,
    DecimalType: _decimal,
    StringType: _string,
    BinaryType: _bytes,
    VariantType: _string,
    DateType: _or_text(date.fromisoformat, temporal.parse_date),
    TimestampType: _or_text(_timestamp, temporal.parse_timestamp),
    TimestampNtzType: _or_text(_timestamp_ntz, temporal.parse_timestamp_ntz),
    TimeType: _or_text(_time, temporal.parse_time),
    DayTimeIntervalType: lambda value: timedelta(microseconds=temporal.parse_day_time(value)),
    YearMonthIntervalType: lambda value: YearMonthInterval(temporal.parse_year_month(value)),
    CalendarIntervalType: lambda value: CalendarInterval(*temporal.parse_calendar_interval(value)),
}
