"""The order of a store's keys for scans, and the records of a view in that order, in slices of some thousand (pure).

A scan by prefix needs the keys of one prefix together. In RocksDB, Spark writes the prefix before a key
(`PrefixKeyScanStateEncoder`). The HDFS-backed provider stores a key as one row: null bitmap, a slot for each column,
then what is too long for a slot. There the slot of the last column, which is not part of the prefix, lies before the
prefix's strings. Its eight bytes are moved to the end; the length of keys does not change.

A slice is a flat list: key, value, key, value. A list of pairs, or a generator, would cost as much as the reading.
Changes above the base are merged slice by slice, and only where they have keys of that slice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice
from typing import Final

from understudy_node.engine.base import CachedBase
from understudy_node.engine.rocksdb_base import RocksBase
from understudy_node.engine.view import StateView, newer_over_older
from understudy_shared.base.errors import CorruptFileError

SLOT_BYTES: Final = 8
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
"""Limit on a record. A longer one is damage: it is held in memory while its key is moved."""

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ScanOrder:
    """The order of a store's keys. `slot` is the start of the bytes that are moved to the end; None: keys stay as they
    are.
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
    """Return the first key after all that begin with `prefix`; None if there is no such key."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None


SLICE_RECORDS: Final = 4_096
"""Number of records in a slice: NumPy's calls cost little for so many, and they fit the processor's cache."""

SLICE_BYTES: Final = 1024 * 1024
"""Size at which a slice ends early."""

FIRST_RECORDS: Final = 8
"""Records in the first slice; their size sets the size of the next, which has at most this factor more, and so on."""

SEEN_RECORDS: Final = 64
"""Number of records sampled to choose the size of the next slice."""

Change = tuple[bytes, bytes | None]


def slices(
    view: StateView, start: bytes | None, end: bytes | None = None, *, slice_bytes: int = SLICE_BYTES
) -> Iterator[list[bytes]]:
    """Yield the records of a view from `start` to `end`, in slices of about `slice_bytes` that are not empty."""
    slice_bytes = min(slice_bytes, SLICE_BYTES)
    base = _base_slices(view, start, end, slice_bytes)
    layers: list[Iterator[Change]] = [tier.scan(start, end) for tier in view.tiers]
    if view.spill is not None:
        layers.append(view.spill.scan(start, end))
    if not layers:
        return base
    return _merged(base, _Ahead(reduce(newer_over_older, layers), slice_bytes))


def _base_slices(view: StateView, start: bytes | None, end: bytes | None, slice_bytes: int) -> Iterator[list[bytes]]:
    count = 2 * FIRST_RECORDS

    def next_slice(flat: Iterator[bytes]) -> list[bytes]:
        nonlocal count
        records = list(islice(flat, count))
        if records:
            # Long records make slices shorter: as many as fit, by those seen last.
            seen = records[-2 * SEEN_RECORDS :]
            record_bytes = 1 + sum(map(len, seen)) * 2 // len(seen)
            most = min(SLICE_RECORDS, FIRST_RECORDS * len(records) // 2)
            count = 2 * max(1, min(most, slice_bytes // record_bytes))
        return records

    base = view.base.wrapped if isinstance(view.base, CachedBase) else view.base
    if isinstance(base, RocksBase):
        return base.scan_flat(start, end, next_slice)
    flat = chain.from_iterable(base.scan(start, end))
    return iter(lambda: next_slice(flat), [])


def _merged(base: Iterator[list[bytes]], ahead: _Ahead) -> Iterator[list[bytes]]:
    for records in base:
        rest = records
        while rest and (newer := ahead.up_to(rest[-2])):
            keys = rest[::2]
            # Changes that are left for the next round keep the records after the last of them for it, too.
            cut = bisect_right(keys, newer[-1][0]) if ahead.has_up_to(rest[-2]) else len(keys)
            if found := _overlaid(rest[: 2 * cut], keys[:cut], newer):
                yield found
            rest = rest[2 * cut :]
        if rest:
            yield rest
    while newer := ahead.up_to(None):
        if found := _overlaid([], [], newer):
            yield found


class _Ahead:
    """Changes, some at a time."""

    def __init__(self, changes: Iterator[Change], most_bytes: int) -> None:
        self._changes = changes
        self._next = next(changes, None)
        self._most_bytes = most_bytes

    def has_up_to(self, last: bytes | None) -> bool:
        """Whether there is a change of a key up to `last`; None: of any key."""
        return self._next is not None and (last is None or self._next[0] <= last)

    def up_to(self, last: bytes | None) -> list[Change]:
        """Take as many of these changes as a slice may have."""
        taken: list[Change] = []
        taken_bytes = 0
        while self._next is not None and self.has_up_to(last):
            taken.append(self._next)
            taken_bytes += len(self._next[0]) + len(self._next[1] or b"")
            self._next = next(self._changes, None)
            if len(taken) >= SLICE_RECORDS or taken_bytes >= self._most_bytes:
                break
        return taken


def _overlaid(records: list[bytes], keys: list[bytes], newer: list[Change]) -> list[bytes]:
    """Return the records of these keys with the changes over them, without those that are deleted."""
    found: list[bytes] = []
    done = 0
    for key, value in newer:
        at = bisect_left(keys, key, done)
        found += records[2 * done : 2 * at]
        if value is not None:
            found += (key, value)
        done = at + (at < len(keys) and keys[at] == key)
    return found + records[2 * done :]
