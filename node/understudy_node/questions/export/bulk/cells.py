"""The columns of many rows, as NumPy arrays: taken out of the rows' bytes without a Python value for each (pure).

`UnsafeRow` has a slot of eight bytes for each column, so a column is read by one call for all rows. The checks are
those of `row_reader`: rows that it would refuse are refused here, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.layout import bitmap_words, fixed_bytes, fixed_code
from understudy_shared.spark.types import StructType, VoidType

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_MARK: Final = os.urandom(8)
"""Bytes that no record has: those who write records do not know them."""

_MARK_NUMBER: Final = np.uint64(int.from_bytes(_MARK, "little"))


class UnfitRowsError(Exception):
    """Some rows are not of their schema, or hold what columns cannot: they are read one by one, which says what."""


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
    """A column whose values are behind the slots, `sizes[i]` bytes at `starts[i]` of the block's data; 0 for a null."""

    data: U8
    starts: I64
    sizes: I64
    nulls: Mask | None

    def pieces(self) -> list[bytes]:
        """Return the bytes of each cell."""
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
    """Return the same where all keys, and all values, are equally long; None where they are not.

    To ask each record for its size takes longer than to join them. So they are joined with marks: where a mark stands
    at each place that one size of all keys and one of all values says, no record is longer or shorter.
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
    """Whether bytes are ASCII."""
    return not len(data) or int(data.max()) < 0x80


def is_text(data: U8) -> bool:
    """Whether bytes are UTF-8."""
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
    """Return what is `at` bytes behind the start of each row."""
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
