"""Converts UnsafeRow bytes to and from Python values, compiled once per schema.

Pure. Representation: integers, dates (days), timestamps (micros), times (nanos) and intervals (months or micros) are
`int`; a calendar interval is `(months, days, micros)`; decimals are `Decimal`, strings `str`, binary `bytes`; a struct
is a tuple, an array a list, a map a list of pairs, null is None. Strings that are not UTF-8 keep their bytes as
surrogate escapes, so that encoding a decoded row gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.layout import CALENDAR_INTERVAL, RESERVED_BYTES, decimal_of
from understudy_shared.spark.row_reader import Leaf, compile_reader
from understudy_shared.spark.row_writer import RowEncoder, compile_row_encoder
from understudy_shared.spark.types import (
    CalendarIntervalType,
    DecimalType,
    MapType,
    SparkType,
    StringType,
    StructType,
)

__all__ = [
    "RowDecoder",
    "RowEncoder",
    "compile_row_decoder",
    "compile_row_encoder",
    "read_calendar_interval",
    "read_unscaled",
]

RowDecoder = Callable[[bytes], tuple[object, ...]]


def compile_row_decoder(struct_type: StructType) -> RowDecoder:
    """Compile a function from UnsafeRow bytes to one value per field; it raises `CorruptFileError` when the bytes are
    not such a row.
    """
    return cast(RowDecoder, compile_reader(struct_type, _PythonValues()))


def read_unscaled(data: bytes) -> int:
    """Return the unscaled integer of a wide decimal."""
    if not 0 < len(data) <= RESERVED_BYTES:
        raise CorruptFileError(f"a decimal has {len(data)} bytes", where="a row", fix="The file is damaged")
    return int.from_bytes(data, "big", signed=True)


def read_calendar_interval(data: bytes) -> tuple[int, int, int]:
    if len(data) != RESERVED_BYTES:
        raise CorruptFileError(f"a calendar interval has {len(data)} bytes", where="a row", fix="The file is damaged")
    return CALENDAR_INTERVAL.unpack(data)


class _PythonValues:
    """The flavour of plain Python values, for computations."""

    def leaf(self, spark_type: SparkType) -> Leaf | None:
        match spark_type:
            case StringType():
                return Leaf(str, "{x}.decode('utf-8', 'surrogateescape')")
            case DecimalType():
                decimal = decimal_of(spark_type)
                return Leaf(lambda data: decimal(read_unscaled(data))) if spark_type.is_wide else Leaf(decimal)
            case CalendarIntervalType():
                return Leaf(read_calendar_interval)
            case _:
                return None

    def struct_literal(self, struct_type: StructType, variables: Sequence[str]) -> str:
        return f"({''.join(f'{variable}, ' for variable in variables)})"

    def map_builder(self, map_type: MapType) -> Callable[[list[object], list[object]], object]:
        return lambda keys, values: list(zip(keys, values, strict=True))
