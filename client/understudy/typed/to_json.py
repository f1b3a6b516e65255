"""JSON of Python values, by Spark's type: what the servers' parser of keys takes (pure)."""

from __future__ import annotations

import math
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from understudy.typed.intervals import CalendarInterval, YearMonthInterval
from understudy.typed.models import columns_of
from understudy_shared.spark import temporal
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    Field,
    FloatType,
    IntegralType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
)

ToJson = Callable[[Any], Any]

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_json(spark_type: SparkType) -> ToJson:
    """Return a function from a Python value that is not null to JSON. It raises ValueError or TypeError for values that
    would lose something, and leaves what it does not know to the parser.
    """
    match spark_type:
        case StructType(fields):
            return _struct(fields)
        case ArrayType(element):
            of_element = _or_null(to_json(element))
            return lambda value: [of_element(each) for each in value] if isinstance(value, list | tuple) else value
        case MapType(key, value_type):
            return _map(to_json(key), _or_null(to_json(value_type)))
        case IntegralType():
            return _integer
        case _:
            return _SCALARS.get(type(spark_type), _other)


def _or_null(convert: ToJson) -> ToJson:
    return lambda value: None if value is None else convert(value)


def _struct(fields: Sequence[Field]) -> ToJson:
    names = unique_names(each.name for each in fields)
    converts = {name: _or_null(to_json(each.type)) for name, each in zip(names, fields, strict=True)}

    def convert(value: Any) -> Any:
        if isinstance(value, list | tuple):
            if len(value) != len(converts):
                raise ValueError(f"it has {len(value)} values for {len(converts)} fields")
            return [of(each) for of, each in zip(converts.values(), value, strict=True)]
        columns = columns_of(value)
        if columns is None:
            return value
        return {name: converts[name](each) if name in converts else each for name, each in columns.items()}

    return convert


def _map(of_key: ToJson, of_value: ToJson) -> ToJson:
    def convert(value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        return [[of_key(key), of_value(each)] for key, each in pairs]

    return convert


def _integer(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | str) or not hasattr(value, "__index__"):
        return value
    return value.__index__()


def _float(value: Any) -> Any:
    if isinstance(value, bool | str | int | Decimal) or not hasattr(value, "__float__"):
        return value
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _string(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        return value
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"base64": _base64(text.encode("utf-8", "surrogateescape"))}
    return text


def _base64(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return b2a_base64(value, newline=False).decode("ascii")
    return value


def _date(value: Any) -> Any:
    if isinstance(value, datetime):
        raise TypeError("it has a time of day: a date is wanted")
    return value.isoformat() if isinstance(value, date) else value


def _timestamp(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    if value.utcoffset() is None:
        raise ValueError("it has no time zone, which a TIMESTAMP needs: give it a tzinfo")
    return temporal.timestamp_text(_micros(value, _EPOCH))


def _timestamp_ntz(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, which a TIMESTAMP_NTZ has not: take its tzinfo away")
    return temporal.timestamp_ntz_text(_micros(value, _EPOCH.replace(tzinfo=None)))


def _micros(value: datetime, epoch: datetime) -> int:
    if getattr(value, "nanosecond", 0):  # of pandas
        raise ValueError("it has nanoseconds: Spark keeps microseconds")
    return (value - epoch) // _MICROSECOND


def _time(value: Any) -> Any:
    if not isinstance(value, time):
        return value
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, which a TIME has not")
    return value.isoformat(timespec="microseconds")


def _duration(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value
    if getattr(value, "nanoseconds", 0):  # of pandas
        raise ValueError("it has nanoseconds: Spark keeps microseconds")
    return temporal.day_time_text(value // _MICROSECOND)


def _other(value: Any) -> Any:
    """Return decimals and the intervals without a Python type as their texts, all else as it is."""
    return str(value) if isinstance(value, Decimal | YearMonthInterval | CalendarInterval) else value


_SCALARS: Final[Mapping[type[SparkType], ToJson]] = {
    FloatType: _float,
    DoubleType: _float,
    StringType: _string,
    BinaryType: _base64,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNtzType: _timestamp_ntz,
    TimeType: _time,
    DayTimeIntervalType: _duration,
}
