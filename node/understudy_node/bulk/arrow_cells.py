"""Arrow arrays of a column's cells, without a Python value for each: equal to those of `ArrowRows` (pure).

pyarrow is imported by the first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy_node.bulk.cells import (
    AnyCells,
    FixedCells,
    Mask,
    UnfitRowsError,
    VariableCells,
    is_text,
    printed,
    values_of,
)
from understudy_node.bulk.joining import joined
from understudy_shared.spark.arrow_types import arrow_type
from understudy_shared.spark.json_printer import compile_json_cell
from understudy_shared.spark.temporal import NANOS_PER_DAY
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DecimalType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
)

if TYPE_CHECKING:
    import pyarrow as pa

MakeArray = Callable[[AnyCells], Any]

_CONTINUATION, _CONTINUATION_MASK = 0x80, 0xC0
"""The bits by which a byte inside a character of UTF-8 is known."""


def arrow_maker(spark_type: SparkType) -> MakeArray | None:
    """Return the maker of a column's arrays; None for nested types. It raises UnfitRowsError for cells that Arrow
    cannot hold.
    """
    kind = arrow_type(spark_type)
    match spark_type:
        case StructType() | ArrayType() | MapType():
            return None
        case VoidType():
            return lambda cells: _pyarrow().nulls(len(_fixed(cells).values))
        case BooleanType():
            return partial(_booleans, kind)
        case StringType() | BinaryType():
            return partial(_bytes, kind, is_string=isinstance(spark_type, StringType))
        case DecimalType():
            return partial(_wide_decimals if spark_type.is_wide else _decimals, kind)
        case YearMonthIntervalType() | CalendarIntervalType():
            return partial(_texts, kind, compile_json_cell(spark_type))
        case TimeType():
            return partial(_times, kind)
        case _:
            return partial(_numbers, kind)


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa


def _fixed(cells: AnyCells) -> FixedCells:
    assert isinstance(cells, FixedCells), "what is in slots"
    return cells


def _array(kind: pa.DataType, count: int, nulls: Mask | None, *buffers: Any) -> Any:
    pa = _pyarrow()
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, buffers)])


def _numbers(kind: pa.DataType, cells: AnyCells) -> Any:
    values = _fixed(cells).values
    return _array(kind, len(values), cells.nulls, np.ascontiguousarray(values))


def _times(kind: pa.DataType, cells: AnyCells) -> Any:
    nanos = values_of(_fixed(cells))
    if bool(((nanos < 0) | (nanos >= NANOS_PER_DAY)).any()):
        raise UnfitRowsError
    return _array(kind, len(nanos), cells.nulls, nanos)


def _booleans(kind: pa.DataType, cells: AnyCells) -> Any:
    values = _fixed(cells).values
    return _array(kind, len(values), cells.nulls, np.packbits(values != 0, bitorder="little"))


def _bytes(kind: pa.DataType, cells: VariableCells, *, is_string: bool) -> Any:
    chars, begins = joined(cells)
    if is_string:
        inside = chars[begins[cells.sizes > 0]] & _CONTINUATION_MASK == _CONTINUATION
        if bool(inside.any()) or not is_text(chars):
            raise UnfitRowsError
    offsets = np.append(begins, len(chars)).astype(np.int32)
    return _array(kind, len(begins), cells.nulls, offsets, chars)


def _decimals(kind: pa.DataType, cells: AnyCells) -> Any:
    unscaled = values_of(_fixed(cells))
    limit = 10**kind.precision
    if bool(((unscaled >= limit) | (unscaled <= -limit)).any()):
        raise UnfitRowsError
    halves = np.stack((unscaled, unscaled >> 63), axis=1)
    return _array(kind, len(unscaled), cells.nulls, np.ascontiguousarray(halves))


def _wide_decimals(kind: pa.DataType, cells: VariableCells) -> Any:
    limit = 10**kind.precision
    unscaled = [int.from_bytes(piece, "big", signed=True) for piece in cells.pieces()]
    sizes = cells.sizes if cells.nulls is None else cells.sizes[~cells.nulls]
    if bool((sizes == 0).any()) or not all(-limit < each < limit for each in unscaled):
        raise UnfitRowsError
    return _array(
        kind, len(unscaled), cells.nulls, b"".join(each.to_bytes(16, "little", signed=True) for each in unscaled)
    )


def _texts(kind: pa.DataType, print_cell: Callable[[Any], object], cells: AnyCells) -> Any:
    """Make texts of what is printed for each cell."""
    return _pyarrow().array(printed(print_cell, cells), kind)
