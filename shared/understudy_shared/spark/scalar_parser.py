"""Parses one scalar of a key, from text or a JSON value, to the Python value that the row encoder takes.

Pure. Parsers raise `ValueError` with the reason; the caller adds the column. Nothing is rounded
to fit: a value that Spark cannot hold exactly would silently be another key.
"""

from __future__ import annotations

import math
import re
import struct
from binascii import a2b_base64
from collections.abc import Callable
from decimal import Decimal

from understudy_shared.spark import temporal
from understudy_shared.spark.layout import DECIMAL_CONTEXT
from understudy_shared.spark.types import (
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    SparkType,
    StringType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
)

JsonParser = Callable[[object], object]
TextParser = Callable[[str], object]

_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d{1,80}(?:\.\d{0,80})?|\.\d{1,80})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXACT_FLOAT_DIGITS = 15
"""Number of digits up to which a decimal number survives JSON parsers that read it as a double."""
_BOOLEANS = {"true": True, "false": False}


def json_parser_of(spark_type: SparkType) -> JsonParser:
    """Return the parser of a scalar type's JSON values; the caller handles null."""
    match spark_type:
        case BooleanType():
            return _boolean
        case IntegralType():
            parse_integral = _integral_parser(spark_type)
            # Text is accepted, too: `longs=string` prints it so, and every printed key can be sent back.
            return lambda value: parse_integral(_integer_text(value) if isinstance(value, str) else value)
        case FloatType():
            return _float32
        case DoubleType():
            return _float64
        case DecimalType():
            return _decimal_parser(spark_type)
        case StringType():
            return _string
        case YearMonthIntervalType():
            return _interval_parser(temporal.parse_year_month, 31)
        case DayTimeIntervalType():
            return _interval_parser(temporal.parse_day_time, 63)
        case VoidType():
            return _void
        case _:
            return _from_text(text_parser_of(spark_type))


def text_parser_of(spark_type: SparkType) -> TextParser:
    """Return the parser of a scalar type's text, as given in a path."""
    match spark_type:
        case BooleanType():
            return _boolean_text
        case IntegralType():
            parse_integral = _integral_parser(spark_type)
            return lambda text: parse_integral(_integer_text(text))
        case FloatType():
            return lambda text: _float32(_float_text(text))
        case DoubleType():
            return _float_text
        case DecimalType():
            return _decimal_parser(spark_type)
        case StringType():
            return _string
        case VoidType():
            return _void
        case _:
            return _TEXT_PARSERS[type(spark_type)]


def is_scalar(spark_type: SparkType) -> bool:
    return isinstance(spark_type, _SCALARS) or type(spark_type) in _TEXT_PARSERS


def _from_text(parse: TextParser) -> JsonParser:
    def parse_value(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("it is not a string")
        return parse(value)

    return parse_value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is not true or false")
    return value


def _boolean_text(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())  # Python and Spark write True and TRUE
    if value is None:
        raise ValueError("it is not true or false")
    return value


def _void(value: object) -> object:
    raise ValueError("the column is always null")


def _integral_parser(spark_type: IntegralType) -> JsonParser:
    limit = 1 << spark_type.BITS - 1
    low, high = -limit, limit - 1

    def parse(value: object) -> int:
        if type(value) is not int:
            raise ValueError("it is not an integer")
        if not low <= value <= high:
            raise ValueError(f"it is not within {low}..{high}")
        return value

    return parse


def _integer_text(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("it is not an integer")
    return int(text)


def _float64(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        if abs(value) > 1 << 1023 or int(float(value)) != value:
            raise ValueError("a double cannot hold it exactly")
        return float(value)
    if isinstance(value, str) and value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    raise ValueError('it is not a number, "NaN", "Infinity" or "-Infinity"')


def _float32(value: object) -> float:
    """Round to the nearest float: a reader who writes 0.1 means the float nearest to it."""
    wide = _float64(value)
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", wide))[0]
    except OverflowError:
        raise ValueError("it is out of a float's range") from None
    if type(value) is int and narrow != wide:
        raise ValueError("a float cannot hold it exactly")
    return narrow


def _float_text(text: str) -> float:
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if not _FLOAT.fullmatch(text):
        raise ValueError("it is not a number, NaN, Infinity or -Infinity")
    value = float(text)
    if math.isinf(value):
        raise ValueError("it is out of a double's range")
    return value


def _decimal_parser(spark_type: DecimalType) -> Callable[[object], Decimal]:
    precision, scale = spark_type.precision, spark_type.scale

    def parse(value: object) -> Decimal:
        number = _as_decimal(value)
        if number and number.adjusted() + 1 + scale > precision:
            raise ValueError(f"it has more than {precision - scale} digits before the point")
        _, digits, exponent = number.as_tuple()
        excess = -scale - int(exponent)
        if excess > 0 and any(digits[-excess:]):
            raise ValueError(f"it has more than {max(scale, 0)} digits after the point")
        return Decimal(int(number.scaleb(scale, DECIMAL_CONTEXT))).scaleb(-scale, DECIMAL_CONTEXT)

    return parse


def _as_decimal(value: object) -> Decimal:
    if type(value) is int and abs(value) < 10**80:
        return Decimal(value)
    if type(value) is float:
        number = Decimal(repr(value))
        if not number.is_finite() or len(number.as_tuple().digits) > _EXACT_FLOAT_DIGITS or abs(value) >= 1e15:
            raise ValueError(f"a JSON number is exact up to {_EXACT_FLOAT_DIGITS} digits only, send a string")
        return number
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    raise ValueError("it is not a decimal number")


def _string(value: object) -> str:
    """Parse a string, or `{"base64": ...}`, the printed form of a string that is not UTF-8."""
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_text(_binary)(value["base64"]).decode("utf-8", "surrogateescape")  # type: ignore[attr-defined,no-any-return]
    if not isinstance(value, str):
        raise ValueError("it is not a string")
    if not value.isascii():
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("it holds a lone surrogate") from None
    return value


def _binary(text: str) -> bytes:
    """Parse standard or URL-safe base64, padded or not."""
    standard = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return a2b_base64(standard + "=" * (-len(standard) % 4), strict_mode=True)
    except ValueError:
        raise ValueError("it is not base64") from None


def _interval_parser(parse: Callable[[str], int], bits: int) -> JsonParser:
    def parse_value(value: object) -> int:
        if isinstance(value, str):
            return parse(value)
        if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
            raise ValueError("it is not an ISO 8601 duration or an integer in range")
        return value

    return parse_value


_SCALARS = (BooleanType, IntegralType, FloatType, DoubleType, DecimalType, StringType, VoidType)
_TEXT_PARSERS: dict[type[SparkType], TextParser] = {
    BinaryType: _binary,
    DateType: temporal.parse_date,
    TimestampType: temporal.parse_timestamp,
    TimestampNtzType: temporal.parse_timestamp_ntz,
    TimeType: temporal.parse_time,
    YearMonthIntervalType: temporal.parse_year_month,
    DayTimeIntervalType: temporal.parse_day_time,
    CalendarIntervalType: temporal.parse_calendar_interval,
}
