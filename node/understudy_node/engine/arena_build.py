"""Builds an arena: a snapshot's records as they are, in one file, and a hash index over them in another.

The rule: bounded steps, and one pass. A piece of the content is searched for records while it is in the processor's
cache, then written; it is neither buffered nor read again. A generator yields after each piece, so that a worker can
share its thread among restores; the long numpy calls let other threads run. The index is renamed into place last: an
arena without it was never finished.

Collects the entries of an arena's records, and writes them as the index.

The rule: an index is renamed into place when it is complete. Its memory is 8 bytes per key while it is made, and goes
back to the system afterwards.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_format import ENTRY_OFFSET_BITS, Header, boot_id, index_path, records_path, sums_path
from understudy_node.engine.arena_records import RecordFinder
from understudy_node.engine.arena_sums import BlockSums, write_sums

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
    """Write the index of `records_bytes` of records, whose sorted `entries` are given, in bounded steps; and the sums
    of both files.
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
