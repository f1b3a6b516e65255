"""What bytes of requests parsed to: requests repeat. What is kept are parsed requests, never answers (pure)."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ENTRIES = 16_384

MAX_TARGET_BYTES = 256
"""With its parsed request a target takes about 1 KiB: 20 MB in all."""

MAX_HEAD_BYTES = 4096
"""Requests of common clients have 50 to 300 bytes, and with a token of an issuer 700 to 2,500."""

MAX_BYTES = 8 * 1024 * 1024
"""Most bytes of all keys together: long ones have fewer entries. With what they parsed to it is 20 MB."""

T = TypeVar("T")


class ParsedCache(Generic[T]):
    """Keeps at most MAX_ENTRIES and MAX_BYTES, in two generations: the older half goes when the younger is full."""

    def __init__(self, *, max_key_bytes: int) -> None:
        """Longer keys are not kept."""
        self._max_key_bytes = max_key_bytes
        self._young: dict[bytes, T] = {}
        self._young_bytes = 0
        self._old: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        """What was kept of it."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: bytes, parsed: T) -> None:
        """Keep it, unless the key is unusually long."""
        if len(key) > self._max_key_bytes:
            return
        if len(self._young) >= MAX_ENTRIES // 2 or self._young_bytes + len(key) > MAX_BYTES // 2:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        if key not in self._young:
            self._young_bytes += len(key)
        self._young[key] = parsed

    def clear(self) -> None:
        self._young, self._young_bytes, self._old = {}, 0, {}
