"""Finds the records of a snapshot while its content comes in pieces, and hashes their keys.

Records are `int32 key length, key, int32 value length, value` (big-endian), ended by a key length of -1. Pure: between
two pieces it keeps where the content stands, and of a record that a piece cuts off only its numbers.

Records are found by the thousand, in numpy: those of equal size by comparing lengths at equal distances, those of mixed
sizes by the chain that their length fields make. Only what is left is read one length at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_chain import field_chain
from understudy_node.engine.arena_cut import CutRecord
from understudy_node.engine.arena_format import ENTRY_OFFSET_BITS
from understudy_node.engine.arena_hash import evenly_spaced_key_hashes, key_hashes
from understudy_shared.base.errors import CorruptFileError

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Entries = npt.NDArray[np.uint64]
"""Entries: the upper bits of a record's key hash, above the offset at which it begins. Sorted, they are the index."""

_EVEN_MIN: Final = 1_024
_CHAIN_MIN: Final = 32
_LOOP_RECORDS: Final = 4_096
_LENGTH: Final = struct.Struct(">i")


class RecordFinder:
    """A finder that takes the pieces of a snapshot in order, then its `end`. `where` names the snapshot in messages."""

    def __init__(self, seed: int, *, where: str) -> None:
        self._seed = seed
        self._where = where
        self.content_bytes = 0
        self._cut: CutRecord | None = None
        self._end_mark_at: int | None = None

    def entries(self, piece: memoryview) -> Iterator[Entries]:
        """Yield the entries of the records that end in `piece`."""
        at = 0
        while at < len(piece):
            if self._end_mark_at is not None:
                raise self._corrupt(f"the snapshot goes on after its end mark at byte {self._end_mark_at}")
            if self._cut is None:
                found, at = self._whole_records(piece, at)
                if len(found):
                    yield found
                    continue
                self._cut = CutRecord(self.content_bytes + at, self._seed)
            at = self._cut.take(piece, at)
            yield self._end_of_cut()
        self.content_bytes += len(piece)

    def end(self) -> None:
        """Refuse content that is not whole."""
        if self._end_mark_at is None:
            begun = self.content_bytes if self._cut is None else self._cut.offset
            raise self._corrupt(f"the snapshot ends inside the record at byte {begun}, without its end mark")

    def _end_of_cut(self) -> Entries:
        """Return the entry of the record that was cut off, if it has come to its end."""
        cut = self._cut
        assert cut is not None, "called for a cut record"
        if (damage := cut.damage) is not None:
            raise self._corrupt(damage)
        if cut.is_end_mark:
            self._end_mark_at, self._cut = cut.offset, None
        elif cut.is_whole:
            self._cut = None
            return entries_of(np.array([cut.key_hash], np.uint32), np.array([cut.offset], np.int64))
        return np.empty(0, np.uint64)

    def _whole_records(self, piece: memoryview, at: int) -> tuple[Entries, int]:
        """Return entries of records that lie whole in `piece` from `at` on, and where the last of them ends."""
        record = _record_at(piece, at)
        if record is None:
            return np.empty(0, np.uint64), at
        stride = 8 + sum(record)
        count = _even_records(piece, at, *record)
        if count >= _EVEN_MIN or at + count * stride == len(piece):
            offsets: I64 = at + np.arange(count, dtype=np.int64) * stride
            starts = range(at + 4, at + 4 + count * stride, stride)
            hashes = evenly_spaced_key_hashes(piece, starts, record[0], self._seed)
            return entries_of(hashes, self.content_bytes + offsets), at + count * stride
        offsets, key_lengths, end = _chained_records(piece, at)
        if len(offsets) < _CHAIN_MIN:
            offsets, key_lengths, end = _looped_records(piece, at)
        hashes = key_hashes(piece, offsets + 4, key_lengths, self._seed)
        return entries_of(hashes, self.content_bytes + offsets), end

    def _corrupt(self, what: str) -> CorruptFileError:
        return CorruptFileError(what, where=self._where, fix="Restore this partition again from the checkpoint")


def entries_of(hashes: U32, offsets: I64) -> Entries:
    """Make an entry per record, from the hash of its key and where it begins in the content."""
    entries: Entries = hashes.astype(np.uint64)
    entries >>= np.uint64(ENTRY_OFFSET_BITS - 32)
    entries <<= np.uint64(ENTRY_OFFSET_BITS)
    entries |= offsets.view(np.uint64)
    return entries


def _record_at(piece: memoryview, at: int) -> tuple[int, int] | None:
    """Return lengths of key and value of the record at `at`; None when it is cut off, damaged, or the end mark."""
    if at + 4 > len(piece):
        return None
    (key_bytes,) = _LENGTH.unpack_from(piece, at)
    value_at = at + 4 + key_bytes
    if key_bytes < 0 or value_at + 4 > len(piece):
        return None
    (value_bytes,) = _LENGTH.unpack_from(piece, value_at)
    return None if value_bytes < 0 or value_at + 4 + value_bytes > len(piece) else (key_bytes, value_bytes)


def _even_records(piece: memoryview, at: int, key_bytes: int, value_bytes: int) -> int:
    """Count whole records from `at` on with exactly these lengths."""
    stride = 8 + key_bytes + value_bytes
    most = (len(piece) - at) // stride
    count = min(most, _CHAIN_MIN)
    while True:
        keys = np.ndarray((count,), ">i4", piece, at, (stride,))
        values = np.ndarray((count,), ">i4", piece, at + 4 + key_bytes, (stride,))
        differ = (keys != key_bytes) | (values != value_bytes)
        if differ.any():
            return int(differ.argmax())
        if count == most:
            return most
        # Look ahead in growing steps, so that the cost is in proportion to the run found.
        count = min(most, count * 16)


def _chained_records(piece: memoryview, at: int) -> tuple[I64, I64, int]:
    """Return offsets and key lengths of records of mixed sizes, and where the last of them ends."""
    fields, lengths = field_chain(piece[at:])
    count = len(fields) // 2
    if not count:
        return fields[:0], lengths[:0], at
    last = 2 * count - 1
    return fields[: 2 * count : 2] + at, lengths[: 2 * count : 2], at + int(fields[last] + 4 + lengths[last])


def _looped_records(piece: memoryview, at: int) -> tuple[I64, I64, int]:
    offsets: list[int] = []
    key_lengths: list[int] = []
    while len(offsets) < _LOOP_RECORDS and (record := _record_at(piece, at)) is not None:
        key_bytes, value_bytes = record
        offsets.append(at)
        key_lengths.append(key_bytes)
        at += 8 + key_bytes + value_bytes
    return np.array(offsets, np.int64), np.array(key_lengths, np.int64), at
