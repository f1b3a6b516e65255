"""Time as an argument: durations come from a monotonic clock, wall time is only printed.

No clock of this machine is compared with another machine's, but for two purposes: a signed message that is minutes
away from the clock here is refused (`bus/replay.py`); and a TTL, which Spark counts by the time of day, is over when
the time of day here says so (`stores/state_variables.py` of nodes).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that measures durations needs; tests pass one that they move by hand."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary point, never going back."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch, for people to read."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """A clock that stands still until a test moves it: the fake that ships beside the real one."""

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


def wall_ms() -> int:
    """The time of day in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
