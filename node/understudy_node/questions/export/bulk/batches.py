"""Arrow record batches made from the cells of columns, without a Python value for each: equal to those of `ArrowRows`
(pure).

The cells of a slice become a chunk: checked, but not an array yet. The chunks of a part become one array, so pyarrow is
called once for each column. It is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from understudy_node.questions.export.bulk.part import (
    U8,
    AnyCells,
    FixedCells,
    Form,
    Mask,
    PartPiece,
    Projection,
    UnfitRowsError,
    VariableCells,
    is_ascii,
    is_text,
    joined,
    printed,
    values_of,
)
from understudy_shared.questions.export.columns import PROBLEM, ExportColumns, arrow_schema
from understudy_shared.spark.arrow import arrow_type
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
    VariantType,
    VoidType,
    YearMonthIntervalType,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Chunk(NamedTuple):
    """The cells of a column in a slice, as an array will hold them: `values` are numbers, or the bytes of texts, each
    of which has one of `sizes`. `size_bytes` is what they take of an array.
    """

    values: npt.NDArray[Any]
    sizes: npt.NDArray[np.int64] | None
    nulls: Mask | None
    size_bytes: int


class ArrowColumn(NamedTuple):
    """The two steps from the cells of a column to its array."""

    chunk: Callable[[Any], Chunk]
    """Raises UnfitRowsError for cells that Arrow cannot hold."""
    array: Callable[[Sequence[Chunk]], Any]


def arrow_column(spark_type: SparkType) -> ArrowColumn | None:
    """Return how a column's arrays are made; None for nested types."""
    kind = arrow_type(spark_type)
    numbers = partial(_array_of_numbers, kind)
    match spark_type:
        case StructType() | ArrayType() | MapType():
            return None
        case VoidType():
            return ArrowColumn(_voids, _array_of_voids)
        case BooleanType():
            return ArrowColumn(_booleans, partial(_array_of_booleans, kind))
        case StringType() | BinaryType():
            chunk = partial(_bytes, is_string=isinstance(spark_type, StringType))
            return ArrowColumn(chunk, partial(_array_of_texts, kind))
        case DecimalType():
            return ArrowColumn(partial(_wide_decimals if spark_type.is_wide else _decimals, kind), numbers)
        case YearMonthIntervalType() | CalendarIntervalType() | VariantType():
            return ArrowColumn(partial(_texts, compile_json_cell(spark_type)), partial(_array_of_texts, kind))
        case TimeType():
            return ArrowColumn(_times, numbers)
        case _:
            return ArrowColumn(_numbers, numbers)


def _fixed(cells: AnyCells) -> FixedCells:
    assert isinstance(cells, FixedCells), "what is in slots"
    return cells


def _chunk(values: npt.NDArray[Any], nulls: Mask | None) -> Chunk:
    return Chunk(values, None, nulls, values.nbytes + _bits_bytes(nulls))


def _bits_bytes(nulls: Mask | None) -> int:
    return 0 if nulls is None else (len(nulls) + 7) // 8


def _voids(cells: AnyCells) -> Chunk:
    return Chunk(_fixed(cells).values, None, None, 0)


def _numbers(cells: AnyCells) -> Chunk:
    return _chunk(_fixed(cells).values, cells.nulls)


def _times(cells: AnyCells) -> Chunk:
    nanos = values_of(_fixed(cells))
    if bool(((nanos < 0) | (nanos >= NANOS_PER_DAY)).any()):
        raise UnfitRowsError
    return _chunk(nanos, cells.nulls)


def _booleans(cells: AnyCells) -> Chunk:
    values = _fixed(cells).values != 0
    return Chunk(values, None, cells.nulls, (len(values) + 7) // 8 + _bits_bytes(cells.nulls))


def _bytes(cells: VariableCells, *, is_string: bool) -> Chunk:
    chars, begins = joined(cells)
    if is_string and not is_ascii(chars):
        inside = chars[begins[cells.sizes > 0]] & _CONTINUATION_MASK == _CONTINUATION
        if bool(inside.any()) or not is_text(chars):
            raise UnfitRowsError
    return _chunk_of_texts(chars, cells.sizes, cells.nulls)


def _chunk_of_texts(chars: U8, sizes: npt.NDArray[np.int64], nulls: Mask | None) -> Chunk:
    return Chunk(chars, sizes, nulls, 4 * len(sizes) + len(chars) + _bits_bytes(nulls))


def _decimals(kind: pa.DataType, cells: AnyCells) -> Chunk:
    unscaled = values_of(_fixed(cells))
    limit = 10**kind.precision
    if bool(((unscaled >= limit) | (unscaled <= -limit)).any()):
        raise UnfitRowsError
    return _chunk(np.stack((unscaled, unscaled >> 63), axis=1), cells.nulls)


def _wide_decimals(kind: pa.DataType, cells: VariableCells) -> Chunk:
    limit = 10**kind.precision
    unscaled = [int.from_bytes(piece, "big", signed=True) for piece in cells.pieces()]
    sizes = cells.sizes if cells.nulls is None else cells.sizes[~cells.nulls]
    if bool((sizes == 0).any()) or not all(-limit < each < limit for each in unscaled):
        raise UnfitRowsError
    halves = b"".join(each.to_bytes(16, "little", signed=True) for each in unscaled)
    return _chunk(np.frombuffer(halves, np.int64).reshape(-1, 2), cells.nulls)


def _texts(print_cell: Callable[[Any], object], cells: AnyCells) -> Chunk:
    """Make texts of what is printed for each cell."""
    texts = ["" if each is None else str(each) for each in printed(print_cell, cells)]
    pieces = [text.encode() for text in texts]
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return _chunk_of_texts(np.frombuffer(b"".join(pieces), np.uint8), sizes, cells.nulls)


def _array_of_voids(chunks: Sequence[Chunk]) -> Any:
    return _pyarrow().nulls(sum(len(each.values) for each in chunks))


def _array_of_booleans(kind: pa.DataType, chunks: Sequence[Chunk]) -> Any:
    values = np.concatenate([each.values for each in chunks])
    return _array(kind, len(values), chunks, np.packbits(values, bitorder="little"))


def _array_of_numbers(kind: pa.DataType, chunks: Sequence[Chunk]) -> Any:
    values = np.concatenate([each.values for each in chunks])
    return _array(kind, len(values), chunks, values)


def _array_of_texts(kind: pa.DataType, chunks: Sequence[Chunk]) -> Any:
    sizes = np.concatenate([each.sizes for each in chunks if each.sizes is not None])
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return _array(kind, len(sizes), chunks, offsets, np.concatenate([each.values for each in chunks]))


def _array(kind: pa.DataType, count: int, chunks: Sequence[Chunk], *buffers: npt.NDArray[Any]) -> Any:
    pa = _pyarrow()
    validity = None
    if any(each.nulls is not None for each in chunks):
        valid = [_valid(each) for each in chunks]
        validity = pa.py_buffer(np.packbits(np.concatenate(valid), bitorder="little"))
    return pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, buffers)])


def _valid(chunk: Chunk) -> Mask:
    if chunk.nulls is not None:
        return ~chunk.nulls
    return np.ones(len(chunk.values) if chunk.sizes is None else len(chunk.sizes), np.bool_)


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa


_CONTINUATION, _CONTINUATION_MASK = 0x80, 0xC0
"""The bits by which a byte inside a character of UTF-8 is known."""


class ArrowBatches(Form):
    """The form of Arrow: one record batch for a part."""

    def __init__(self, columns: ExportColumns, made: Mapping[tuple[str, ...], ArrowColumn]) -> None:
        self._columns = columns
        self._made = made
        self._schema = arrow_schema(columns, {})

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        chunks = [made.chunk(column) for made, column in zip(self._made.values(), cells, strict=True)]
        return PartPiece(chunks, count, sum(chunk.size_bytes for chunk in chunks))

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        if not pieces:
            return ()
        import pyarrow as pa  # noqa: PLC0415

        columns = zip(*(cast("list[Chunk]", piece.made) for piece in pieces), strict=True)
        arrays = {path: made.array(chunks) for (path, made), chunks in zip(self._made.items(), columns, strict=True)}
        arrays[PROBLEM,] = pa.nulls(sum(piece.rows for piece in pieces), pa.string())
        placed = [
            arrays[field.name,] if (field.name,) in arrays else self._struct(field, arrays) for field in self._schema
        ]
        return (memoryview(pa.record_batch(placed, schema=self._schema).serialize()),)

    def _struct(self, field: Any, arrays: Mapping[tuple[str, ...], Any]) -> Any:
        """Return the array of a part, of those of its columns; of a flat column its own."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return next(array for path, array in arrays.items() if path[-1] == field.name)
        inner = [array for path, array in arrays.items() if path[0] == field.name]
        return pa.StructArray.from_arrays(inner, fields=list(field.type))


def arrow_batches(table: Projection, columns: ExportColumns) -> ArrowBatches | None:
    """Return the form of a table; None where a column's values have to be made one by one."""
    found: dict[tuple[str, ...], ArrowColumn] = {}
    for each in table.columns:
        made = arrow_column(each.type)
        if made is None:
            return None
        found[each.part, each.name] = made
    return ArrowBatches(columns, found)
