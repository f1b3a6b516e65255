"""The order of a store's keys for scans by prefix: those of one prefix lie together (pure).

For RocksDB Spark writes the prefix in front of a key (`PrefixKeyScanStateEncoder`). The HDFS-backed provider stores a
key as one row: null bitmap, a slot for each column, then what is too long for a slot. There the slot of the last
column, which is not of the prefix, lies before the strings of the prefix. Its eight bytes are moved to the end; the
length of keys does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from understudy_shared.base.errors import CorruptFileError

SLOT_BYTES: Final = 8
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
"""Limit on a record. A longer one is damage: it is held in memory while its key is moved."""

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """The order of a store's keys. `slot` is where the bytes begin that are moved behind all others; None: keys stay as
    they are.
    """

    slot: int | None = None

    def kept(self, key: bytes) -> bytes:
        """Return the key in the order of scans."""
        slot = self.slot
        return key if slot is None else key[:slot] + key[slot + SLOT_BYTES :] + key[slot : slot + SLOT_BYTES]

    def original(self, key: bytes) -> bytes:
        """Return the key as Spark stores it."""
        slot = self.slot
        return key if slot is None else key[:slot] + key[-SLOT_BYTES:] + key[slot:-SLOT_BYTES]

    def changes(self, changes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Return changes by their keys in the order of scans, sorted: tiers of those are cheap to merge."""
        kept = self.kept
        return dict(sorted([(kept(key), value) for key, value in changes.items()]))

    def pieces(self, pieces: Iterable[bytes | memoryview], *, where: str) -> Iterator[bytes | memoryview]:
        """Yield the content of a snapshot, with its keys in the order of scans; its pieces end with whole records.

        Malformed bytes are passed on as they are: the reader of the content judges them.
        """
        if self.slot is None:
            yield from pieces
            return
        held = bytearray()
        for piece in pieces:
            held += piece
            whole = self._move_slots(held)
            if whole:
                yield bytes(held[:whole])
                del held[:whole]
            if len(held) > MAX_RECORD_BYTES:
                raise CorruptFileError(f"a record has more than {MAX_RECORD_BYTES} bytes", where=where)
        if held:
            yield bytes(held)

    def _move_slots(self, content: bytearray) -> int:
        """Move the slot in the key of each whole record; return where the last of them ends."""
        slot = self.slot
        assert slot is not None, "asked only then"
        at, end = 0, len(content)
        while at + _LENGTH_BYTES <= end:
            key_at = at + _LENGTH_BYTES
            key_bytes = int.from_bytes(content[at:key_at], "big", signed=True)
            if key_bytes < 0:
                return end  # the end mark, or damage
            value_at = key_at + key_bytes
            if value_at + _LENGTH_BYTES > end:
                break
            value_bytes = int.from_bytes(content[value_at : value_at + _LENGTH_BYTES], "big", signed=True)
            if value_bytes < 0:
                return end
            record_end = value_at + _LENGTH_BYTES + value_bytes
            if record_end > end:
                break
            content[key_at:value_at] = self.kept(bytes(content[key_at:value_at]))
            at = record_end
        return at


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with `prefix`; None when there is no such key."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
