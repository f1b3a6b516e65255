"""The files of an arena and the header of its index.

The rule: an index is trusted only if its header states the exact length of the records file beside it, and was
written since the machine last booted: files are not synced, so a power loss may have left holes in them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

_MAGIC: Final = b"USARENA2"
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
        return _HEADER.pack(_MAGIC, *self).ljust(HEADER_BYTES, b"\0")

    @property
    def starts_bytes(self) -> int:
        """Size of the bucket table, which follows the header; the offsets follow it."""
        return 4 * ((1 << self.bucket_bits) + 1)

    @property
    def index_bytes(self) -> int:
        return HEADER_BYTES + self.starts_bytes + self.keys * self.offset_bytes


def decode_header(raw: bytes) -> Header | None:
    """Parse a header; None when `raw` does not start a finished index."""
    if len(raw) < HEADER_BYTES or not raw.startswith(_MAGIC):
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
