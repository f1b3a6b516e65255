"""A cache of parsed requests by their bytes: requests repeat. It never contains answers (pure)."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ENTRIES = 16_384

MAX_TARGET_BYTES = 256
"""Longest cached target. With its parsed request a target takes about 1 KiB: 20 MB in all."""

MAX_HEAD_BYTES = 4096
"""Longest cached head. Requests of common clients have 50 to 300 bytes, and 700 to 2,500 with a token of an issuer."""

MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of all keys together: with long keys there are fewer entries. With the parsed requests it is 20 MB."""

T = TypeVar("T")


class ParsedCache(Generic[T]):
    """A cache of at most MAX_ENTRIES and MAX_BYTES: if the younger half is full, the older half is dropped."""

    def __init__(self, *, max_key_bytes: int) -> None:
        """Create a cache that ignores longer keys."""
        self._max_key_bytes = max_key_bytes
        self._young: dict[bytes, T] = {}
        self._young_bytes = 0
        self._old: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        """Return the cached entry of a key."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: bytes, parsed: T) -> None:
        """Cache an entry, unless its key is longer than `max_key_bytes`."""
        if len(key) > self._max_key_bytes:
            return
        if len(self._young) >= MAX_ENTRIES // 2 or self._young_bytes + len(key) > MAX_BYTES // 2:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        if key not in self._young:
            self._young_bytes += len(key)
        self._young[key] = parsed

    def clear(self) -> None:
        self._young, self._young_bytes, self._old = {}, 0, {}
