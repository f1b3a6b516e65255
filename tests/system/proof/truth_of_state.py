"""The truth that answers are held against: every key's value at every version, by Spark's own state reader (pure)."""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

Value = dict[str, Any]

ABSENT = None
"""The value of a key that the store does not have."""


class Truth:
    """store -> key -> changes: the version from which a value holds, and the value (`ABSENT`: not there any more).

    It covers versions `first` to `last`; what is asked outside raises LookupError, as does a store it does not know.
    """

    def __init__(
        self, stores: Mapping[str, Mapping[str, Sequence[tuple[int, Value | None]]]], *, first: int, last: int
    ) -> None:
        """The changes of a key have to be in the order of their versions."""
        self.first, self.last = first, last
        self._changes = {store: {key: list(changes) for key, changes in keys.items()} for store, keys in stores.items()}
        for store, keys in self._changes.items():
            for key, changes in keys.items():
                versions = [version for version, _ in changes]
                if versions != sorted(set(versions)):
                    raise ValueError(f"{store} {key}: the versions of its changes do not rise: {versions}")

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(self._changes)

    def at(self, store: str, key: str, version: int) -> Value | None:
        """The value at `version`, or ABSENT."""
        if store not in self._changes:
            raise LookupError(f"the truth knows no store {store!r}")
        if not self.first <= version <= self.last:
            raise LookupError(f"the truth covers versions {self.first} to {self.last}")
        changes = self._changes[store].get(key, ())
        index = bisect_right(changes, version, key=lambda change: change[0]) - 1
        return ABSENT if index < 0 else changes[index][1]

    def keys(self, store: str) -> Iterator[str]:
        """Every key that the store ever had."""
        return iter(self._changes[store])

    def changes(self, store: str, key: str) -> Sequence[tuple[int, Value | None]]:
        """Each version that wrote a key, with the value from there on."""
        return self._changes[store].get(key, ())

    def state(self, store: str, version: int) -> dict[str, Value]:
        """Every key that the store has at `version`, with its value."""
        values = ((key, self.at(store, key, version)) for key in self._changes[store])
        return {key: value for key, value in values if value is not ABSENT}

    def save(self, path: Path) -> None:
        """Save the truth as gzipped JSON."""
        document = {"first": self.first, "last": self.last, "stores": self._changes}
        path.write_bytes(gzip.compress(orjson.dumps(document), compresslevel=3))

    @classmethod
    def load(cls, path: Path) -> Truth:
        """What `save` wrote."""
        document = orjson.loads(gzip.decompress(path.read_bytes()))
        return cls(document["stores"], first=document["first"], last=document["last"])
