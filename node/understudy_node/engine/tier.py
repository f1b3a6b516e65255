"""Dict tiers: the changes of one or more versions, in memory, never changed once a view shows them.

The rule: small tiers are merged into new ones so that a lookup probes few of them, and no merge is large enough to
hold up the process. Merging copies dicts at C speed, but holds the GIL while it does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from sys import getsizeof
from typing import Final

# 0.1 us per entry: one merge stays below 5 ms. Tiers beyond this size stay apart, at 0.04 us per tier and lookup
# (a base costs 3 us or more); the overlay's budget in bytes bounds their number.
TIER_ENTRIES_MAX: Final = 32_768
# Two bytes objects of 33 bytes plus content, each rounded up to 16 by the allocator: 2 x (33 + 8) on average.
_ENTRY_OVERHEAD_BYTES: Final = 82
_POINTER_BYTES: Final = 8
# One C call over this many entries holds the GIL for well below a millisecond.
_MEASURE_STEP_ENTRIES: Final = 4_096


class Tier:
    """The last change of every key touched in `first_version..last_version`; None is a delete."""

    __slots__ = ("_changes_bytes", "_sorted_keys", "changes", "first_version", "last_version")

    def __init__(self, changes: Mapping[bytes, bytes | None], *, first_version: int, last_version: int) -> None:
        self.changes = changes
        self.first_version = first_version
        self.last_version = last_version
        self._sorted_keys: list[bytes] | None = None
        self._changes_bytes = measured_bytes(changes)

    def __repr__(self) -> str:
        return (
            f"Tier({self.first_version}..{self.last_version}, {len(self.changes)} entries, {self.resident_bytes} bytes)"
        )

    @property
    def resident_bytes(self) -> int:
        """Its own memory: table, keys, values, and the key order once a scan needed it."""
        return self._changes_bytes + (_POINTER_BYTES * len(self.changes) if self._sorted_keys is not None else 0)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        keys = self.prepare_scan()
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        changes = self.changes
        return ((keys[at], changes[keys[at]]) for at in range(first, last))

    def prepare_scan(self) -> list[bytes]:
        """Return the keys in order, sorted once."""
        # Two threads may both sort: the lists are equal, and either may be kept.
        keys = self._sorted_keys
        if keys is None:
            keys = self._sorted_keys = sorted(self.changes)
        return keys


def with_newest(tiers: tuple[Tier, ...], newest: Tier) -> tuple[Tier, ...]:
    """Put `newest` on top (tiers are newest first), merged down while it is at least half as large as the next."""
    rest = list(tiers)
    while rest:
        size, next_size = len(newest.changes), len(rest[0].changes)
        if size * 2 < next_size or size + next_size > TIER_ENTRIES_MAX:
            break
        older = rest.pop(0)
        newest = Tier(
            {**older.changes, **newest.changes}, first_version=older.first_version, last_version=newest.last_version
        )
    return (newest, *rest)


def without_settled(tiers: tuple[Tier, ...], version: int) -> tuple[Tier, ...]:
    """Return the tiers with changes after `version`. One that spans it stays whole: old entries equal the base's."""
    return tuple(tier for tier in tiers if tier.last_version > version)


def measured_bytes(changes: Mapping[bytes, bytes | None]) -> int:
    """Measure the memory of a tier's table, keys and values."""
    keys, values = iter(changes), filter(None, changes.values())
    content = 0
    for _ in range(0, len(changes), _MEASURE_STEP_ENTRIES):
        content += sum(map(len, islice(keys, _MEASURE_STEP_ENTRIES)))
        content += sum(map(len, islice(values, _MEASURE_STEP_ENTRIES)))
    return getsizeof(changes) + content + _ENTRY_OVERHEAD_BYTES * len(changes)


def release_tiers(tiers: list[Tier]) -> Generator[None, None, None]:
    """Drop replaced tiers one step at a time: freeing 100,000 entries at once would hold the GIL for 10 ms.

    Pass `list(old_view.tiers)`, publish the new view, then let a worker exhaust this generator.
    """
    while tiers:
        tiers.pop()
        yield
