"""A snapshot of the HDFS-backed provider as a base: its decompressed records, mapped from local disk, under an index.

The rule: keys and values stay where the snapshot put them. A lookup hashes the key, reads its bucket's offsets and
compares the one or two records there; nothing is decoded, and a restart maps the same files again. No block of them is
believed before its sum was compared (`arena_sums.py`).
"""

from __future__ import annotations

import shutil
import threading
import weakref
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path

import mmh3
import numpy as np

from understudy_node.engine.arena_build import build_arena
from understudy_node.engine.arena_format import (
    HEADER_BYTES,
    Header,
    boot_id,
    decode_header,
    index_path,
    records_path,
    sums_path,
)
from understudy_node.engine.arena_order import key_order
from understudy_node.engine.arena_scan import pages_of_records
from understudy_node.engine.arena_sums import DamagedError, FileCheck, read_sums
from understudy_node.engine.base import NO_FAMILIES
from understudy_shared.base.errors import CorruptFileError


class ArenaBase:
    """A finished arena, mapped. Dropping the last reference unmaps it; readers in flight keep it mapped."""

    families = NO_FAMILIES

    def __init__(self, directory: Path, header: Header, records: FileCheck, index: FileCheck) -> None:
        self.directory = directory
        self.damage: CorruptFileError | None = None
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

    @classmethod
    def build(cls, directory: Path, pieces: Iterable[bytes | memoryview]) -> ArenaBase:
        """Run `build_arena` in one go, then `open`: for callers that need not share their thread."""
        for _ in build_arena(directory, pieces):
            pass
        return cls.open(directory)

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
        """Compare some of the blocks that no reader came to, or else go on sorting the keys."""
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
        """See whether a file was cut off, before a reader touches what is not there."""
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
        """Yield some keys in no order, which needs no sorting. They are not compared with their sums."""
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
        """Delete the directory once the last view and reader of this base is gone."""
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
            fix="The replica builds it again from the checkpoint; look at this disk",
        )

    def _key_at(self, offset: int) -> bytes:
        records = self._records
        return records[offset + 4 : offset + 4 + int.from_bytes(records[offset : offset + 4], "big")]


def _unfinished(directory: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(
        f"not a finished arena: {reason}", where=str(directory), fix="Build it again from the snapshot"
    )
