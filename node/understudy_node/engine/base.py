"""The interface of a base, and the base of a store that has no snapshot yet.

The rule: a base is immutable. Any thread may read it, for as long as it holds a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from understudy_shared.base.errors import CorruptFileError

NO_FAMILIES: Final[Mapping[str, int]] = MappingProxyType({})


class Base(Protocol):
    """An ordered map of raw keys to raw values at one version. Keys order as bytes; `end` is exclusive."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...

    def prepare_scan(self) -> object:
        """Do in this thread what the first scan would have to do."""

    def count(self) -> int:
        """Count the keys; an estimate where counting would mean reading them all."""

    @property
    def families(self) -> Mapping[str, int]:
        """Ids of Spark's virtual column families, with which their keys begin; empty for a store without them."""

    @property
    def resident_bytes(self) -> int:
        """Its own memory, without the shared block cache."""

    @property
    def stored_bytes(self) -> int:
        """Size of its records, in files or memory."""

    @property
    def damage(self) -> CorruptFileError | None:
        """The damage of its local files, once it was seen: they have to be made again."""

    @property
    def has_background_work(self) -> bool:
        """Whether `work_in_background` has something left to do."""

    def work_in_background(self) -> None:
        """Compare some of its local files with their sums, or sort some of its keys, in one step; set `damage`."""

    def look_for_damage(self) -> None:
        """Check everything that needs no reading; set `damage`."""

    def close(self) -> None:
        """Release files and memory. Only at the end of a process: views in flight may still read."""

    def remove_when_unused(self) -> None:
        """Delete its local files once the last view and reader of this base is gone."""


class SelfCheckingBase:
    """A base without local files, or one whose library compares sums at each read."""

    damage = None
    has_background_work = False

    def work_in_background(self) -> None:
        """Do nothing: nothing is left to compare or to sort."""

    def look_for_damage(self) -> None:
        """Do nothing: each read compares sums itself."""


class WrappingBase:
    """A base over another one, with the calls that it hands down."""

    def __init__(self, base: Base) -> None:
        self._base = base

    @property
    def wrapped(self) -> Base:
        """The base below."""
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
    """Return the base that reads files, without what is around it."""
    while isinstance(base, WrappingBase):
        base = base.wrapped
    return base


class EmptyBase(SelfCheckingBase):
    """A base at version 0, before a store's first batch."""

    resident_bytes = 0
    stored_bytes = 0
    families = NO_FAMILIES

    def get(self, key: bytes) -> bytes | None:
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def prepare_scan(self) -> None:
        """Do nothing: there is nothing to sort."""

    def count(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: there is no file or memory to release."""

    def remove_when_unused(self) -> None:
        """Do nothing: there are no files."""
