"""The interface of a base, the base of a store without a snapshot, and a cache of rows around a base.

The rule: a base is immutable. Any thread may read it, for as long as it holds a reference. So cached rows and their
printed form never change: nothing is ever invalidated. All bases of a process share one budget. There are two
generations: a row that is read again while it is in the older one moves to the younger one, and the older one is
dropped when the younger one is full.
"""

# ruff: noqa: B027 -- a base does nothing where it has nothing to do
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import Final, Literal

from understudy_shared.base.errors import CorruptFileError

NO_FAMILIES: Final[Mapping[str, int]] = MappingProxyType({})


class Base(ABC):
    """An ordered map of raw keys to raw values at one version. Keys order as bytes; `end` is exclusive.

    The methods that are not abstract suit a base without local files, or with a library that verifies checksums at each
    read.
    """

    families: Mapping[str, int] = NO_FAMILIES
    """Ids of Spark's virtual column families, which keys begin with. Spark writes them next to its files."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    @abstractmethod
    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...

    @abstractmethod
    def count(self) -> int:
        """Count the keys; an estimate where counting would mean reading them all."""

    @property
    @abstractmethod
    def resident_bytes(self) -> int:
        """Its own memory, without the shared block cache."""

    @property
    @abstractmethod
    def stored_bytes(self) -> int:
        """Size of its records, in files or memory."""

    @property
    def damage(self) -> CorruptFileError | None:
        """The damage of its local files, once it was seen: they have to be made again."""
        return None

    @property
    def has_background_work(self) -> bool:
        """Whether `work_in_background` has something left to do."""
        return False

    def prepare_scan(self) -> object:
        """Do the preparation of the first scan now, in this thread."""

    def work_in_background(self) -> None:
        """Compare some of its local files with their sums, or sort some of its keys, in one step; set `damage`."""

    def look_for_damage(self) -> None:
        """Check its local files without reading them; set `damage`."""

    def close(self) -> None:
        """Release files and memory. Only at the end of a process: views in flight may still read."""

    def remove_when_unused(self) -> None:
        """Delete its local files once the last view and reader of this base is gone."""


class WrappingBase(Base):
    """A base over another one, to which it passes its calls."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.families = base.families

    @property
    def wrapped(self) -> Base:
        return self._base

    def prepare_scan(self) -> object:
        return self._base.prepare_scan()

    def count(self) -> int:
        return self._base.count()

    @property
    def resident_bytes(self) -> int:
        return self._base.resident_bytes

    @property
    def stored_bytes(self) -> int:
        return self._base.stored_bytes

    @property
    def damage(self) -> CorruptFileError | None:
        return self._base.damage

    @property
    def has_background_work(self) -> bool:
        return self._base.has_background_work

    def work_in_background(self) -> None:
        self._base.work_in_background()

    def look_for_damage(self) -> None:
        self._base.look_for_damage()

    def close(self) -> None:
        self._base.close()

    def remove_when_unused(self) -> None:
        self._base.remove_when_unused()


def innermost(base: Base) -> Base:
    """Return the base that reads files, without its wrappers."""
    while isinstance(base, WrappingBase):
        base = base.wrapped
    return base


class EmptyBase(Base):
    """A base at version 0, before a store's first batch."""

    resident_bytes = stored_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def count(self) -> int:
        return 0


Place = tuple[int, bytes]
"""The place of a row: the section of a base, or of a printer, and the key in it."""

ENTRY_OVERHEAD_BYTES: Final = 250
"""Memory overhead of an entry: a dict entry, a tuple and two bytes objects."""

SHARE_OF_BLOCK_CACHE: Final = 4
"""The rows' budget is the block cache's divided by this: a row is about a twentieth of its block."""

MAX_ROW_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Limit on the cache. Half of it is dropped at a time: 25,000 rows of 80 bytes hold the interpreter for about 2 ms."""


class NotCached(Enum):
    """The result for a row that is not cached; None is an absent key."""

    UNKNOWN = "unknown"


UNKNOWN: Final = NotCached.UNKNOWN
Found = bytes | None | Literal[NotCached.UNKNOWN]


class RowCache:
    """Rows by place; None for a key that is absent. May be read and filled by any thread."""

    def __init__(self, capacity_bytes: int) -> None:
        """Start empty; a capacity of 0 caches nothing."""
        self.capacity_bytes = capacity_bytes
        self._half_bytes = capacity_bytes // 2
        self._young: dict[Place, bytes | None] = {}
        self._old: dict[Place, bytes | None] = {}
        self._young_bytes = self._old_bytes = 0
        self._sections = count()

    @property
    def used_bytes(self) -> int:
        """An estimate, from above: a row that two threads stored counts twice."""
        return self._young_bytes + self._old_bytes

    def new_section(self) -> int:
        """Return a new number for a base or a printer; it is never given again."""
        return next(self._sections)

    def all_of(self, places: Sequence[Place]) -> list[bytes | None] | None:
        """Return the rows at these places, if all of them are cached: the usual case, at the lowest cost."""
        young = self._young
        try:
            return [young[place] for place in places]
        except KeyError:
            return None

    def find(self, place: Place) -> Found:
        found: Found = self._young.get(place, UNKNOWN)
        if found is UNKNOWN and self._old:
            found = self._old.get(place, UNKNOWN)
            if found is not UNKNOWN:
                self.keep(place, found)
        return found

    def keep(self, place: Place, row: bytes | None) -> None:
        """Cache a row, unless it would take a large part of the budget."""
        size_bytes = ENTRY_OVERHEAD_BYTES + len(place[1]) + (0 if row is None else len(row))
        if size_bytes * 16 > self._half_bytes:
            return
        if self._young_bytes + size_bytes > self._half_bytes:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[place] = row
        self._young_bytes += size_bytes


class CachedBase(WrappingBase):
    """A base with cached rows. `families` are the ids of its column families."""

    def __init__(self, base: Base, rows: RowCache, families: Mapping[str, int] = NO_FAMILIES) -> None:
        super().__init__(base)
        self.families = families
        self._rows = rows
        self._section = rows.new_section()

    def __repr__(self) -> str:
        return f"CachedBase({self._base!r})"

    def get(self, key: bytes) -> bytes | None:
        place = (self._section, key)
        found = self._rows.find(place)
        if found is not UNKNOWN:
            return found
        row = self._base.get(key)
        self._rows.keep(place, row)
        return row

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return rows; those that are not cached are read in one call."""
        section, rows = self._section, self._rows
        places = [(section, key) for key in keys]
        known = rows.all_of(places)
        if known is not None:
            return known
        answers: list[bytes | None] = [None] * len(keys)
        unknown: list[int] = []
        for index, place in enumerate(places):
            found = rows.find(place)
            if found is UNKNOWN:
                unknown.append(index)
            else:
                answers[index] = found
        for index, row in zip(unknown, self._base.get_many([keys[index] for index in unknown]), strict=True):
            answers[index] = row
            rows.keep(places[index], row)
        return answers

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._base.scan(start, end)
