"""Parses keys from JSON and from path segments; reads all that `json_printer` (exported here, too) writes.

Pure. A struct is an object by field name, or an array in field order; a map is an object when its key is a string, or a
list of pairs; an interval is an ISO 8601 duration, or an integer of months or microseconds. What does not fit raises
`BadKeyError` with the column, its type, the value and an example of the right form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import orjson

from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark.json_printer import JsonPrinter, compile_json_printer
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.scalar_parser import JsonParser, is_scalar, json_parser_of, text_parser_of
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegralType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
)

__all__ = [
    "JsonPrinter",
    "RowParser",
    "compile_json_parser",
    "compile_json_printer",
    "compile_segment_parser",
    "example_of",
]

RowParser = Callable[[object], tuple[object, ...]]

_SHOWN_CHARACTERS = 80


def compile_json_parser(struct_type: StructType, names: Sequence[str] | None = None) -> RowParser:
    """Compile a function from a JSON array or object to a row; `names` replace Spark's (they must be unique)."""
    return cast(RowParser, _struct_parser(struct_type, "", names))


def compile_segment_parser(spark_type: SparkType, column: str = "key") -> Callable[[str], object]:
    """Compile a function from a percent-decoded path segment to a value: any scalar that is neither null nor empty."""
    if not is_scalar(spark_type):

        def refuse(text: str) -> object:
            raise _bad_key(column, spark_type, text, "a path segment holds scalars only")

        return refuse
    parse_text = text_parser_of(spark_type)

    def parse(text: str) -> object:
        if not text:
            raise _bad_key(column, spark_type, text, "a path segment cannot be empty")
        try:
            return parse_text(text)
        except ValueError as error:
            raise _bad_key(column, spark_type, text, str(error)) from None

    return parse


def example_of(spark_type: SparkType) -> object:
    """Make an example JSON value of the type, for messages."""
    match spark_type:
        case StructType(fields):
            names = unique_names(field.name for field in fields)
            return {name: example_of(field.type) for name, field in zip(names, fields, strict=True)}
        case ArrayType(element):
            return [example_of(element)]
        case MapType(StringType(), value):
            return {"text": example_of(value)}
        case MapType(key, value):
            return [[example_of(key), example_of(value)]]
        case DecimalType(precision, scale):
            return "1" if scale <= 0 else f"{'0' if precision == scale else '1'}.{'5'.ljust(scale, '0')}"
        case IntegralType():
            return 42
        case _:
            return _EXAMPLES.get(type(spark_type), 1.5)


def _parser(spark_type: SparkType, path: str) -> JsonParser:
    """Build the parser of non-null values; `path` names the column, down to the field, in messages."""
    match spark_type:
        case StructType():
            return _struct_parser(spark_type, path, None)
        case ArrayType(element):
            return _array_parser(spark_type, _parser(element, f"{path}[]"), path)
        case MapType():
            return _map_parser(spark_type, path)
    convert = json_parser_of(spark_type)

    def parse(value: object) -> object:
        try:
            return convert(value)
        except ValueError as error:
            raise _bad_key(path, spark_type, value, str(error)) from None

    return parse


def _struct_parser(struct_type: StructType, path: str, names: Sequence[str] | None) -> JsonParser:
    chosen = unique_names(field.name for field in struct_type.fields) if names is None else tuple(names)
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


def refuse_whole_key(struct_type: StructType, names: Sequence[str], value: object, reason: str) -> BadKeyError:
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
    struct_type: StructType, names: Sequence[str], segments: Sequence[str], reason: str
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


def _array_parser(array_type: ArrayType, parse_element: JsonParser, path: str) -> JsonParser:
    def parse(value: object) -> list[object]:
        if not isinstance(value, list):
            raise _bad_key(path, array_type, value, "it is not an array")
        return [None if item is None else parse_element(item) for item in value]

    return parse


def _map_parser(map_type: MapType, path: str) -> JsonParser:
    parse_key, parse_value = _parser(map_type.key, f"{path}[key]"), _parser(map_type.value, f"{path}[value]")
    takes_objects = isinstance(map_type.key, StringType)

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


def _bad_key(path: str, spark_type: SparkType, value: object, reason: str) -> BadKeyError:
    fix = f"Send it like {shown(example_of(spark_type), 400)}"
    return BadKeyError(f"{shown(value)} does not fit: {reason}", where=f"column {path} ({spark_type.name})", fix=fix)


_EXAMPLES: dict[type[SparkType], object] = {
    BooleanType: True,
    StringType: "text",
    BinaryType: "aGVsbG8=",
    DateType: "2024-01-31",
    TimestampType: "2024-01-31T12:34:56.000000Z",
    TimestampNtzType: "2024-01-31T12:34:56.000000",
    TimeType: "12:34:56.000000",
    YearMonthIntervalType: "P1Y2M",
    DayTimeIntervalType: "P1DT2H3M4.5S",
    CalendarIntervalType: "P1M2DT3.5S",
    VoidType: None,
}
