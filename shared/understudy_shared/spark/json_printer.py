"""Turns row bytes directly into what `orjson` prints, without Python values in between: used by every answer.

Pure. Integers are numbers; decimals strings; timestamps ISO 8601 in UTC with microseconds and `Z`, `timestamp_ntz`
without; dates, times and intervals ISO 8601; binary base64; variants strings of JSON; NaN and infinities strings;
structs objects; maps objects when the key is a string, else pairs. A string that is not UTF-8 is `{"base64": ...}`, and
a map with such a key or a repeated one is pairs, because an object cannot hold it. `json_values` reads all of it back.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Any, cast

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark import temporal
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.row_reader import Leaf, compile_cell_reader, compile_reader
from understudy_shared.spark.types import (
    BinaryType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)
from understudy_shared.spark.unsafe_row import read_calendar_interval, read_unscaled
from understudy_shared.spark.variant import variant_json

JsonPrinter = Callable[[bytes], dict[str, object]]

_pack_float = struct.Struct("<f").pack


def compile_json_printer(struct_type: StructType, names: Sequence[str] | None = None) -> JsonPrinter:
    """Compile a function from UnsafeRow bytes to an object by column name; `names`, all unique, replace Spark's."""
    chosen = unique_names(field.name for field in struct_type.fields) if names is None else tuple(names)
    if len(chosen) != len(struct_type.fields) or len(set(chosen)) != len(chosen):
        raise ValueError(f"{len(struct_type.fields)} columns need as many different names, got {chosen}")
    return cast(JsonPrinter, compile_reader(struct_type, _JsonValues(struct_type, chosen)))


def compile_json_cell(spark_type: SparkType) -> Callable[[Any], object]:
    """Compile a function from a raw cell that is not null to what is printed for it: see `compile_cell_reader`."""
    return compile_cell_reader(spark_type, _JsonValues(StructType(()), ()))


class _JsonValues:
    """The flavour of answers: values that `orjson` prints."""

    def __init__(self, root: StructType, names: Sequence[str]) -> None:
        self._root = root
        self._names = names

    def leaf(self, spark_type: SparkType) -> Leaf | None:
        match spark_type:
            case DecimalType():
                return Leaf(_decimal_printer(spark_type))
            case DoubleType():
                # The difference is NaN for NaN and both infinities: one comparison, and a call for those alone.
                return Leaf(_not_finite, "({x} if {x} - {x} == 0.0 else {f}({x}))")
            case _:
                function = _LEAVES.get(type(spark_type))
                return Leaf(function) if function else None

    def struct_literal(self, struct_type: StructType, variables: Sequence[str]) -> str:
        is_root = struct_type is self._root
        names = self._names if is_root else unique_names(field.name for field in struct_type.fields)
        pairs = zip(names, variables, strict=True)
        return f"{{{', '.join(f'{name!r}: {variable}' for name, variable in pairs)}}}"

    def map_builder(self, map_type: MapType) -> Callable[[list[object], list[object]], object]:
        return _object_or_pairs if isinstance(map_type.key, StringType) else _pairs


def _pairs(keys: list[object], values: list[object]) -> object:
    return [[key, value] for key, value in zip(keys, values, strict=True)]


def _object_or_pairs(keys: list[object], values: list[object]) -> object:
    if all(isinstance(key, str) for key in keys):
        # A key that repeats makes the dict shorter than its keys.
        fields = dict(zip(keys, values, strict=True))
        if len(fields) == len(keys):
            return fields
    return _pairs(keys, values)


def _text(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _not_finite(value: float) -> str:
    if value != value:  # noqa: PLR0124
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _shortest_float(value: float) -> object:
    """Return the float with the fewest digits that denotes this float32: 0.1, where its double would print
    0.10000000149011612.
    """
    if value - value != 0.0:
        return _not_finite(value)
    packed = _pack_float(value)
    # Six digits are always kept by a float32, and nine always tell it from its neighbours.
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if _pack_float(short) == packed:
            return short
    return float(f"{value:.9g}")


def _decimal_printer(spark_type: DecimalType) -> Callable[..., str]:
    scale = spark_type.scale

    def print_narrow(unscaled: int) -> str:
        if scale <= 0:
            return str(unscaled * 10**-scale)
        # At least one digit stands before the point; the width counts the sign.
        digits = f"{unscaled:0{scale + 2}}" if unscaled < 0 else f"{unscaled:0{scale + 1}}"
        return f"{digits[:-scale]}.{digits[-scale:]}"

    return (lambda data: print_narrow(read_unscaled(data))) if spark_type.is_wide else print_narrow


def _time(nanos: int) -> str:
    if not 0 <= nanos < temporal.NANOS_PER_DAY:
        raise CorruptFileError(f"a time of {nanos} ns is not within a day", where="a row", fix="The file is damaged")
    return temporal.time_text(nanos)


_LEAVES: dict[type[SparkType], Callable[..., object]] = {
    StringType: _text,
    BinaryType: _base64,
    VariantType: variant_json,
    FloatType: _shortest_float,
    DateType: temporal.date_text,
    TimestampType: temporal.timestamp_text,
    TimestampNtzType: temporal.timestamp_ntz_text,
    TimeType: _time,
    YearMonthIntervalType: temporal.year_month_text,
    DayTimeIntervalType: temporal.day_time_text,
    CalendarIntervalType: lambda data: temporal.calendar_interval_text(read_calendar_interval(data)),
}
