"""The Python types of Spark's types, and the conversions to those that an annotation may name instead (pure)."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from understudy.typed.intervals import CalendarInterval, YearMonthInterval
from understudy.typed.plain import Convert, to_plain
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
    VariantType,
    VoidType,
    YearMonthIntervalType,
)


def python_name(spark_type: SparkType) -> str:
    """Name the Python type of a Spark type, as an annotation; a struct is `dict[str, Any]`."""
    match spark_type:
        case StructType():
            return "dict[str, Any]"
        case ArrayType(element):
            return f"list[{python_name(element)} | None]"
        case MapType(StructType() | ArrayType() | MapType() as key, value):
            return f"list[tuple[{python_name(key)}, {python_name(value)} | None]]"
        case MapType(key, value):
            return f"dict[{python_name(key)}, {python_name(value)} | None]"
        case VoidType():
            return "None"
        case _:
            return SCALARS[type(spark_type)][0].__name__


def fitting_names(spark_type: SparkType) -> list[str]:
    """Name the annotations that hold a Spark type, the best first."""
    others = SCALARS.get(type(spark_type), ())[1:]
    return [python_name(spark_type), *(each.__name__ for each in others)]


def fit_scalar(wanted: Any, spark_type: SparkType) -> Convert | None:
    """Return the conversion of values that are not null; None where they do not fit."""
    convert = to_plain(spark_type)
    if typing.get_origin(wanted) is typing.Literal:
        return _literal(typing.get_args(wanted), spark_type, convert)
    if not isinstance(wanted, type):
        return None
    if issubclass(wanted, Enum) and isinstance(spark_type, StringType | IntegralType):
        return lambda value: wanted(convert(value))
    possible = SCALARS[type(spark_type)]
    if wanted not in possible:
        return None
    if wanted is possible[0]:
        return _exactly(wanted, convert)
    return {str: _text, int: lambda value: convert(value).months, UUID: lambda value: UUID(convert(value))}[wanted]


def _literal(values: tuple[Any, ...], spark_type: SparkType, convert: Convert) -> Convert | None:
    wanted = {StringType: str, BooleanType: bool}.get(type(spark_type), int)
    if not isinstance(spark_type, StringType | BooleanType | IntegralType):
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


SCALARS: Final[Mapping[type[SparkType], tuple[type, ...]]] = {
    VoidType: (type(None),),
    BooleanType: (bool,),
    ByteType: (int,),
    ShortType: (int,),
    IntType: (int,),
    LongType: (int,),
    FloatType: (float,),
    DoubleType: (float,),
    DecimalType: (Decimal, str),
    StringType: (str, UUID),
    BinaryType: (bytes,),
    VariantType: (str,),
    DateType: (date, str),
    TimestampType: (datetime, str),
    TimestampNtzType: (datetime, str),
    TimeType: (time, str),
    DayTimeIntervalType: (timedelta, str),
    YearMonthIntervalType: (YearMonthInterval, int, str),
    CalendarIntervalType: (CalendarInterval, str),
}
"""The Python types that hold a Spark type's values; the first is the one that values have without a model."""
