"""What bytes of requests parsed to: requests repeat. What is kept are parsed requests, never answers (pure)."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ENTRIES = 16_384

MAX_TARGET_BYTES = 256
"""With its parsed request a target takes about 1 KiB: 20 MB in all."""

MAX_HEAD_BYTES = 512
"""Requests of common clients have 50 to 300 bytes: 10 MB in all."""

T = TypeVar("T")


class ParsedCache(Generic[T]):
    """Keeps at most MAX_ENTRIES, in two generations: the older half is dropped when the younger is full."""

    def __init__(self, *, max_key_bytes: int) -> None:
        """Longer keys are not kept."""
        self._max_key_bytes = max_key_bytes
        self._young: dict[bytes, T] = {}
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
        if len(self._young) >= MAX_ENTRIES // 2:
            self._old, self._young = self._young, {}
        self._young[key] = parsed

    def clear(self) -> None:
        self._young, self._old = {}, {}
