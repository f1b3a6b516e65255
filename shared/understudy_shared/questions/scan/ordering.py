"""The order of rows by columns: bytes that compare as Spark's ORDER BY does (pure).

Nulls come first, NaN is the greatest number, -0.0 is 0.0, texts compare by their UTF-8 bytes, structs field by field.
Descending order is the exact reverse. The bytes of several columns are put one behind the other, and those of no value
are the beginning of another's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from understudy_shared.questions.scan.where import order_of
from understudy_shared.spark.layout import unscaled_of
from understudy_shared.spark.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    SparkType,
    StringType,
    StructType,
)

OrderBytes = Callable[[Any], bytes]
"""A function from a value, which may be null, to its bytes."""

_NULL: Final = b"\x00"
_GIVEN: Final = b"\x01"
_DOUBLE: Final = struct.Struct(">d")
_NAN: Final = b"\xff" * 8
_ENDS: Final = b"\x00\x00"
"""The end of a text; a zero byte inside it is followed by 0xff, which is greater."""


def compile_order(spark_type: SparkType) -> OrderBytes | None:
    """Compile the order of a type; None for a type whose values are not ordered here."""
    given = _order_of_struct(spark_type) if isinstance(spark_type, StructType) else _order_of_scalar(spark_type)
    return None if given is None else lambda value: _NULL if value is None else _GIVEN + given(value)


def _order_of_struct(spark_type: StructType) -> OrderBytes | None:
    fields = [compile_order(field.type) for field in spark_type.fields]
    known = [each for each in fields if each is not None]
    if len(known) < len(fields):
        return None
    return lambda row: b"".join([order(value) for order, value in zip(known, row, strict=True)])


def _order_of_scalar(spark_type: SparkType) -> OrderBytes | None:
    if order_of(spark_type) is None:
        return None
    match spark_type:
        case FloatType() | DoubleType():
            return _float
        case StringType():
            return lambda text: _text(text.encode("utf-8", "surrogateescape"))
        case BinaryType():
            return _text
        case DecimalType():
            unscaled = unscaled_of(spark_type)
            return lambda value: (unscaled(value) + (1 << 127)).to_bytes(16)
        case _:
            return lambda value: (int(value) + (1 << 63)).to_bytes(8)


def _float(value: float) -> bytes:
    if value != value:  # noqa: PLR0124  # NaN
        return _NAN
    packed = _DOUBLE.pack(value + 0.0)  # -0.0 + 0.0 is 0.0
    if packed[0] & 0x80:
        return bytes(255 - byte for byte in packed)
    return bytes([packed[0] | 0x80]) + packed[1:]


def _text(raw: bytes) -> bytes:
    return raw.replace(b"\x00", b"\x00\xff") + _ENDS
