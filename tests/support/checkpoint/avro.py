"""Writes Avro records as Spark does, independently of the code that reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    SparkType,
    StringType,
    StructType,
)
from understudy_shared.spark.unsafe_row import DECIMAL_CONTEXT


def record(columns: StructType, row: Sequence[object]) -> bytes:
    """The columns one behind the other."""
    return b"".join(column(each.type, value) for each, value in zip(columns.fields, row, strict=True))


def column(kind: SparkType, value: Any) -> bytes:
    """A value behind its branch, as every column is; a column without nulls, too."""
    return b"\x00" if value is None else b"\x02" + _value(kind, value)


def _element(kind: SparkType, value: Any) -> bytes:
    """Elements have a branch only where they are structs, arrays or maps."""
    return column(kind, value) if isinstance(kind, StructType | ArrayType | MapType) else _value(kind, value)


def number(value: int) -> bytes:
    """Zig-zag, seven bits a byte, the lowest first."""
    raw = 2 * value if value >= 0 else -2 * value - 1
    groups = [raw >> shift & 0x7F for shift in range(0, max(raw.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def fixed_bytes(precision: int) -> int:
    """The fewest bytes that hold 10 to the precision, less one, with a sign."""
    size = 1
    while 1 << 8 * size - 1 < 10**precision:
        size += 1
    return size


def _value(kind: SparkType, value: Any) -> bytes:
    match kind:
        case StructType():
            return record(kind, value)
        case ArrayType(element):
            return _blocks([_element(element, each) for each in value])
        case MapType(key, mapped):
            return _blocks([_value(key, k) + _element(mapped, v) for k, v in value])
        case DecimalType(precision, scale):
            unscaled = int(Decimal(value).scaleb(scale, DECIMAL_CONTEXT))
            return unscaled.to_bytes(fixed_bytes(precision), "big", signed=True)
        case StringType():
            text: bytes = value.encode()
            return number(len(text)) + text
        case BinaryType():
            return number(len(value)) + bytes(value)
        case FloatType():
            return struct.pack("<f", value)
        case DoubleType():
            return struct.pack("<d", value)
        case BooleanType():
            return bytes([bool(value)])
        case _:
            return number(value)


def _blocks(items: Sequence[bytes]) -> bytes:
    return (number(len(items)) + b"".join(items) if items else b"") + number(0)
