"""Keys in exact form, from Python values. The servers' parser checks them (pure)."""

from __future__ import annotations

import math
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from understudy.typed.columns import TypedColumn
from understudy.typed.models import columns_of
from understudy.typed.python_types import MISMATCHES, CalendarInterval, YearMonthInterval
from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark import temporal
from understudy_shared.spark import types as t
from understudy_shared.spark.json_values import compile_json_parser, example_of, shown

ToJson = Callable[[Any], Any]

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_json(spark_type: t.SparkType) -> ToJson:
    """Return a function from a non-null Python value to JSON. It raises ValueError or TypeError for a conversion that
    would lose something, and leaves unknown values to the parser.
    """
    match spark_type:
        case t.StructType(fields):
            return _struct(fields)
        case t.ArrayType(element):
            of_element = _or_null(to_json(element))
            return lambda value: [of_element(each) for each in value] if isinstance(value, list | tuple) else value
        case t.MapType(key, value_type):
            return _map(to_json(key), _or_null(to_json(value_type)))
        case t.IntegralType():
            return _integer
        case _:
            return _SCALARS.get(type(spark_type), _other)


def _or_null(convert: ToJson) -> ToJson:
    return lambda value: None if value is None else convert(value)


def _struct(fields: Sequence[t.Field]) -> ToJson:
    names = t.unique_names(each.name for each in fields)
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


_SCALARS: Final[Mapping[type[t.SparkType], ToJson]] = {
    t.FloatType: _float,
    t.DoubleType: _float,
    t.StringType: _string,
    t.BinaryType: _base64,
    t.DateType: _date,
    t.TimestampType: _timestamp,
    t.TimestampNtzType: _timestamp_ntz,
    t.TimeType: _time,
    t.DayTimeIntervalType: _duration,
}


class KeyWriter:
    """A writer of keys with these columns."""

    def __init__(self, columns: Sequence[TypedColumn]) -> None:
        self._columns = {each.name: to_json(each.type) for each in columns}
        self._types = {each.name: each.type for each in columns}
        self._parse = compile_json_parser(
            t.StructType(tuple(t.Field(each.name, each.type) for each in columns)), list(self._columns)
        )
        self._names = self._types.keys()

    def write(self, key: object) -> dict[str, Any]:
        """Return a key by column, as JSON. Raises BadKeyError for a key that does not fit the store."""
        given = self._given(key)
        written = {}
        for name, value in given.items():
            convert = self._columns.get(name)
            try:
                written[name] = value if value is None or convert is None else convert(value)
            except MISMATCHES as error:
                spark_type = self._types[name]
                raise BadKeyError(
                    f"{shown(value)} does not fit: {error}",
                    where=f"column {name} ({spark_type.name})",
                    fix=f"In JSON it is like {shown(example_of(spark_type), 400)}",
                ) from None
        self._parse(written)
        return written

    def takes(self, key: object) -> bool:
        """Whether a key has as many columns as this writer."""
        if isinstance(key, list | tuple):
            return len(key) == len(self._names)
        columns = columns_of(key)
        return len(self._names) == 1 if columns is None else columns.keys() == self._names

    def _given(self, key: object) -> Mapping[str, Any]:
        """Return the values of a key by column. A key of one column may be its value alone."""
        only = next(iter(self._types.items())) if len(self._types) == 1 else None
        if only is not None and isinstance(only[1], t.ArrayType) and isinstance(key, list):
            return {only[0]: key}
        if isinstance(key, list | tuple) and not (only is not None and len(key) != 1):
            if len(key) == len(self._types):
                return dict(zip(self._types, key, strict=True))
            return self._refused(key, f"it has {len(key)} values for {len(self._types)} columns")
        columns = columns_of(key)
        if columns is not None and (only is None or columns.keys() == self._names):
            return columns
        if only is not None:
            return {only[0]: key}
        return self._refused(key, f"it is one value for {len(self._types)} columns")

    def _refused(self, key: object, reason: str) -> Mapping[str, Any]:
        names = ", ".join(f"{name} {each.name}" for name, each in self._types.items())
        raise BadKeyError(
            f"{shown(key)} is not a key of this store: {reason}",
            where=f"columns ({names})",
            fix="Give a tuple in this order, a dict by column, or a model; a single column's value may stand alone",
        )
