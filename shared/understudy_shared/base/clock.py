"""Time as an argument: durations come from a monotonic clock, wall time is only printed.

Clocks of two machines are compared only where a time was written elsewhere: a TTL, which Spark counts by time of day
(`stores/state_variables.py` of nodes); the time of a read with `at`, against commit times; the end of a token.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clock that code needs to measure durations; tests pass one that they move by hand."""

    def monotonic_ms(self) -> float:
        """Return milliseconds since an arbitrary point, never going back."""

    def wall_us(self) -> int:
        """Return microseconds since the Unix epoch, for people to read."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6

    def wall_us(self) -> int:
        return time.time_ns() // 1000


def wall_ms() -> int:
    """Return the time of day in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
