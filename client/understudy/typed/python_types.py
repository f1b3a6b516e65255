"""The Python types of Spark's types, and the conversions to them from what answers print, without loss (pure).

int, float, Decimal, str, bytes, date, datetime (with a zone for TIMESTAMP, without for TIMESTAMP_NTZ), time, timedelta;
a struct is a dict, an array a list, a map a dict or, where the answer has pairs, a list of them. What Python's types
cannot hold (the year 10000, a nanosecond) stays text as in the answer. A string that is not UTF-8 has surrogate
escapes, as Python's file names.
"""

from __future__ import annotations

import math
import typing
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.spark import temporal
from understudy_shared.spark import types as t


class SchemaError(UnderstudyError):
    """The entry of a store that this release cannot read."""


class ModelError(UnderstudyError):
    """A model that does not fit the columns of a store: `where` names its field, `fix` says what would fit."""


class UnfitValueError(UnderstudyError):
    """A value that the wanted Python type cannot hold, or that does not have the form of its Spark type."""


@dataclass(frozen=True, slots=True, order=True)
class YearMonthInterval:
    """An interval of whole months, as Spark's `INTERVAL YEAR TO MONTH`."""

    months: int

    def __str__(self) -> str:
        return temporal.year_month_text(self.months)


@dataclass(frozen=True, slots=True)
class CalendarInterval:
    """Spark's `CalendarInterval`: months, days and microseconds, without carrying between them."""

    months: int
    days: int
    microseconds: int

    def __str__(self) -> str:
        return temporal.calendar_interval_text((self.months, self.days, self.microseconds))


Convert = Callable[[Any], Any]

MISMATCHES: Final = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError)
"""The errors of conversions for a value that does not have the form of its type."""

_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(spark_type: t.SparkType) -> Convert:
    """Return a function from a printed value to a Python value; nulls do not come to it."""
    match spark_type:
        case t.StructType(fields):
            names = t.unique_names(each.name for each in fields)
            inner = [(name, or_null(to_plain(each.type))) for name, each in zip(names, fields, strict=True)]
            return lambda value: {name: convert(value[name]) for name, convert in inner}
        case t.ArrayType(element):
            return list_maker(or_null(to_plain(element)))
        case t.MapType(key, value_type):
            return _map_maker(to_plain(key), or_null(to_plain(value_type)))
        case t.IntegralType():
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
    """Return a conversion that keeps as text what Python's type cannot hold but Spark's can."""

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


_SCALARS: Final[Mapping[type[t.SparkType], Convert]] = {
    t.VoidType: _nothing,
    t.BooleanType: _boolean,
    t.FloatType: _float,
    t.DoubleType: _float,
    t.DecimalType: _decimal,
    t.StringType: _string,
    t.BinaryType: _bytes,
    t.VariantType: _string,
    t.DateType: _or_text(date.fromisoformat, temporal.parse_date),
    t.TimestampType: _or_text(_timestamp, temporal.parse_timestamp),
    t.TimestampNtzType: _or_text(_timestamp_ntz, temporal.parse_timestamp_ntz),
    t.TimeType: _or_text(_time, temporal.parse_time),
    t.DayTimeIntervalType: lambda value: timedelta(microseconds=temporal.parse_day_time(value)),
    t.YearMonthIntervalType: lambda value: YearMonthInterval(temporal.parse_year_month(value)),
    t.CalendarIntervalType: lambda value: CalendarInterval(*temporal.parse_calendar_interval(value)),
}


def python_name(spark_type: t.SparkType) -> str:
    """Name the Python type of a Spark type, as an annotation; a struct is `dict[str, Any]`."""
    match spark_type:
        case t.StructType():
            return "dict[str, Any]"
        case t.ArrayType(element):
            return f"list[{python_name(element)} | None]"
        case t.MapType(t.StructType() | t.ArrayType() | t.MapType() as key, value):
            return f"list[tuple[{python_name(key)}, {python_name(value)} | None]]"
        case t.MapType(key, value):
            return f"dict[{python_name(key)}, {python_name(value)} | None]"
        case t.VoidType():
            return "None"
        case _:
            return SCALARS[type(spark_type)][0].__name__


def fitting_names(spark_type: t.SparkType) -> list[str]:
    """Name the annotations that hold a Spark type, the best first."""
    others = SCALARS.get(type(spark_type), ())[1:]
    return [python_name(spark_type), *(each.__name__ for each in others)]


def fit_scalar(wanted: Any, spark_type: t.SparkType) -> Convert | None:
    """Return the conversion of values that are not null; None where they do not fit."""
    convert = to_plain(spark_type)
    if typing.get_origin(wanted) is typing.Literal:
        return _literal(typing.get_args(wanted), spark_type, convert)
    if not isinstance(wanted, type):
        return None
    if issubclass(wanted, Enum) and isinstance(spark_type, t.StringType | t.IntegralType):
        return lambda value: wanted(convert(value))
    possible = SCALARS[type(spark_type)]
    if wanted not in possible:
        return None
    if wanted is possible[0]:
        return _exactly(wanted, convert)
    return {str: _text, int: lambda value: convert(value).months, UUID: lambda value: UUID(convert(value))}[wanted]


def _literal(values: tuple[Any, ...], spark_type: t.SparkType, convert: Convert) -> Convert | None:
    wanted = {t.StringType: str, t.BooleanType: bool}.get(type(spark_type), int)
    if not isinstance(spark_type, t.StringType | t.BooleanType | t.IntegralType):
        return None
    if any(type(each) is not wanted for each in values if each is not None):
        return None

    def convert_literal(value: Any) -> Any:
        found = convert(value)
        if found not in values:
            raise ValueError(f"it is not one of {', '.join(map(repr, values))}")
        return found

    return convert_literal


def _exactly(wanted: type, convert: Convert) -> Convert:
    """Return a conversion that refuses the texts of what a Python type cannot hold."""
    if wanted not in {date, datetime, time}:
        return convert

    def convert_exactly(value: Any) -> Any:
        found = convert(value)
        if type(found) is str:
            raise ValueError(f"Python's {wanted.__name__} cannot hold it: {wanted.__name__} | str would")
        return found

    return convert_exactly


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("it is not a text")
    return value


SCALARS: Final[Mapping[type[t.SparkType], tuple[type, ...]]] = {
    t.VoidType: (type(None),),
    t.BooleanType: (bool,),
    t.ByteType: (int,),
    t.ShortType: (int,),
    t.IntType: (int,),
    t.LongType: (int,),
    t.FloatType: (float,),
    t.DoubleType: (float,),
    t.DecimalType: (Decimal, str),
    t.StringType: (str, UUID),
    t.BinaryType: (bytes,),
    t.VariantType: (str,),
    t.DateType: (date, str),
    t.TimestampType: (datetime, str),
    t.TimestampNtzType: (datetime, str),
    t.TimeType: (time, str),
    t.DayTimeIntervalType: (timedelta, str),
    t.YearMonthIntervalType: (YearMonthInterval, int, str),
    t.CalendarIntervalType: (CalendarInterval, str),
}
"""The Python types that hold a Spark type's values; without a model it is the first."""
