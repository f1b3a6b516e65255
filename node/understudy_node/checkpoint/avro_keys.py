"""Encodes keys as Avro records, exactly as Spark does: a key that differs in one byte is another key. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from understudy_node.checkpoint.avro_records import fixed_size, is_union, require_avro
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.spark.layout import unscaled_of
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    LongType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
)

Write = Callable[[Any], bytes]

_NULL, _VALUE = b"\x00", b"\x02"
"""Branches of a column, as zig-zag varints of 0 and 1."""


class NoSuchKeyError(ValueError):
    """An element of an array is null: Spark writes no such key."""


def compile_avro_encoder(columns: StructType) -> Callable[[Sequence[object]], bytes]:
    """Compile a function from a row to its record. Raises UnsupportedError for columns that Avro state lacks."""
    require_avro(columns)
    return _struct_writer(columns)


def _struct_writer(columns: StructType) -> Callable[[Sequence[object]], bytes]:
    writers = [_union(_value_writer(each.type)) for each in columns.fields]
    return lambda row: b"".join([write(value) for write, value in zip(writers, row, strict=True)])


def _union(write_value: Write) -> Write:
    return lambda value: _NULL if value is None else _VALUE + write_value(value)


def _value_writer(kind: SparkType) -> Write:
    match kind:
        case StructType():
            return _struct_writer(kind)
        case ArrayType(element):
            write_element = _value_writer(element)
            return _array_writer(_union(write_element) if is_union(element) else _never_null(write_element))
        case DecimalType():
            size, unscaled = fixed_size(kind), unscaled_of(kind)
            return lambda value: unscaled(value).to_bytes(size, "big", signed=True)
        case MapType():  # in the order of Java's hash map
            raise UnsupportedError(
                "A key of Avro state with a map is not read",
                where=f"type {kind.name}",
                fix="Group by the entries of the map, or by a text of it",
            )
        case _:
            return _WRITERS[type(kind)]


def _never_null(write_value: Write) -> Write:
    def write(value: object) -> bytes:
        if value is None:
            raise NoSuchKeyError
        return write_value(value)

    return write


def _array_writer(write_element: Write) -> Write:
    def write(values: Sequence[object]) -> bytes:
        # One block with all elements, then the empty block that ends every array.
        head = _number(len(values)) if values else b""
        return head + b"".join(map(write_element, values)) + _number(0)

    return write


def _number(value: int) -> bytes:
    """Encode a zig-zag varint."""
    # Python's ints have no width: of a long the shift by 63 leaves 0 or -1, as in Java.
    raw, written = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


_WRITERS: Final[Mapping[type[SparkType], Write]] = MappingProxyType(
    {
        BooleanType: lambda value: b"\x01" if value else b"\x00",
        IntType: _number,
        LongType: _number,
        FloatType: struct.Struct("<f").pack,
        DoubleType: struct.Struct("<d").pack,
        # As rows are read: bytes that are not UTF-8 come back unchanged.
        StringType: lambda value: _sized(value.encode("utf-8", "surrogateescape")),
        BinaryType: _sized,
        DateType: _number,
        TimestampType: _number,
        TimestampNtzType: _number,
    }
)
