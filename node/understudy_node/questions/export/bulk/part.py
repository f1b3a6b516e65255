"""A part of an export, made slice by slice of many rows, each column at once: taken out of the rows' bytes as NumPy
arrays, without a Python value for each (pure).

`UnsafeRow` has a slot of eight bytes for each column, so a column is read by one call for all rows. The checks are
those of `row_reader`: rows that it would refuse are refused here, too.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from understudy_node.engine.scans import after_prefix, slices
from understudy_node.engine.view import StateView
from understudy_node.questions.export.bulk.pipe import PartCancelledError
from understudy_node.questions.export.parts import MadePart
from understudy_node.questions.scan.rows import RowMaker
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.base.words import StoreKind
from understudy_shared.questions.export.columns import PROBLEM, ExportColumns
from understudy_shared.questions.scan.page import Room
from understudy_shared.spark.types import SparkType, StructType, VoidType
from understudy_shared.spark.unsafe_row import bitmap_words, fixed_bytes, fixed_code

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_MARK: Final = os.urandom(8)
"""Bytes that no record has: those who write records do not know them."""

_MARK_NUMBER: Final = np.uint64(int.from_bytes(_MARK, "little"))


class UnfitRowsError(Exception):
    """Rows that do not fit their schema or a column. They are read one by one instead, which reports the error."""


class RowBlock(NamedTuple):
    """The bytes of many rows, and where in them each row is."""

    data: U8
    starts: I64
    sizes: I64
    stride: int | None
    """Distance between two rows, if it is the same for all."""


class FixedCells(NamedTuple):
    """A column whose values are in their slots."""

    values: npt.NDArray[Any]
    nulls: Mask | None


class VariableCells(NamedTuple):
    """A column whose values are after the slots, `sizes[i]` bytes at `starts[i]` of the block's data; 0 for a null."""

    data: U8
    starts: I64
    sizes: I64
    nulls: Mask | None

    def pieces(self) -> list[bytes]:
        whole = self.data.tobytes()
        return [whole[at : at + size] for at, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True)]


AnyCells = FixedCells | VariableCells


def blocks_of(records: Sequence[bytes], skip: int) -> tuple[RowBlock, RowBlock]:
    """Return the rows of keys and of values, from a flat list of records; each without its first `skip` bytes."""
    even = _even_blocks(records, skip)
    if even is not None:
        return even
    data = np.frombuffer(b"".join(records), np.uint8)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    starts = np.cumsum(sizes) - sizes + skip
    return RowBlock(data, starts[::2], sizes[::2] - skip, None), RowBlock(data, starts[1::2], sizes[1::2] - skip, None)


def _even_blocks(records: Sequence[bytes], skip: int) -> tuple[RowBlock, RowBlock] | None:
    """Return the same if all keys are equally long, and all values, too; None if they are not.

    Reading each record's size takes longer than joining the records. So they are joined with marks. If each mark is
    where it would be with one size for all keys and one for all values, no record is longer or shorter.
    """
    count, key_size, value_size = len(records) // 2, len(records[0]), len(records[1])
    if (len(records[-2]), len(records[-1])) != (key_size, value_size):
        return None
    data = np.frombuffer(_MARK.join(records), np.uint8)
    value_at = key_size + len(_MARK)
    stride = value_at + value_size + len(_MARK)
    if len(data) != count * stride - len(_MARK):
        return None
    for first, marks in ((key_size, count), (value_at + value_size, count - 1)):
        if marks and bool((np.ndarray((marks,), "<u8", data.data, first, (stride,)) != _MARK_NUMBER).any()):
            return None
    starts = np.arange(count) * stride + skip
    keys = RowBlock(data, starts, np.full(count, key_size - skip), stride)
    return keys, RowBlock(data, starts + value_at, np.full(count, value_size - skip), stride)


class NullBits(NamedTuple):
    """The null bits of many rows, word by word, and those that any row has."""

    words: Sequence[npt.NDArray[np.uint64]]
    of_any: Sequence[int]


class RowColumns:
    """The reader of columns from rows of one schema."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._fixed_bytes = fixed_bytes(schema)
        self._words = bitmap_words(len(schema.fields))
        self._codes = [fixed_code(field.type) for field in schema.fields]
        self._has_variable = any(
            code is None and not isinstance(field.type, VoidType)
            for code, field in zip(self._codes, schema.fields, strict=True)
        )

    def check(self, block: RowBlock) -> NullBits:
        """Return the null bits of all rows. Raises UnfitRowsError for rows that are of another schema."""
        sizes, fixed = block.sizes if block.stride is None else block.sizes[:1], self._fixed_bytes
        unfit = ((sizes < fixed) | (sizes & 7 != 0)) if self._has_variable else sizes != fixed
        if unfit.any():
            raise UnfitRowsError
        words = [_slots(block, "<u8", 8 * word) for word in range(self._words)]
        bits = NullBits(words, [int(np.bitwise_or.reduce(word)) for word in words])
        unused = len(self._schema.fields) % 64
        if unused and bits.of_any[-1] >> unused:
            raise UnfitRowsError
        return bits

    def cells(self, block: RowBlock, bits: NullBits, index: int) -> AnyCells:
        """Return a column. `bits` are what `check` returned."""
        nulls: Mask | None = None
        if bits.of_any[index // 64] >> index % 64 & 1:
            nulls = (bits.words[index // 64] & np.uint64(1 << index % 64)) != 0
        at = 8 * (self._words + index)
        code = self._codes[index]
        if isinstance(self._schema.fields[index].type, VoidType):
            return FixedCells(np.zeros(len(block.starts), np.int8), np.ones(len(block.starts), np.bool_))
        if code is not None:
            return FixedCells(_slots(block, _dtype(code), at), nulls)
        sizes, offsets = _slots(block, "<u4", at).astype(np.int64), _slots(block, "<u4", at + 4).astype(np.int64)
        if nulls is not None:
            sizes[nulls], offsets[nulls] = 0, self._fixed_bytes
        if bool(((offsets < self._fixed_bytes) | (offsets + sizes > block.sizes)).any()):
            raise UnfitRowsError
        return VariableCells(block.data, block.starts + offsets, sizes, nulls)


def is_ascii(data: U8) -> bool:
    return not len(data) or int(data.max()) < 0x80


def is_text(data: U8) -> bool:
    if is_ascii(data):
        return True
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def values_of(cells: FixedCells) -> I64:
    """Return the whole numbers of a column; 0 for a null."""
    values = cells.values.astype(np.int64)
    return values if cells.nulls is None else np.where(cells.nulls, 0, values)


def printed(print_cell: Callable[[Any], object], cells: AnyCells) -> list[object]:
    """Return what is printed for each cell, value by value; None for a null. Raises UnfitRowsError where that fails."""
    raw = cells.values.tolist() if isinstance(cells, FixedCells) else cells.pieces()
    if cells.nulls is not None:
        raw = [None if is_null else each for each, is_null in zip(raw, cells.nulls.tolist(), strict=True)]
    try:
        return [None if each is None else print_cell(each) for each in raw]
    except CorruptFileError:
        raise UnfitRowsError from None


def _slots(block: RowBlock, dtype: str, at: int) -> npt.NDArray[Any]:
    """Return what is `at` bytes after the start of each row."""
    size = np.dtype(dtype).itemsize
    count = len(block.starts)
    if not count:
        return np.zeros(0, dtype)
    if block.stride is not None:
        first = int(block.starts[0]) + at
        return np.ndarray((count,), dtype, block.data.data, first, (block.stride,)).copy()
    return np.ndarray((len(block.data) - size + 1,), dtype, block.data.data, strides=(1,))[block.starts + at]


def _dtype(code: str) -> str:
    return {"?": "u1", "b": "i1", "h": "<i2", "i": "<i4", "q": "<i8", "f": "<f4", "d": "<f8"}[code]


SHORT_BYTES: Final = 32
"""Mean size up to which NumPy gathers texts byte by byte. Its index takes sixteen bytes for each."""


def joined(cells: VariableCells, *, before: int = 0, behind: int = 0, fill: int = 0) -> tuple[U8, I64]:
    """Return the bytes of all cells in a row, with room around each that is filled with `fill`, and where each begins,
    its room before included.
    """
    sizes = cells.sizes
    count, total = len(sizes), int(sizes.sum())
    out = _even(cells, before, behind, fill) if count else None
    if out is None:
        is_short = total <= SHORT_BYTES * count
        out = _gathered(cells, before, behind, fill) if is_short else _concatenated(cells, before, behind, fill)
    takes = sizes + (before + behind)
    return out, np.cumsum(takes) - takes


def _even(cells: VariableCells, before: int, behind: int, fill: int) -> U8 | None:
    """Join cells of one size at equal distances, such as identifiers; None for others."""
    sizes, starts = cells.sizes, cells.starts
    count, size = len(sizes), int(sizes[0])
    distances = np.diff(starts)
    if bool((sizes != size).any()) or (count > 1 and bool((distances != distances[0]).any())):
        return None
    strides = (int(distances[0]) if count > 1 else 0, 1)
    out = np.full((count, before + size + behind), fill, np.uint8)
    out[:, before : before + size] = np.ndarray((count, size), np.uint8, cells.data.data, int(starts[0]), strides)
    return out.reshape(-1)


def _gathered(cells: VariableCells, before: int, behind: int, fill: int) -> U8:
    sizes, room = cells.sizes, before + behind
    count, total = len(sizes), int(sizes.sum())
    places = np.arange(total)
    begins = np.cumsum(sizes) - sizes
    chars = cells.data[np.repeat(cells.starts - begins, sizes) + places]
    if not room:
        return chars
    out = np.full(total + room * count, fill, np.uint8)
    out[np.repeat(np.arange(count) * room + before, sizes) + places] = chars
    return out


def _concatenated(cells: VariableCells, before: int, behind: int, fill: int) -> U8:
    filling = bytes([fill])
    between = (filling * (behind + before)).join(cells.pieces())
    return np.frombuffer(bytearray(b"%b%b%b" % (filling * before, between, filling * behind)), np.uint8)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a row. `name` is that in its part, `index` its place in the stored row."""

    part: Literal["key", "value"]
    name: str
    index: int
    type: SparkType


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a question wants of a store. `skip` is the size of the provider's prefix of a row."""

    columns: tuple[TableColumn, ...]
    has_value: bool
    """Whether a row has the member `value`, with however many columns."""
    skip: int
    keys: RowColumns
    values: RowColumns | None
    """None where values are not looked at: those of a set say nothing."""

    def cells(self, records: Sequence[bytes]) -> list[AnyCells]:
        """Return the columns of a flat list of records. Raises UnfitRowsError where they have to be read row by row."""
        keys, values = blocks_of(records, self.skip)
        found: list[AnyCells] = []
        for part, reader, rows in (("key", self.keys, keys), ("value", self.values, values)):
            if reader is not None:
                bits = reader.check(rows)
                found += [reader.cells(rows, bits, each.index) for each in self.columns if each.part == part]
        return found


def table_of(maker: RowMaker, columns: ExportColumns) -> Projection | None:
    """Return the columns of a question; None where rows are not printed as they are stored, or some are left out."""
    reader, store = maker.reader, maker.reader.store
    is_stored = all(each.path[0] in {"key", "value", PROBLEM} for each in columns.columns)
    if store.make_finder is not None or maker.is_filtered or maker.only_counts or not is_stored:
        return None
    wanted = {each.path for each in columns.columns}
    has_value = store.kind is StoreKind.VALUE and (maker.fields is None or "value" in maker.fields)
    keys = zip(store.codec.names, store.codec.key.fields, strict=True)
    values = zip(store.value_names, store.value_schema.fields, strict=True)
    found = [TableColumn("key", name, at, each.type) for at, (name, each) in enumerate(keys)]
    if store.kind is StoreKind.VALUE:
        found += [TableColumn("value", name, at, each.type) for at, (name, each) in enumerate(values)]
    chosen = tuple(each for each in found if (each.part, each.name) in wanted)
    stored = RowColumns(store.value_schema) if store.kind is StoreKind.VALUE else None
    return Projection(chosen, has_value, len(reader.row_prefix), RowColumns(store.codec.key), stored)


PIECES: Final = 8
"""Number of pieces in which a full part is made: little more is printed of long rows than there is room for."""

HasLeft = Callable[[], bool]
"""A function that says whether the reader of a part has left."""


class PartPiece(NamedTuple):
    """Some rows in their form, and about how many bytes of the part they take."""

    made: object
    rows: int
    size_bytes: int


class Form(ABC):
    """A form of rows."""

    @abstractmethod
    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        """Print rows. Raises UnfitRowsError for those that have to be printed one by one."""

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        """Return the bytes of a part, of what was made of its slices: here lines."""
        return tuple(cast(bytes, piece.made) for piece in pieces)


def stays() -> bool:
    return False


def fast_part(  # noqa: PLR0917  # the last has a default
    table: Projection, form: Form, view: StateView, after: bytes | None, room: Room, has_left: HasLeft = stays
) -> MadePart:
    """Make the part after the key `after`. Raises UnfitRowsError if its first rows have to be read one by one, and
    PartCancelledError.
    """
    pieces: list[PartPiece] = []
    assert room.rows, "a part has room for a row"
    found = size_bytes = 0
    is_end = True
    for records in _behind(view, after, room.bytes // PIECES):
        if has_left():
            raise PartCancelledError
        if found and (found == room.rows or monotonic() >= room.until_s):
            is_end = False
            break
        wanted = records[: 2 * (room.rows - found)]
        try:
            fitting = _fitting(table, form, wanted, room.bytes - size_bytes, must=not found)
        except UnfitRowsError:
            if not found:
                raise
            fitting = None  # the next part begins with them
        if fitting is None:
            is_end = False
            break
        pieces.append(fitting)
        found += fitting.rows
        size_bytes += fitting.size_bytes
        after = records[2 * fitting.rows - 2]
        if 2 * fitting.rows < len(records):
            is_end = False
            break
    return MadePart(form.payload(pieces), found, found, None if is_end else after, is_end)


def _behind(view: StateView, after: bytes | None, slice_bytes: int) -> Iterator[list[bytes]]:
    start = None if after is None else after_prefix(after)
    if after is not None and start is None:
        return iter(())  # no key is after it
    return slices(view, start, slice_bytes=slice_bytes)


def _fitting(table: Projection, form: Form, records: list[bytes], room_bytes: int, *, must: bool) -> PartPiece | None:
    """Print the first rows, as many as fit; None if even the first does not fit, unless the part `must` have it."""
    while count := len(records) // 2:
        piece = form.piece(table.cells(records), count)
        if piece.size_bytes <= room_bytes or (must and count == 1):
            return piece
        # Rows are about equally long: most often the next try fits.
        records = records[: 2 * max(min(count - 1, count * room_bytes // piece.size_bytes), 1 if must else 0)]
    return None
