"""A snapshot of the HDFS-backed provider as a base: its decompressed records, mapped from local disk, under an index.

The rule: keys and values stay where the snapshot put them. A lookup hashes the key, reads its bucket's offsets and
compares the one or two records there; nothing is decoded, and a restart maps the same files again.

Keys are sorted by their bytes when a scan first needs their order, which is stored next to them: some bits at a time,
and then only keys with equal earlier bits. There is one kind of step. It packs a key's group, its next bits and its
place into one 64-bit number, and sorts the numbers. Keys of a store share long stretches (null bits, field offsets):
bits that are the same in all keys take no step.

A scan reads neighbours in that order, which lie anywhere in the file. Runs of equal size, as in most stores, are copied
by one call of NumPy and cut by one of `struct`, in a sixth of the time of one by one.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import mmh3
import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_files import (
    HEADER_BYTES,
    DamagedError,
    FileCheck,
    Header,
    boot_id,
    decode_header,
    index_path,
    order_path,
    read_sealed,
    read_sums,
    records_path,
    sums_path,
    write_sealed,
)
from understudy_node.engine.base import Base
from understudy_shared.base.errors import CorruptFileError

_FIRST_RECORDS: Final = 16
_MOST_RECORDS: Final = 1_024
_MOST_BYTES: Final = 256 * 1024
"""Limit on what is copied at once: longer records come in shorter pages, or by themselves."""

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Record = tuple[bytes, bytes]


def pages_of_records(records: mmap, order: memoryview) -> Iterator[Iterable[Record]]:
    """Yield key and value of the records at the offsets in `order`, some at a time."""
    data = np.frombuffer(records, np.uint8)
    begin, most = 0, _FIRST_RECORDS
    while begin < len(order):
        key_bytes, value_bytes = _sizes_at(records, order[begin])
        count = max(1, min(most, _MOST_BYTES // (8 + key_bytes + value_bytes)))
        offsets = np.asarray(order[begin : begin + count]).astype(np.int64)
        equal = _equal_records(data, offsets, key_bytes, value_bytes) if count > 1 else None
        yield equal or _unequal_records(records, data, offsets)
        begin += count
        # A reader of few records touches few pages of the file.
        most = min(4 * most, _MOST_RECORDS)


def lengths_at(data: U8, offsets: npt.NDArray[Any]) -> I64:
    """Return the lengths that stand at these offsets, before keys and before values."""
    lengths: I64 = np.ndarray((len(data) - 3,), ">i4", data.data, strides=(1,))[offsets].astype(np.int64)
    return lengths


def _sizes_at(records: mmap, offset: int) -> tuple[int, int]:
    """Return the sizes of key and value of one record."""
    key_bytes = int.from_bytes(records[offset : offset + 4], "big")
    at = offset + 4 + key_bytes
    return key_bytes, int.from_bytes(records[at : at + 4], "big")


def _equal_records(data: U8, offsets: I64, key_bytes: int, value_bytes: int) -> Iterator[Record] | None:
    """Return the records if all have keys and values of these sizes."""
    size = 8 + key_bytes + value_bytes
    if int(offsets.max()) + size > len(data):
        return None
    found = np.ndarray((len(data) - size + 1,), f"V{size}", data.data, strides=(1,))[offsets]
    lengths = found.view([("key", ">i4"), ("", f"V{key_bytes}"), ("value", ">i4"), ("", f"V{value_bytes}")])
    if (lengths["key"] != key_bytes).any() or (lengths["value"] != value_bytes).any():
        return None
    return Struct(f"4x{key_bytes}s4x{value_bytes}s").iter_unpack(found.tobytes())


def _unequal_records(records: mmap, data: U8, offsets: I64) -> Iterator[Record]:
    keys = offsets + 4
    key_ends = keys + lengths_at(data, offsets)
    values = key_ends + 4
    value_ends = values + lengths_at(data, key_ends)
    for key, key_end, value, value_end in zip(
        keys.tolist(), key_ends.tolist(), values.tolist(), value_ends.tolist(), strict=True
    ):
        yield records[key:key_end], records[value:value_end]


U64 = npt.NDArray[np.uint64]
Offsets = npt.NDArray[Any]
"""The offsets of records, as unsigned integers of 4 or 8 bytes."""

_WORD_BYTES: Final = 8
_BLOCK: Final = 65_536
_STEP: Final = 16 * _BLOCK


class _Ties(NamedTuple):
    """Keys that equal another one in all bits compared so far: their places in the order, ascending, and the number of
    the group of each, counted from 0.
    """

    places: I64
    groups: U64


def key_order(directory: Path, header: Header, records: U8, offsets: Offsets) -> Generator[None, None, memoryview]:
    """Return the offsets of an arena's records in the order of their keys. Yield after each step.

    A stored order is read, else it is computed and stored: another process, or the next one, sorts nothing.
    """
    path, head = order_path(directory), header.encoded()
    with suppress(OSError):
        body = read_sealed(path)
        if body is not None and len(body) == len(head) + offsets.nbytes and body.startswith(head):
            return np.frombuffer(body, offsets.dtype, offset=len(head)).data
    order = np.sort(offsets)
    yield
    yield from sort_offsets(records, order)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        write_sealed(unfinished, head + order.tobytes())
        unfinished.replace(path)
    except OSError:  # No room for it, or the arena was removed.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return order.data


def sort_offsets(data: U8, order: Offsets) -> Iterator[None]:
    """Put `order`, the offsets of all records as they lie in the file, into the order of their keys. Yield after each
    step; the longest takes 15 ms per million keys, mostly without the GIL.
    """
    ties = _Ties(np.arange(len(order)), np.zeros(len(order), np.uint64))
    lengths = yield from _of_each(order, ties.places, partial(_lengths, data))
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(order) else (0, 0)
    for position in range(0, longest, _WORD_BYTES):
        words_of = _words if position + _WORD_BYTES <= shortest else _last_words
        words = yield from _of_each(order, ties.places, partial(words_of, data, position))
        ties = yield from _sort_ties(order, ties, words)
    # The words had zeros after the end of a key: of keys that are equal even so, the shorter one comes first.
    lengths = yield from _of_each(order, ties.places, partial(_lengths, data))
    yield from _sort_ties(order, ties, lengths)


def _of_each(order: Offsets, places: I64, numbers_of: Callable[[Offsets], U64]) -> Generator[None, None, U64]:
    """Return a number for the record at each place: block by block, so that intermediates stay in cache."""
    numbers = np.empty(len(places), np.uint64)
    for at in range(0, len(places), _BLOCK):
        numbers[at : at + _BLOCK] = numbers_of(order[places[at : at + _BLOCK]])
        if at % _STEP == 0:
            yield
    return numbers


def _sort_ties(order: Offsets, ties: _Ties, words: U64) -> Generator[None, None, _Ties]:
    """Sort tied keys by a word of each; return those that are still tied."""
    places, groups = ties
    if not len(places):
        return ties
    words -= words.min()
    bits = int(words.max()).bit_length()
    while bits and len(places):
        place_bits, group_bits = len(places).bit_length(), int(groups[-1]).bit_length()
        # As many bits of the word as there is room for; the others in the next step, among those still tied.
        bits_left = max(bits - (64 - place_bits - group_bits), 0)
        numbers = words >> np.uint64(bits_left)
        numbers <<= np.uint64(place_bits)
        numbers |= np.arange(len(places), dtype=np.uint64)
        if group_bits:
            groups <<= np.uint64(64 - group_bits)
            numbers |= groups
        yield
        numbers.sort()
        yield
        by_key = (numbers & np.uint64((1 << place_bits) - 1)).view(np.int64)
        order[places] = order[places[by_key]]
        yield
        numbers >>= np.uint64(place_bits)
        is_tied, groups = _tied(numbers)
        words = words[by_key[is_tied]] & np.uint64((1 << bits_left) - 1)
        places, bits = places[is_tied], bits_left
        yield
    return _Ties(places, groups)


def _tied(numbers: U64) -> tuple[npt.NDArray[np.int64], U64]:
    """Return which of sorted numbers equal a neighbour, and the number of the group of each of these."""
    equals_next = numbers[1:] == numbers[:-1]
    is_tied = np.zeros(len(numbers), np.bool_)
    is_tied[1:] = equals_next
    is_first = ~is_tied
    is_tied[:-1] |= equals_next
    at = np.flatnonzero(is_tied)
    return at, np.cumsum(is_first[at], dtype=np.uint64) - np.uint64(1)


def _lengths(data: U8, offsets: Offsets) -> U64:
    return lengths_at(data, offsets).view(np.uint64)


def _words(data: U8, position: int, offsets: Offsets) -> U64:
    """Return eight bytes of each key from `position` on, as a number."""
    at = offsets.astype(np.int64) + (4 + position)
    return np.ndarray((len(data) - 7,), ">u8", data.data, strides=(1,))[at].astype(np.uint64)


def _last_words(data: U8, position: int, offsets: Offsets) -> U64:
    """Return the same where keys may end: padded with zeros."""
    lengths = lengths_at(data, offsets)
    # Of a key that ends before `position` no bit is kept: any bytes will do. No word of others reaches the end of the
    # file: eight bytes or more follow each key.
    words = _words(data, position, np.minimum(offsets, len(data) - 12 - position))
    missing_bits = (np.clip(position + _WORD_BYTES - lengths, 0, _WORD_BYTES) * 8).astype(np.uint64)
    for _ in range(2):  # a shift by 64 bits at once is not defined
        words >>= missing_bits >> np.uint64(1)
    for _ in range(2):
        words <<= missing_bits >> np.uint64(1)
    return words


class ArenaBase(Base):
    """A finished arena, mapped. Dropping the last reference unmaps it; readers in flight keep it mapped."""

    damage: CorruptFileError | None = None

    def __init__(self, directory: Path, header: Header, records: FileCheck, index: FileCheck) -> None:
        self.directory = directory
        self.is_unchecked = True
        """Whether there are blocks that were not compared with their sums."""
        self._is_cut_off = False
        self._offsets_at = HEADER_BYTES + header.starts_bytes
        self._records_check = records
        self._index_check = index
        self._records = records.data
        self._header = header
        self._seed = header.seed
        self._shift = 32 - header.bucket_bits
        self._index_bytes = len(index.data)
        whole = memoryview(index.data)
        self._starts = whole[HEADER_BYTES : self._offsets_at].cast("I")
        self._offsets = whole[self._offsets_at :].cast("I" if header.offset_bytes == 4 else "Q")
        self._ordered: memoryview | None = None
        self._ordering = self._key_order()
        self._working = threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> ArenaBase:
        """Map a finished arena; refuse one that is unfinished or that a reboot may have damaged: build it again."""
        try:
            with index_path(directory).open("rb") as index_file, records_path(directory).open("rb") as records_file:
                header = decode_header(index_file.read(HEADER_BYTES))
                index = mmap(index_file.fileno(), 0, access=ACCESS_READ)
                records = mmap(records_file.fileno(), 0, access=ACCESS_READ)
            sums = read_sums(sums_path(directory))
        except (OSError, ValueError) as error:
            raise _unfinished(directory, str(error)) from error
        if header is None or header.boot != boot_id():
            raise _unfinished(directory, "its index is incomplete or from before the last boot")
        if (len(index), len(records)) != (header.index_bytes, header.records_bytes):
            raise _unfinished(directory, f"{len(records)} and {len(index)} bytes do not fit its header")
        if sums is None:
            raise _unfinished(directory, "its sums are damaged")
        base = cls(directory, header, FileCheck(records, sums[0]), FileCheck(index, sums[1]))
        with base._finding_damage():
            base._index_check.require(0, HEADER_BYTES)
        return base

    def __repr__(self) -> str:
        return f"ArenaBase({self.directory}, {self.count()} keys, {self.resident_bytes} bytes)"

    def get(self, key: bytes) -> bytes | None:
        bucket = mmh3.hash(key, self._seed, False) >> self._shift
        if self.is_unchecked:
            self._check_bucket(bucket)
        first, last = self._starts[bucket], self._starts[bucket + 1]
        if first == last:
            return None
        records = self._records
        sought = len(key).to_bytes(4, "big") + key
        for at in range(first, last):
            start = self._offsets[at]
            end = start + len(sought)
            if records[start:end] == sought:
                return records[end + 4 : end + 4 + int.from_bytes(records[end : end + 4], "big")]
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    @property
    def has_background_work(self) -> bool:
        """Whether there are blocks that were not compared with their sums, or keys that were not sorted."""
        return self.damage is None and (self.is_unchecked or self._ordered is None)

    def work_in_background(self) -> None:
        """Compare some of the blocks that no reader has read, or else continue sorting the keys."""
        with self._working, suppress(CorruptFileError):
            self.look_for_damage()
            if self.damage is not None:
                return
            if self.is_unchecked:
                with self._finding_damage():
                    self.is_unchecked = self._index_check.check_some() or self._records_check.check_some()
            elif self._ordered is None:
                self._order_some()

    def _order_some(self) -> None:
        try:
            next(self._ordering)
        except StopIteration as end:
            self._ordered = end.value
        except BaseException:
            self._ordering = self._key_order()  # from the beginning, when it is asked for again
            raise

    def _key_order(self) -> Generator[None, None, memoryview]:
        records, offsets = np.frombuffer(self._records, np.uint8), np.asarray(self._offsets)
        return key_order(self.directory, self._header, records, offsets)

    def look_for_damage(self) -> None:
        """Check whether a file was truncated, before a reader touches missing pages."""
        if self.damage is None and not (self._index_check.has_its_length and self._records_check.has_its_length):
            self.damage = self._damaged("a file was cut off")
            self._is_cut_off = self.is_unchecked = True

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Return the records from `start` to `end`. The first scan waits for all work in background."""
        order = self.prepare_scan()
        first = 0 if start is None else bisect_left(order, start, key=self._key_at)
        last = len(order) if end is None else bisect_left(order, end, key=self._key_at)
        return chain.from_iterable(self._pages(order[first:last]))

    def _pages(self, order: memoryview) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        yield from pages_of_records(self._records, order)  # an iterator in use keeps the files

    def prepare_scan(self) -> memoryview:
        """Do all work that is left for the background, best in a worker thread: a scan reads all blocks, in order."""
        while self.has_background_work:
            self.work_in_background()
        if self.is_unchecked or self._ordered is None:
            assert self.damage is not None, "nothing else ends the work"
            raise self.damage
        return self._ordered

    def some_keys(self, most: int) -> Iterator[bytes]:
        """Yield some keys, unordered, so nothing is sorted. They are not compared with their sums."""
        return map(self._key_at, self._offsets[: 0 if self._is_cut_off else most])

    def count(self) -> int:
        return self._header.keys

    @property
    def resident_bytes(self) -> int:
        """Size of both files as if fully in memory (the system may drop pages), and of the sorted key order."""
        ordered = self._ordered
        return len(self._records) + self._index_bytes + (ordered.nbytes if ordered is not None else 0)

    @property
    def stored_bytes(self) -> int:
        return len(self._records)

    def remove_when_unused(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    def close(self) -> None:
        with self._working:
            self._ordering.close()
        self._starts.release()
        self._offsets.release()
        self._records_check.release()
        self._index_check.release()
        self._records.close()

    def _check_bucket(self, bucket: int) -> None:
        """Compare the blocks that a lookup in this bucket reads."""
        if self._is_cut_off and self.damage is not None:
            raise self.damage
        index, records, data = self._index_check, self._records_check, self._records
        at, width, offsets = HEADER_BYTES + 4 * bucket, self._header.offset_bytes, self._offsets_at
        try:
            index.require(at, at + 8)
            first, last = self._starts[bucket], self._starts[bucket + 1]
            if first == last:
                return
            index.require(offsets + first * width, offsets + last * width)
            for end in self._offsets[first:last]:
                for _ in ("key", "value"):
                    records.require(end, end + 4)
                    start, end = end + 4, end + 4 + int.from_bytes(data[end : end + 4], "big")  # noqa: PLW2901
                    if end > start:
                        records.require(start, end)
        except DamagedError as error:
            self.damage = self._damaged(str(error))
            raise self.damage from None

    @contextmanager
    def _finding_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            self.damage = self._damaged(str(error))
            raise self.damage from None

    def _damaged(self, how: str) -> CorruptFileError:
        return CorruptFileError(
            f"the local copy is damaged: {how}",
            where=str(self.directory),
            fix="The replica builds it again from the checkpoint; check this disk",
        )

    def _key_at(self, offset: int) -> bytes:
        records = self._records
        return records[offset + 4 : offset + 4 + int.from_bytes(records[offset : offset + 4], "big")]


def _unfinished(directory: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(
        f"not a finished arena: {reason}", where=str(directory), fix="Build it again from the snapshot"
    )
