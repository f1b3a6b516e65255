"""A clock that tests move by hand."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, *, monotonic_ms: float = 0.0, wall_us: int = 0) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_us = wall_us

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def wall_us(self) -> int:
        return self._wall_us

    def advance(self, ms: float) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        if ms < 0:
            raise ValueError("a monotonic clock does not go back")
        self._monotonic_ms += ms
        self._wall_us += int(ms * 1000)
