"""Parses keys from JSON and from path segments; reads all that `json_printer` writes.

Pure. A struct is an object by field name, or an array in field order; a map is an object when its key is a string, or a
list of pairs; an interval is an ISO 8601 duration, or an integer of months or microseconds. What does not fit raises
`BadKeyError` with the column, its type, the value and an example of the right form. Nothing is rounded to fit: a value
that Spark cannot hold exactly would silently be another key.
"""

from __future__ import annotations

import math
import re
import struct
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import cast

import orjson

from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark import temporal
from understudy_shared.spark import types as t
from understudy_shared.spark.unsafe_row import DECIMAL_CONTEXT

RowParser = Callable[[object], tuple[object, ...]]

_SHOWN_CHARACTERS = 80


def compile_json_parser(struct_type: t.StructType, names: Sequence[str] | None = None) -> RowParser:
    """Compile a function from a JSON array or object to a row; `names` replace Spark's (they must be unique)."""
    return cast(RowParser, _struct_parser(struct_type, "", names))


def compile_segment_parser(spark_type: t.SparkType, column: str = "key") -> Callable[[str], object]:
    """Compile a function from a percent-decoded path segment to a value: any scalar that is neither null nor empty."""
    if not is_scalar(spark_type):

        def refuse(text: str) -> object:
            raise _bad_key(column, spark_type, text, "a path segment holds scalars only")

        return refuse
    _, parse_text = _scalar_parsers(spark_type)

    def parse(text: str) -> object:
        if not text:
            raise _bad_key(column, spark_type, text, "a path segment cannot be empty")
        try:
            return parse_text(text)
        except ValueError as error:
            raise _bad_key(column, spark_type, text, str(error)) from None

    return parse


def example_of(spark_type: t.SparkType) -> object:
    """Make an example JSON value of the type, for messages."""
    match spark_type:
        case t.StructType(fields):
            names = t.unique_names(field.name for field in fields)
            return {name: example_of(field.type) for name, field in zip(names, fields, strict=True)}
        case t.ArrayType(element):
            return [example_of(element)]
        case t.MapType(t.StringType(), value):
            return {"text": example_of(value)}
        case t.MapType(key, value):
            return [[example_of(key), example_of(value)]]
        case t.DecimalType(precision, scale):
            return "1" if scale <= 0 else f"{'0' if precision == scale else '1'}.{'5'.ljust(scale, '0')}"
        case t.IntegralType():
            return 42
        case _:
            return _EXAMPLES.get(type(spark_type), 1.5)


def _parser(spark_type: t.SparkType, path: str) -> JsonParser:
    """Build the parser of non-null values; `path` names the column, down to the field, in messages."""
    match spark_type:
        case t.StructType():
            return _struct_parser(spark_type, path, None)
        case t.ArrayType(element):
            return _array_parser(spark_type, _parser(element, f"{path}[]"), path)
        case t.MapType():
            return _map_parser(spark_type, path)
    convert, _ = _scalar_parsers(spark_type)

    def parse(value: object) -> object:
        try:
            return convert(value)
        except ValueError as error:
            raise _bad_key(path, spark_type, value, str(error)) from None

    return parse


def _struct_parser(struct_type: t.StructType, path: str, names: Sequence[str] | None) -> JsonParser:
    chosen = t.unique_names(field.name for field in struct_type.fields) if names is None else tuple(names)
    if len(chosen) != len(struct_type.fields) or len(set(chosen)) != len(chosen):
        raise ValueError(f"{len(struct_type.fields)} columns need as many different names, got {chosen}")
    prefix = f"{path}." if path else ""
    parsers = [_parser(field.type, prefix + name) for field, name in zip(struct_type.fields, chosen, strict=True)]
    count = len(parsers)
    known = set(chosen)

    def parse(value: object) -> tuple[object, ...]:
        items: Sequence[object]
        if isinstance(value, list | tuple):
            items = value
            if len(items) != count:
                raise refuse(value, f"it has {len(items)} values for {count} columns")
        elif isinstance(value, dict):
            if value.keys() != known:
                raise refuse(value, _name_differences(value.keys(), chosen))
            items = [value[name] for name in chosen]
        else:
            raise refuse(value, "it is neither an array nor an object")
        return tuple([None if item is None else parser(item) for parser, item in zip(parsers, items, strict=True)])

    def refuse(value: object, reason: str) -> BadKeyError:
        if path:
            return _bad_key(path, struct_type, value, reason)
        return refuse_whole_key(struct_type, chosen, value, reason)

    return parse


def refuse_whole_key(struct_type: t.StructType, names: Sequence[str], value: object, reason: str) -> BadKeyError:
    """Make the error for a key with the wrong columns; its message shows the schema."""
    columns = ", ".join(f"{name} {field.type.name}" for name, field in zip(names, struct_type.fields, strict=True))
    by_order = [example_of(field.type) for field in struct_type.fields]
    by_name = dict(zip(names, by_order, strict=True))
    return BadKeyError(
        f"{shown(value)} is not a key of this store: {reason}",
        where=f"columns ({columns})",
        fix=f"Send a JSON array in this order, as {shown(by_order, 400)}, or an object, as {shown(by_name, 400)}",
    )


def refuse_whole_path(
    struct_type: t.StructType, names: Sequence[str], segments: Sequence[str], reason: str
) -> BadKeyError:
    """Make the error for a key in path form with the wrong number of segments; its message shows a path that fits."""
    columns = ", ".join(f"{name} {field.type.name}" for name, field in zip(names, struct_type.fields, strict=True))
    examples = [example_of(field.type) for field in struct_type.fields]
    words = [word for each in examples for word in (each.values() if isinstance(each, dict) else (each,))]
    path = "/".join(word if isinstance(word, str) else orjson.dumps(word).decode() for word in words)
    given = "/".join(segments)
    return BadKeyError(
        f"keys/{given if len(given) <= _SHOWN_CHARACTERS else given[:_SHOWN_CHARACTERS] + '...'} "
        f"is not a key of this store: {reason}",
        where=f"columns ({columns})",
        fix=f"Send a segment for each column, two for a window, as keys/{path}",
    )


def shown(value: object, limit: int = _SHOWN_CHARACTERS) -> str:
    """Print a value as JSON, cut to a length that fits a message."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _array_parser(array_type: t.ArrayType, parse_element: JsonParser, path: str) -> JsonParser:
    def parse(value: object) -> list[object]:
        if not isinstance(value, list):
            raise _bad_key(path, array_type, value, "it is not an array")
        return [None if item is None else parse_element(item) for item in value]

    return parse


def _map_parser(map_type: t.MapType, path: str) -> JsonParser:
    parse_key, parse_value = _parser(map_type.key, f"{path}[key]"), _parser(map_type.value, f"{path}[value]")
    takes_objects = isinstance(map_type.key, t.StringType)

    def parse(value: object) -> list[tuple[object, object]]:
        pairs: Sequence[object]
        if takes_objects and isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list):
            pairs = value
        else:
            raise _bad_key(
                path, map_type, value, f"it is not {'an object or ' if takes_objects else ''}a list of pairs"
            )
        return [parse_pair(pair, value) for pair in pairs]

    def parse_pair(pair: object, whole: object) -> tuple[object, object]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _bad_key(path, map_type, whole, "an entry is not a pair of key and value")
        key, value = pair
        if key is None:
            raise _bad_key(path, map_type, whole, "a map has no null key")
        return parse_key(key), None if value is None else parse_value(value)

    return parse


def _name_differences(given: object, names: Sequence[str]) -> str:
    sent = set(cast("Sequence[str]", given))
    missing = [name for name in names if name not in sent]
    unknown = sorted(str(name) for name in sent.difference(names))
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)


def _bad_key(path: str, spark_type: t.SparkType, value: object, reason: str) -> BadKeyError:
    fix = f"Send it like {shown(example_of(spark_type), 400)}"
    return BadKeyError(f"{shown(value)} does not fit: {reason}", where=f"column {path} ({spark_type.name})", fix=fix)


_EXAMPLES: dict[type[t.SparkType], object] = {
    t.BooleanType: True,
    t.StringType: "text",
    t.BinaryType: "aGVsbG8=",
    t.DateType: "2024-01-31",
    t.TimestampType: "2024-01-31T12:34:56.000000Z",
    t.TimestampNtzType: "2024-01-31T12:34:56.000000",
    t.TimeType: "12:34:56.000000",
    t.YearMonthIntervalType: "P1Y2M",
    t.DayTimeIntervalType: "P1DT2H3M4.5S",
    t.CalendarIntervalType: "P1M2DT3.5S",
    t.VoidType: None,
}

JsonParser = Callable[[object], object]
TextParser = Callable[[str], object]

_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d{1,80}(?:\.\d{0,80})?|\.\d{1,80})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXACT_FLOAT_DIGITS = 15
"""Number of digits up to which a decimal number survives JSON parsers that read it as a double."""
_BOOLEANS = {"true": True, "false": False}


def _scalar_parsers(spark_type: t.SparkType) -> tuple[JsonParser, TextParser]:
    """Return the parsers of a scalar type: of its JSON values that are not null, and of its text in a path.

    They raise `ValueError` with the reason; the caller adds the column.
    """
    match spark_type:
        case t.BooleanType():
            return _boolean, _boolean_text
        case t.IntegralType():
            parse = _integral_parser(spark_type)
            # Text is accepted, too: `longs=string` prints it so, and every printed key can be sent back.
            return (
                lambda value: parse(_integer_text(value) if isinstance(value, str) else value),
                lambda text: parse(_integer_text(text)),
            )
        case t.FloatType():
            return _float32, lambda text: _float32(_float_text(text))
        case t.DoubleType():
            return _float64, _float_text
        case t.DecimalType():
            return (parse_decimal := _decimal_parser(spark_type)), parse_decimal
        case t.StringType():
            return _string, _string
        case t.YearMonthIntervalType():
            return _interval_parser(temporal.parse_year_month, 31), temporal.parse_year_month
        case t.DayTimeIntervalType():
            return _interval_parser(temporal.parse_day_time, 63), temporal.parse_day_time
        case t.VoidType():
            return _void, _void
        case _:
            parse_text = _TEXT_PARSERS[type(spark_type)]
            return _from_text(parse_text), parse_text


def is_scalar(spark_type: t.SparkType) -> bool:
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


def _integral_parser(spark_type: t.IntegralType) -> JsonParser:
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


def _decimal_parser(spark_type: t.DecimalType) -> Callable[[object], Decimal]:
    precision, scale = spark_type.precision, spark_type.scale

    def parse(value: object) -> Decimal:
        number = _as_decimal(value)
        # A longer number may have been sent, of which JSON's parser kept the nearest double only.
        if type(value) is float and math.ulp(value) >= 10.0**-scale:
            raise ValueError(f"a JSON number does not hold {scale} digits after the point, send a string")
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


_SCALARS = (
    *(t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.DecimalType, t.StringType, t.VoidType),
    *(t.YearMonthIntervalType, t.DayTimeIntervalType),
)
_TEXT_PARSERS: dict[type[t.SparkType], TextParser] = {
    t.BinaryType: _binary,
    t.DateType: temporal.parse_date,
    t.TimestampType: temporal.parse_timestamp,
    t.TimestampNtzType: temporal.parse_timestamp_ntz,
    t.TimeType: temporal.parse_time,
    t.CalendarIntervalType: temporal.parse_calendar_interval,
}
