"""Turns row bytes directly into what `orjson` prints, without Python values in between: used by every answer.

Pure. Integers are numbers; decimals strings; timestamps ISO 8601 in UTC with microseconds and `Z`, `timestamp_ntz`
without; dates, times and intervals ISO 8601; binary base64; NaN and infinities strings; structs objects; maps objects
when the key is a string, else pairs. A string that is not UTF-8 is `{"base64": ...}`, and a map with such a key or a
repeated one is pairs, because an object cannot hold it. `json_values` reads all of it back.

Variants are strings of JSON, as Spark's `to_json` prints them in UTC. Their encoding is that of Parquet's specification
(VariantEncoding.md): a dictionary of names, and a value whose objects refer to it by number. A row has the size of the
value in four bytes, the value, and the dictionary. Numbers are little endian. A damaged value, or one of a type that a
later Spark adds, is shown as its bytes, after `base64:`. JSON never begins like that.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, cast
from uuid import UUID

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark import temporal
from understudy_shared.spark import types as t
from understudy_shared.spark.temporal import date_text, timestamp_ntz_text
from understudy_shared.spark.unsafe_row import (
    Leaf,
    compile_cell_reader,
    compile_reader,
    read_calendar_interval,
    read_unscaled,
)

OPAQUE: Final = "base64:"
"""The beginning of what is shown of a value that cannot be decoded."""

_VERSION: Final = 1
_PRIMITIVE, _SHORT_STRING, _OBJECT = range(3)
_DECIMALS: Final = {8: 4, 9: 8, 10: 16}
"""Bytes of an unscaled value by type: one byte with the scale is before it."""
_SIZED: Final = (15, 16)
"""Types with their own size in four bytes: binaries and strings."""

_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{ord(char): f"\\{escape}" for char, escape in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)},
}
"""As Jackson escapes strings, which Spark prints JSON with."""

_unpack_float = struct.Struct("<f").unpack
_unpack_double = struct.Struct("<d").unpack


def variant_json(data: bytes) -> str:
    """Return the JSON of a value as a row has it."""
    size = int.from_bytes(data[:4], "little")
    try:
        return _Value(data[4 : 4 + size], data[4 + size :]).json(0)
    except (ValueError, IndexError, KeyError, RecursionError, OverflowError, struct.error):
        return OPAQUE + b2a_base64(data, newline=False).decode("ascii")


class _Value:
    """A value with its dictionary. In a sound value no two parts share bytes. A damaged value whose parts overlap is
    refused before it is printed: it could become far longer than its bytes.
    """

    def __init__(self, value: bytes, names: bytes) -> None:
        if names[0] & 0x0F != _VERSION:
            raise ValueError("its dictionary has another version")
        self._value = value
        self._names = names
        self._name_width = (names[0] >> 6) + 1
        self._parts_left = len(value)

    def json(self, at: int) -> str:
        """Return the JSON of the part that begins at a place."""
        self._parts_left -= 1
        if self._parts_left < 0:
            raise ValueError("its parts have each other inside")
        header = self._value[at]
        kind, info = header & 3, header >> 2
        if kind == _PRIMITIVE:
            return self._primitive(info, at + 1)
        if kind == _SHORT_STRING:
            return _quoted(self._taken(at + 1, info))
        if kind == _OBJECT:
            return f"{{{','.join(self._fields(info, at + 1))}}}"
        return f"[{','.join(map(self.json, self._parts(info, at + 1, info >> 2 & 1)[1]))}]"

    def _fields(self, info: int, at: int) -> Iterator[str]:
        width = (info >> 2 & 3) + 1
        ids, parts = self._parts(info, at, info >> 4 & 1, width)
        for index, part in enumerate(parts):
            name = self._name(self._number(ids + index * width, width))
            yield f"{_quoted(name)}:{self.json(part)}"

    def _parts(self, info: int, at: int, is_large: int, id_width: int = 0) -> tuple[int, list[int]]:
        """Return where the numbers of names begin, and the places of the parts of an object or an array."""
        count_width, width = 4 if is_large else 1, (info & 3) + 1
        count = self._number(at, count_width)
        if count > len(self._value):
            raise ValueError("it has more parts than bytes")
        ids = at + count_width
        offsets = ids + count * id_width
        begin = offsets + (count + 1) * width
        return ids, [begin + self._number(offsets + index * width, width) for index in range(count)]

    def _name(self, index: int) -> bytes:
        width = self._name_width
        count = int.from_bytes(self._names[1 : 1 + width], "little")
        if index >= count:
            raise ValueError("its dictionary lacks a name")
        places = [1 + width * (1 + index + each) for each in (0, 1)]
        start, end = (int.from_bytes(self._names[place : place + width], "little") for place in places)
        texts = 1 + width * (count + 2)
        if not start <= end <= len(self._names) - texts:
            raise ValueError("a name ends outside of the dictionary")
        return self._names[texts + start : texts + end]

    def _primitive(self, kind: int, at: int) -> str:
        if kind in _DECIMALS:
            unscaled = int.from_bytes(self._taken(at + 1, _DECIMALS[kind]), "little", signed=True)
            return _decimal(unscaled, self._value[at])
        if kind in _SIZED:
            data = self._taken(at + 4, self._number(at, 4))
            return _quoted(data if kind == _SIZED[1] else b2a_base64(data, newline=False))
        size, text = _PRIMITIVES[kind]
        return text(self._taken(at, size))

    def _number(self, at: int, width: int) -> int:
        return int.from_bytes(self._taken(at, width), "little")

    def _taken(self, at: int, size: int) -> bytes:
        taken = self._value[at : at + size]
        if len(taken) != size:
            raise ValueError("it ends too early")
        return taken


def _quoted(text: bytes) -> str:
    return f'"{text.decode().translate(_ESCAPES)}"'


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _decimal(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :].rstrip("0")
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _real(value: float, shortest: str) -> str:
    """Print a number by its shortest digits, two at least, as Java does: from 1e-3 to 1e7 without an exponent."""
    if value - value != 0.0:
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'  # noqa: PLR0124
    sign, numbers, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    digits = "".join(map(str, numbers)).rstrip("0") or "0"
    # The place of the point: before the first digit it is 0.
    point = len(numbers) + exponent if value else 1
    minus = "-" if sign else ""
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{minus}{digits[0]}.{digits[1:] or '0'}E{point - 1}"
    padded = digits.rjust(len(digits) - min(point - 1, 0), "0").ljust(max(point, 0) + 1, "0")
    cut = max(point, 1)
    return f"{minus}{padded[:cut]}.{padded[cut:]}"


def _double(data: bytes) -> str:
    (value,) = _unpack_double(data)
    two = f"{value:.1e}"
    return _real(value, two if float(two) == value else repr(value))


def _float(data: bytes) -> str:
    (value,) = _unpack_float(data)
    tries = (f"{value:.{digits}g}" for digits in range(2, 9))
    return _real(value, next((text for text in tries if _nearest_float(float(text)) == value), f"{value:.9g}"))


def _nearest_float(value: float) -> float | None:
    """Return the float of four bytes next to a number; None beyond the largest."""
    try:
        (nearest,) = _unpack_float(struct.pack("<f", value))
    except OverflowError:
        return None
    return float(nearest)


def _timestamp(data: bytes) -> str:
    date, _, clock = timestamp_ntz_text(_signed(data)).rpartition("T")
    return f"{date} {clock.rstrip('0').rstrip('.')}"


_PRIMITIVES: Final[Mapping[int, tuple[int, Callable[[bytes], str]]]] = MappingProxyType(
    {
        0: (0, lambda _: "null"),
        1: (0, lambda _: "true"),
        2: (0, lambda _: "false"),
        **{kind: (size, lambda data: str(_signed(data))) for kind, size in ((3, 1), (4, 2), (5, 4), (6, 8))},
        7: (8, _double),
        11: (4, lambda data: f'"{date_text(_signed(data))}"'),
        12: (8, lambda data: f'"{_timestamp(data)}+00:00"'),
        13: (8, lambda data: f'"{_timestamp(data)}"'),
        14: (4, _float),
        20: (16, lambda data: f'"{UUID(bytes=data)}"'),
    }
)
"""Sizes and texts of the other types by their numbers."""

JsonPrinter = Callable[[bytes], dict[str, object]]

_pack_float = struct.Struct("<f").pack


def compile_json_printer(struct_type: t.StructType, names: Sequence[str] | None = None) -> JsonPrinter:
    """Compile a function from UnsafeRow bytes to an object by column name; `names`, all unique, replace Spark's."""
    chosen = t.unique_names(field.name for field in struct_type.fields) if names is None else tuple(names)
    if len(chosen) != len(struct_type.fields) or len(set(chosen)) != len(chosen):
        raise ValueError(f"{len(struct_type.fields)} columns need as many different names, got {chosen}")
    return cast(JsonPrinter, compile_reader(struct_type, _JsonValues(struct_type, chosen)))


def compile_json_cell(spark_type: t.SparkType) -> Callable[[Any], object]:
    """Compile a function from a raw cell that is not null to what is printed for it: see `compile_cell_reader`."""
    return compile_cell_reader(spark_type, _JsonValues(t.StructType(()), ()))


class _JsonValues:
    """The flavour of answers: values that `orjson` prints."""

    def __init__(self, root: t.StructType, names: Sequence[str]) -> None:
        self._root = root
        self._names = names

    def leaf(self, spark_type: t.SparkType) -> Leaf | None:
        match spark_type:
            case t.DecimalType():
                return Leaf(_decimal_printer(spark_type))
            case t.DoubleType():
                # The difference is NaN for NaN and both infinities: one comparison, and a call for those alone.
                return Leaf(_not_finite, "({x} if {x} - {x} == 0.0 else {f}({x}))")
            case _:
                function = _LEAVES.get(type(spark_type))
                return Leaf(function) if function else None

    def struct_literal(self, struct_type: t.StructType, variables: Sequence[str]) -> str:
        is_root = struct_type is self._root
        names = self._names if is_root else t.unique_names(field.name for field in struct_type.fields)
        pairs = zip(names, variables, strict=True)
        return f"{{{', '.join(f'{name!r}: {variable}' for name, variable in pairs)}}}"

    def map_builder(self, map_type: t.MapType) -> Callable[[list[object], list[object]], object]:
        return _object_or_pairs if isinstance(map_type.key, t.StringType) else _pairs


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


def _decimal_printer(spark_type: t.DecimalType) -> Callable[..., str]:
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


_LEAVES: dict[type[t.SparkType], Callable[..., object]] = {
    t.StringType: _text,
    t.BinaryType: _base64,
    t.VariantType: variant_json,
    t.FloatType: _shortest_float,
    t.DateType: temporal.date_text,
    t.TimestampType: temporal.timestamp_text,
    t.TimestampNtzType: temporal.timestamp_ntz_text,
    t.TimeType: _time,
    t.YearMonthIntervalType: temporal.year_month_text,
    t.DayTimeIntervalType: temporal.day_time_text,
    t.CalendarIntervalType: lambda data: temporal.calendar_interval_text(read_calendar_interval(data)),
}
