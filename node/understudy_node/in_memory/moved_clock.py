"""A clock that a test moves forward."""

from __future__ import annotations

from understudy_shared.base.clock import SystemClock


class MovedClock(SystemClock):
    """The machine's clocks, and the time by which they were moved: both of them, as if it had passed."""

    def __init__(self) -> None:
        self._moved_ms = 0.0

    def move(self, by_ms: float) -> None:
        """Move the clock forward."""
        self._moved_ms += by_ms

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self._moved_ms

    def wall_us(self) -> int:
        return super().wall_us() + round(self._moved_ms * 1000)
