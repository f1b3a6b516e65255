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


def wall_ms() -> int:
    """The time of day in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
