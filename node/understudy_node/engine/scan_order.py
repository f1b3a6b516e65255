"""In which order the keys of a store lie that readers scan by prefix: those of one prefix lie together (pure).

RocksDB keeps a prefix as such in front of its keys. The HDFS-backed provider stores a key as one row: null bitmap, a
slot for each column, then what is too long for a slot. There the slot of the last column, which is not of the prefix,
lies before the strings of the prefix. Its eight bytes are moved to the end; keys stay as long as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from understudy_shared.base.errors import CorruptFileError

SLOT_BYTES: Final = 8
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
"""A longer record is damage: it is held in memory while its key is looked at."""

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """`slot` is where in a key the bytes begin that are kept behind all others; None: keys are kept as they are."""

    slot: int | None = None

    def kept(self, key: bytes) -> bytes:
        """The key as it is kept."""
        slot = self.slot
        return key if slot is None else key[:slot] + key[slot + SLOT_BYTES :] + key[slot : slot + SLOT_BYTES]

    def original(self, key: bytes) -> bytes:
        """The key as Spark stores it."""
        slot = self.slot
        return key if slot is None else key[:slot] + key[-SLOT_BYTES:] + key[slot:-SLOT_BYTES]

    def changes(self, changes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Changes by the keys as they are kept, in their order: merging tiers of such is cheap to sort."""
        kept = self.kept
        return dict(sorted([(kept(key), value) for key, value in changes.items()]))

    def pieces(self, pieces: Iterable[bytes | memoryview], *, where: str) -> Iterator[bytes | memoryview]:
        """The content of a snapshot, with its keys as they are kept; its pieces end with whole records.

        What is no record is passed on as it is: who reads the content judges it.
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
                raise CorruptFileError(f"a record of more than {MAX_RECORD_BYTES} bytes", where=where)
        if held:
            yield bytes(held)

    def _move_slots(self, content: bytearray) -> int:
        """Move the slot in the key of each whole record; returns where the last of them ends."""
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
    """The first key behind all that begin with `prefix`; None when there is none."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
