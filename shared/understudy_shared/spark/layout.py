"""The layout of types in an UnsafeRow: in a slot of their own width, or in the variable region behind an (offset, size)
slot (`org.apache.spark.sql.catalyst.expressions.UnsafeRow`, `UnsafeArrayData`).

Pure. Everything is little-endian; a row is a null bitmap in 8-byte words, one 8-byte slot per field, then the variable
region, every piece of it padded to 8 bytes. Offsets count from the start of their row (or array).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import cast

from understudy_shared.spark.types import (
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    LongType,
    ShortType,
    SparkType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    YearMonthIntervalType,
)

PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""Padding bytes: `PADDING[size & 7]` completes `size` bytes to whole words."""
RESERVED_BYTES = 16
"""Size of a wide decimal or calendar interval in a row's variable region, null or not."""
CALENDAR_INTERVAL = struct.Struct("<iiq")
DECIMAL_CONTEXT = Context(prec=100)
"""Decimal arithmetic on 38-digit values must not round to the default 28 digits."""

_FIXED_CODES: dict[type[SparkType], str] = {
    BooleanType: "?",
    ByteType: "b",
    ShortType: "h",
    IntType: "i",
    DateType: "i",
    YearMonthIntervalType: "i",
    LongType: "q",
    TimestampType: "q",
    TimestampNtzType: "q",
    TimeType: "q",
    DayTimeIntervalType: "q",
    FloatType: "f",
    DoubleType: "d",
}


def fixed_code(spark_type: SparkType) -> str | None:
    """Return the `struct` code of a type stored in its slot; None for a type stored in the variable region."""
    if isinstance(spark_type, DecimalType):
        return None if spark_type.is_wide else "q"
    return _FIXED_CODES.get(type(spark_type))


def is_reserved(spark_type: SparkType) -> bool:
    """Whether Spark updates the variable part in place, so that even a null occupies its bytes in a row."""
    return isinstance(spark_type, CalendarIntervalType) or (isinstance(spark_type, DecimalType) and spark_type.is_wide)


def bitmap_words(count: int) -> int:
    return (count + 63) // 64


def fixed_bytes(struct_type: StructType) -> int:
    """Return the offset of the variable region of a row."""
    count = len(struct_type.fields)
    return 8 * (bitmap_words(count) + count)


def unscaled_of(decimal_type: DecimalType) -> Callable[[Decimal], int]:
    """Build the function from a Decimal to the integer that Spark stores; the value must fit the scale."""
    scale = decimal_type.scale

    def unscaled(value: Decimal) -> int:
        return int(value.scaleb(scale, DECIMAL_CONTEXT))

    return unscaled


def decimal_of(decimal_type: DecimalType) -> Callable[[int], Decimal]:
    scale = -decimal_type.scale

    def decimal(unscaled: int) -> Decimal:
        return Decimal(unscaled).scaleb(scale, DECIMAL_CONTEXT)

    return decimal


def signed_big_endian(value: int) -> bytes:
    """Return the bytes of Java's `BigInteger.toByteArray`: two's complement, as few bytes as hold the sign."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


class Source:
    """Python source of one function, grown line by line, with the objects that it refers to.

    Compiling per schema removes every per-column decision from the hot path: it is 3-5 times faster than closures.
    """

    def __init__(self, signature: str) -> None:
        self._lines = [f"def {signature}:"]
        self._names: dict[str, object] = {}
        self._function = signature.partition("(")[0]

    def bind(self, value: object) -> str:
        """Make an object available inside the function, and return its name there."""
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def add(self, text: str, depth: int = 1) -> None:
        self._lines.append("    " * depth + text)

    def compile(self) -> Callable[..., object]:
        # Safe to run: column names enter the text only as repr() literals.
        exec("\n".join(self._lines), self._names)  # noqa: S102
        return cast(Callable[..., object], self._names[self._function])
