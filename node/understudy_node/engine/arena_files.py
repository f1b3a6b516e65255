"""The files of an arena: names, the header of the index, and checksums of the blocks.

The rule: an index is trusted only if its header states the exact length of the records file, and it was written since
the machine booted: files are not synced, so a power loss may have left holes in them. No block of a local copy is used
before its checksum was verified, once in the life of a process: by its first reader, or by the sweep
(`FileCheck.check_some`) over the other blocks.
"""

from __future__ import annotations

import struct
from array import array
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_digest, xxh3_64_intdigest

_INDEX_MAGIC: Final = b"USARENA2"
_HEADER: Final = struct.Struct("<8sIIIQQ36s")
HEADER_BYTES: Final = 128

ENTRY_OFFSET_BITS: Final = 36
"""Number of bits for a record's offset in an entry, below the upper bits of its hash, while an index is made."""

MAX_RECORDS_BYTES: Final = 1 << ENTRY_OFFSET_BITS
"""Limit on the content of an arena, 64 GiB: above it, a store partition does not belong on one node."""


class Header(NamedTuple):
    """The header of an index: hash seed, size of the index, size of the indexed records."""

    seed: int
    bucket_bits: int
    offset_bytes: int
    keys: int
    records_bytes: int
    boot: bytes

    def encoded(self) -> bytes:
        return _HEADER.pack(_INDEX_MAGIC, *self).ljust(HEADER_BYTES, b"\0")

    @property
    def starts_bytes(self) -> int:
        """Size of the bucket table, which follows the header; the offsets follow it."""
        return 4 * ((1 << self.bucket_bits) + 1)

    @property
    def index_bytes(self) -> int:
        return HEADER_BYTES + self.starts_bytes + self.keys * self.offset_bytes


def decode_header(raw: bytes) -> Header | None:
    """Parse a header; None when `raw` does not start a finished index."""
    if len(raw) < HEADER_BYTES or not raw.startswith(_INDEX_MAGIC):
        return None
    return Header(*_HEADER.unpack_from(raw)[1:])


def records_path(directory: Path) -> Path:
    return directory / "arena.records"


def index_path(directory: Path) -> Path:
    return directory / "arena.index"


def sums_path(directory: Path) -> Path:
    return directory / "arena.sums"


def order_path(directory: Path) -> Path:
    return directory / "arena.order"


def boot_id() -> bytes:
    """Return an id that changes with every boot; zeros where the system has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip().ljust(36, b"\0")
    except OSError:
        return bytes(36)


_SUMS_MAGIC: Final = b"USSUMS01"
_COUNTS: Final = struct.Struct("<8sQQ")
_DIGEST_BYTES: Final = 8
_SHIFT: Final = 14
BLOCK_BYTES: Final = 1 << _SHIFT
"""Size of a block: its first reader waits 4 us for the sum; the sums take 0.05 % of the files."""

SWEEP_BLOCKS: Final = 256
"""Number of blocks in one step of the sweep, 4 MiB: under a millisecond of work where they are in memory."""


class BlockSums:
    """The sums of a file's blocks, computed as it is written."""

    def __init__(self) -> None:
        self._sums = array("Q")
        self._open, self._filled = xxh3_64(), 0

    def add(self, piece: memoryview) -> None:
        """Take the next bytes of the file."""
        piece = piece.cast("B") if piece.format != "B" or piece.ndim != 1 else piece
        at = 0
        while at < len(piece):
            part = piece[at : at + BLOCK_BYTES - self._filled]
            at += len(part)
            # A part is as long as a block only between two blocks: most blocks need no state of their own.
            if len(part) == BLOCK_BYTES:
                self._sums.append(xxh3_64_intdigest(part))
                continue
            self._open.update(part)
            self._filled += len(part)
            if self._filled == BLOCK_BYTES:
                self._end_block()

    def end(self) -> array[int]:
        """Return the sums of the whole file."""
        if self._filled:
            self._end_block()
        return self._sums

    def _end_block(self) -> None:
        self._sums.append(self._open.intdigest())
        self._open, self._filled = xxh3_64(), 0


def write_sums(path: Path, records: array[int], index: array[int]) -> None:
    """Write the sums of both files, and the sum of these sums."""
    write_sealed(path, _COUNTS.pack(_SUMS_MAGIC, len(records), len(index)) + records.tobytes() + index.tobytes())


def read_sums(path: Path) -> tuple[array[int], array[int]] | None:
    """Read the sums of records and index; None when the file is not whole."""
    body = read_sealed(path)
    if body is None or len(body) < _COUNTS.size or not body.startswith(_SUMS_MAGIC):
        return None
    _, count, _ = _COUNTS.unpack_from(body)
    sums = array("Q", body[_COUNTS.size :])
    return sums[:count], sums[count:]


def write_sealed(path: Path, body: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.write(xxh3_64_digest(body))


def read_sealed(path: Path) -> bytes | None:
    """Read what `write_sealed` wrote; None when it is not that."""
    data = path.read_bytes()
    body = data[:-_DIGEST_BYTES]
    return body if data[-_DIGEST_BYTES:] == xxh3_64_digest(body) else None


class DamagedError(Exception):
    """A block differs from what was written. `args` says which, and how that was seen."""


class FileCheck:
    """The check of a mapped file's blocks against their sums."""

    def __init__(self, data: mmap, sums: array[int]) -> None:
        self.data = data
        self._view = memoryview(data)
        self._sums = sums
        self._checked = bytearray(len(sums))
        self._swept = 0

    @property
    def has_its_length(self) -> bool:
        """Whether the file has its full length: reading a part that was cut off would end the process (SIGBUS)."""
        return self.data.size() == len(self.data)

    def require(self, start: int, end: int) -> None:
        """Raise DamagedError unless the bytes from `start` to `end` are as they were written."""
        checked = self._checked
        for block in range(start >> _SHIFT, (end - 1 >> _SHIFT) + 1):
            if not checked[block]:
                self._check(block)

    def check_some(self) -> bool:
        """Compare the next SWEEP_BLOCKS; return False at the end of the arena."""
        end = min(self._swept + SWEEP_BLOCKS, len(self._sums))
        for block in range(self._swept, end):
            if not self._checked[block]:
                self._check(block)
        self._swept = end
        return end < len(self._sums)

    def release(self) -> None:
        self._view.release()

    def _check(self, block: int) -> None:
        start = block << _SHIFT
        if not self.has_its_length:
            raise DamagedError(f"it has {self.data.size()} bytes of {len(self.data)}")
        if xxh3_64_intdigest(self._view[start : start + BLOCK_BYTES]) != self._sums[block]:
            raise DamagedError(f"the block at byte {start} is not what was written")
        self._checked[block] = 1
