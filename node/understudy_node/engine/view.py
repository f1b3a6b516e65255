"""One version of a store partition: dict tiers of changes over an optional spill over a read-only base.

The rule: nothing that a view refers to is ever changed. Publishing a version is swapping one reference, and a reader in
flight keeps the version it started with by keeping its view. A layer that spans the base's version may stay on top of
it: each of its entries is newer than the base's, or equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from understudy_node.engine.base import Base
from understudy_node.engine.merging import newer_over_older, without_deletes
from understudy_node.engine.spill import Spill
from understudy_node.engine.tier import Tier, with_newest, without_settled


class View:
    """The state at `version`: `base` as of `base_version`, and the changes since."""

    __slots__ = ("_dicts", "base", "base_version", "spill", "tiers", "version")

    def __init__(
        self, base: Base, *, version: int, base_version: int, tiers: tuple[Tier, ...] = (), spill: Spill | None = None
    ) -> None:
        assert base_version <= version, f"a base at {base_version} is ahead of its view at {version}"
        self.base = base
        self.base_version = base_version
        self.version = version
        self.tiers = tiers
        """The tiers, newest first."""
        self.spill = spill
        self._dicts = tuple(tier.changes for tier in tiers)

    @classmethod
    def of(cls, base: Base, version: int) -> View:
        """Make a view of `base` without changes."""
        return cls(base, version=version, base_version=version)

    def __repr__(self) -> str:
        spill = f", {self.spill!r}" if self.spill else ""
        return f"View(version={self.version}, base={self.base_version}{spill}, tiers={list(self.tiers)})"

    @property
    def overlay_bytes(self) -> int:
        """Memory of the changes, which a new base or a spill would free."""
        return sum(tier.resident_bytes for tier in self.tiers)

    @property
    def resident_bytes(self) -> int:
        """Overlay, spill and base together; the block cache that bases share is not in it."""
        return self.overlay_bytes + (self.spill.resident_bytes if self.spill else 0) + self.base.resident_bytes

    @property
    def stored_bytes(self) -> int:
        """Size of its records, in files and memory: about what a new replica has to read."""
        return self.overlay_bytes + (self.spill.stored_bytes if self.spill else 0) + self.base.stored_bytes

    def get(self, key: bytes) -> bytes | None:
        for changes in self._dicts:
            if key in changes:
                return changes[key]
        if self.spill is not None:
            spilled = self.spill.find(key)
            if spilled is not None:
                return spilled.value
        return self.base.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values in the order of `keys`. Keys that the overlay lacks are read from the base in one call."""
        if self.spill is None and all(changes.keys().isdisjoint(keys) for changes in self._dicts):
            return self.base.get_many(keys)
        answers: list[bytes | None] = [None] * len(keys)
        unknown: list[int] = []
        # Tiers, spill and base in one function: calls between them would cost every batch.
        for position, key in enumerate(keys):
            for changes in self._dicts:
                if key in changes:
                    answers[position] = changes[key]
                    break
            else:
                unknown.append(position)
        if self.spill is not None and unknown:
            found = self.spill.find_many([keys[position] for position in unknown])
            for position, spilled in zip(unknown, found, strict=True):
                answers[position] = spilled.value if spilled else None
            unknown = [position for position, spilled in zip(unknown, found, strict=True) if spilled is None]
        if unknown:
            values = self.base.get_many([keys[position] for position in unknown])
            for position, value in zip(unknown, values, strict=True):
                answers[position] = value
        return answers

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield records with `start <= key < end` in byte order, all of this version however long the reader takes."""
        layers: list[Iterator[tuple[bytes, bytes | None]]] = [tier.scan(start, end) for tier in self.tiers]
        if self.spill is not None:
            layers.append(self.spill.scan(start, end))
        base = self.base.scan(start, end)
        if not layers:
            return base
        # The small layers first, so that a record of the base, the long one, passes through one merge only.
        return without_deletes(newer_over_older(reduce(newer_over_older, layers), base))

    def changes_since(self, version: int) -> tuple[Mapping[bytes, bytes | None], ...] | None:
        """Return mappings that have each key that changed after a version, and some that did not; None where the base
        or the spill may hold such a change.
        """
        spilled = 0 if self.spill is None else self.spill.last_version
        if max(self.base_version, spilled) > version:
            return None
        return tuple(tier.changes for tier in self.tiers if tier.last_version > version)

    def prepare_scan(self) -> None:
        """Sort in this thread what the first scan would have to sort, so that no reader waits for it."""
        for tier in self.tiers:
            tier.prepare_scan()
        self.base.prepare_scan()

    def with_changes(self, changes: Mapping[bytes, bytes | None], version: int) -> View:
        """Return the view after one or several more versions. `changes` is given away: never change it again."""
        assert version > self.version, f"version {version} is not newer than {self.version}"
        tiers = self.tiers
        if changes:
            tiers = with_newest(tiers, Tier(changes, first_version=self.version + 1, last_version=version))
        return View(self.base, version=version, base_version=self.base_version, tiers=tiers, spill=self.spill)

    def with_base(self, base: Base, base_version: int) -> View:
        """Return the same version on a newer base; layers that the base already contains are dropped."""
        assert self.base_version <= base_version <= self.version, (
            f"a base at {base_version} does not fit between {self.base_version} and {self.version}"
        )
        spill = self.spill if self.spill is not None and self.spill.last_version > base_version else None
        tiers = without_settled(self.tiers, base_version)
        return View(base, version=self.version, base_version=base_version, tiers=tiers, spill=spill)

    def with_spill(self, spill: Spill) -> View:
        """Return the same version with `spill`, written from an earlier version of this view, in place of the tiers it
        holds.

        When a newer base overtook the spill while it was written, the view is returned unchanged.
        """
        assert spill.last_version <= self.version, f"a spill up to {spill.last_version} is ahead of {self.version}"
        held = self.spill.last_version if self.spill is not None else self.base_version
        if spill.last_version <= max(held, self.base_version):
            return self
        tiers = without_settled(self.tiers, spill.last_version)
        return View(self.base, version=self.version, base_version=self.base_version, tiers=tiers, spill=spill)
