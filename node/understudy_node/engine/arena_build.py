"""Builds an arena: a snapshot's records, unchanged, in one file, and a hash index over them in another.

The rule: bounded steps, and one pass. A piece of the content is searched for records while it is in the processor's
cache, then written; it is neither buffered nor read again. A generator yields after each piece, so that a worker can
share its thread among restores; the long numpy calls let other threads run. The index is renamed into place last: an
arena without it was never finished.

Records are `int32 key length, key, int32 value length, value` (big-endian), ended by a key length of -1. They are found
by the thousand, in numpy: records of equal size by comparing lengths at equal distances, records of mixed sizes by the
chain of their length fields. Only the rest is read one length at a time. If the end of a piece cuts a record, only its
numbers are kept; its key is hashed incrementally.

The chain: each field begins where the last one ends. Every fourth byte is read as if a length stood there; each
plausible length is linked to the end that its field would have. The real fields are the links that form a chain from
the beginning: a word that only looks like a length mostly has no predecessor, and is dropped. A chain that ends early
is right up to its end.

Keys are hashed by the thousand, too: in numpy, like `mmh3.hash(key, seed, signed=False)`, which lookups use. It takes a
few numpy calls for every four bytes of the longest keys, however many keys there are; so few keys, and keys longer than
most, are left to the library.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum, auto
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Any, Final

import mmh3
import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_files import (
    ENTRY_OFFSET_BITS,
    BlockSums,
    Header,
    boot_id,
    index_path,
    records_path,
    sums_path,
    write_sums,
)
from understudy_shared.base.errors import CorruptFileError

# As read little-endian: a big-endian length below 65,536 that is a multiple of 4, as lengths of Spark's rows are. Zero
# stands everywhere in them, so it is not plausible.
_IMPLAUSIBLE_BITS: Final = np.uint32(0x0300FFFF)
_DROP_ROUNDS: Final = 3


_TOGETHER_MIN: Final = 256
"""Least number of keys for numpy: hashing fewer takes less time than its calls."""


def evenly_spaced_key_hashes(piece: memoryview, starts: range, length: int, seed: int) -> U32:
    """Hash keys of one `length`, which begin at `starts` of `piece`."""
    count = len(starts)
    if count < _TOGETHER_MIN or length % 4:
        return _one_by_one(piece, starts, [length] * count, seed)
    hashes = np.full(count, seed, np.uint32)
    for word in range(length // 4):
        _mix(hashes, np.ndarray((count,), "<u4", piece, starts.start + 4 * word, (starts.step,)))
    return _finished(hashes, length)


def key_hashes(piece: memoryview, starts: I64, lengths: I64, seed: int) -> U32:
    """Hash keys of any `lengths`, which begin at `starts` of `piece`."""
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    negative_words = -(lengths // 4)
    hashes = np.full(len(starts), seed, np.uint32)
    words = 0
    # Keys are sorted longest first, so those with one more word are a prefix that gets shorter.
    while (longer := int(np.searchsorted(negative_words, -words))) >= _TOGETHER_MIN:
        bytewise = np.ndarray((len(piece) - 3,), "<u4", piece, 0, (1,))
        _mix(hashes[:longer], bytewise[starts[:longer] + 4 * words])
        words += 1
    hashes = _finished(hashes, lengths.astype(np.uint32))
    left = np.flatnonzero((negative_words < -words) | (lengths % 4 != 0))
    hashes[left] = _one_by_one(piece, starts[left].tolist(), lengths[left].tolist(), seed)
    in_order = np.empty_like(hashes)
    in_order[longest_first] = hashes
    return in_order


def _one_by_one(piece: memoryview, starts: Iterable[int], lengths: Iterable[int], seed: int) -> U32:
    digest = mmh3.mmh3_32_uintdigest
    found = [digest(piece[start : start + length], seed) for start, length in zip(starts, lengths, strict=True)]
    return np.array(found, np.uint32)


def _mix(hashes: U32, words: npt.NDArray[Any]) -> None:
    """Do one round of murmur3 for every key; change `hashes`."""
    mixed = words * np.uint32(0xCC9E2D51)
    low = mixed << np.uint32(15)
    mixed >>= np.uint32(17)
    mixed |= low
    mixed *= np.uint32(0x1B873593)
    hashes ^= mixed
    np.left_shift(hashes, np.uint32(13), out=low)
    hashes >>= np.uint32(19)
    hashes |= low
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _finished(hashes: U32, lengths: U32 | int) -> U32:
    hashes = hashes ^ np.uint32(lengths) if isinstance(lengths, int) else hashes ^ lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


class _Field(Enum):
    KEY_LENGTH = auto()
    KEY = auto()
    VALUE_LENGTH = auto()
    VALUE = auto()
    NOTHING = auto()


class CutRecord:
    """A record that begins at `offset` of the content. It may turn out to be the end mark, or `damage`."""

    def __init__(self, offset: int, seed: int) -> None:
        self.offset = offset
        self.is_end_mark = False
        self.damage: str | None = None
        self._hasher = mmh3.mmh3_32(seed=seed)
        self._field = _Field.KEY_LENGTH
        self._missing = 4
        self._length = b""

    @property
    def is_whole(self) -> bool:
        return self._field is _Field.NOTHING

    @property
    def key_hash(self) -> int:
        return self._hasher.uintdigest()

    def take(self, piece: memoryview, at: int) -> int:
        """Read on from `at`; return where the record ends, or the end of `piece`."""
        while at < len(piece) and not self.is_whole:
            part = piece[at : at + self._missing]
            at += len(part)
            self._missing -= len(part)
            if self._field in (_Field.KEY_LENGTH, _Field.VALUE_LENGTH):
                self._length += part
            elif self._field is _Field.KEY:
                self._hasher.update(part)
            while not self._missing and not self.is_whole:
                self._next_field()
        return at

    def _next_field(self) -> None:
        if self._field is _Field.KEY:
            self._field, self._missing, self._length = _Field.VALUE_LENGTH, 4, b""
            return
        if self._field is _Field.VALUE:
            self._field = _Field.NOTHING
            return
        is_key = self._field is _Field.KEY_LENGTH
        self._missing = int.from_bytes(self._length, "big", signed=True)
        self._field = _Field.KEY if is_key else _Field.VALUE
        if self._missing >= 0:
            return
        self._field = _Field.NOTHING
        if is_key and self._missing == -1:
            self.is_end_mark = True
        else:
            self.damage = (
                f"a record with a {'key' if is_key else 'value'} of {self._missing} bytes at byte {self.offset}"
            )


def field_chain(content: memoryview) -> tuple[I64, I64]:
    """Return where fields begin in `content`, the first at 0, and their lengths; only fields that end within it.

    A field's bytes follow its length of four bytes. The chain ends at the first length that is not plausible.
    """
    words = np.ndarray((len(content) // 4,), "<u4", content)
    at = np.flatnonzero(((words & _IMPLAUSIBLE_BITS) == 0) & (words != 0))
    lengths = words[at].astype("<u4").byteswap().astype(np.int64)
    ends = at + 1 + lengths // 4
    inside = ends <= len(words)
    at, ends = at[inside], ends[inside]
    # Dropping a false field may leave others without a predecessor: ordinary content is clean after a few rounds.
    for _ in range(_DROP_ROUNDS):
        chained = _chained(at, ends)
        if chained == len(at):
            break
        at, ends = _linked_to(at, ends, len(words))
    else:
        # Still not clean, as for content made to mislead: follow the chain itself, one field at a time.
        at, ends = _walked(at, ends, len(words))
        chained = len(at)
    at, ends = at[:chained], ends[:chained]
    return at * 4, (ends - at - 1) * 4


def _chained(at: I64, ends: I64) -> int:
    """Count the leading fields that each begin where the last one ends."""
    if not len(at) or at[0]:
        return 0
    breaks = np.flatnonzero(ends[:-1] != at[1:])
    return int(breaks[0]) + 1 if len(breaks) else len(at)


def _linked_to(at: I64, ends: I64, words: int) -> tuple[I64, I64]:
    """Drop the fields that begin where no other ends."""
    linked = np.zeros(words + 1, np.bool_)
    linked[ends] = True
    linked[0] = True
    kept = linked[at]
    return at[kept], ends[kept]


def _walked(at: I64, ends: I64, words: int) -> tuple[I64, I64]:
    """Follow the chain from 0 on, field by field."""
    places = np.full(words + 1, -1, np.int64)
    places[at] = np.arange(len(at))
    following = places[ends].tolist()
    place = int(places[0]) if words else -1
    walked: list[int] = []
    while place >= 0:
        walked.append(place)
        place = following[place]
    return at[walked], ends[walked]


U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Entries = npt.NDArray[np.uint64]
"""Entries: the upper bits of a record's key hash, above its offset. Sorted, they are the index."""

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
                raise self._corrupt(f"the snapshot continues after its end mark at byte {self._end_mark_at}")
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


U64 = npt.NDArray[np.uint64]

_FIRST_BYTES: Final = 2 << 20
_ENTRY_BYTES: Final = 8
_BLOCK_ENTRIES: Final = 65_536
_HASH_BITS: Final = 64 - ENTRY_OFFSET_BITS


class EntryList:
    """Entries in a mapping of their own, which grows in place: an allocator would hold on to the memory, or copy it."""

    def __init__(self) -> None:
        self._memory = mmap(-1, _FIRST_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        with suppress(OSError):  # the kernel has no huge pages
            self._memory.madvise(MADV_HUGEPAGE)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entries: U64) -> None:
        count = self._count + len(entries)
        while count * _ENTRY_BYTES > len(self._memory):
            self._memory.resize(len(self._memory) * 2)
        np.frombuffer(self._memory, np.uint64)[self._count : count] = entries
        self._count = count

    def sorted(self) -> U64:
        """Return the entries, sorted in place, mostly without the GIL: 10 ms per million."""
        entries = np.frombuffer(self._memory, np.uint64, self._count)
        entries.sort()
        return entries


def write_index(
    directory: Path, entries: U64, *, records_bytes: int, records_sums: array[int], seed: int
) -> Iterator[None]:
    """Write the index of `records_bytes` of records from their sorted `entries`, in bounded steps; and the sums of both
    files.
    """
    count = len(entries)
    width = 4 if records_bytes < 2**32 else 8
    # One to two records per bucket: half as many buckets would save 2 B per key and cost a comparison per lookup.
    bucket_bits = min(max(count.bit_length() - 1, 0), _HASH_BITS)
    header = Header(seed, bucket_bits, width, count, records_bytes, boot_id())
    unfinished = index_path(directory).with_suffix(".unfinished")
    starts = np.zeros(2**bucket_bits + 1, "<u4")
    for block in _blocks(entries):
        # Two shifts: one by the whole width, which a single bucket would need, is not defined.
        buckets = ((block >> np.uint64(ENTRY_OFFSET_BITS)) >> np.uint64(_HASH_BITS - bucket_bits)).view(np.int64)
        first = int(buckets[0])
        counts = np.bincount(buckets - first)
        starts[first + 1 : first + 1 + len(counts)] += counts.astype("<u4")
        yield
    np.cumsum(starts, out=starts)
    yield
    sums = BlockSums()
    with unfinished.open("wb") as file:
        for part in (memoryview(header.encoded()), starts.data):
            sums.add(part)
            file.write(part)
        for block in _blocks(entries):
            offsets = (block & np.uint64(2**ENTRY_OFFSET_BITS - 1)).astype(f"<u{width}").data
            sums.add(offsets)
            file.write(offsets)
            yield
    write_sums(sums_path(directory), records_sums, sums.end())
    unfinished.replace(index_path(directory))


def _blocks(entries: U64) -> Iterator[U64]:
    return (entries[at : at + _BLOCK_ENTRIES] for at in range(0, len(entries), _BLOCK_ENTRIES))


def build_arena(directory: Path, pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """Write a decompressed snapshot and its index into `directory`; yield the number of records found so far.

    `ArenaBase.open` can open the directory when this is exhausted, also after a restart. A piece may be overwritten
    once the next one is asked for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    index_path(directory).unlink(missing_ok=True)
    seed = int.from_bytes(os.urandom(4), "little")
    finder = RecordFinder(seed, where=str(records_path(directory)))
    entries, sums = EntryList(), BlockSums()
    with records_path(directory).open("wb") as file:
        for piece in pieces:
            for found in finder.entries(memoryview(piece)):
                entries.add(found)
            sums.add(memoryview(piece))
            file.write(piece)
            yield len(entries)
    finder.end()
    in_order = entries.sorted()
    yield len(entries)
    for _ in write_index(directory, in_order, records_bytes=finder.content_bytes, records_sums=sums.end(), seed=seed):
        yield len(entries)
