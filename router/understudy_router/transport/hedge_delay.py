"""The time that a read waits for one node before a hedge (pure: no I/O, no clock).

The hedge delay is the p95 latency of reads, but never above a fixed limit: a slow node raises the percentile itself
(CASSANDRA-14293). Actives and other replicas are measured separately.
"""

from __future__ import annotations

import math

MIN_HEDGE_MS = 10.0
"""Shortest hedge delay: below it, a garbage collection or a busy loop would look like a slow node."""

PERCENTILE = 0.95

_STEP = math.log(1.2)
"""The logarithm of the ratio of neighbouring buckets. Each bucket's limit is 1.2 times that of the one before: an
estimate is at most 20 % too high."""

_FIRST_MS = 0.1
_BUCKETS = 75
"""Number of buckets: they reach up to 0.1 ms * 1.2^74, more than a minute."""

_MIN_COUNT = 20
"""Fewest measurements for an estimate: with fewer, one slow read would be the p95."""

_MAX_COUNT = 1000
"""The count at which all counts are halved: older reads weigh less, and a change shows after as many reads."""


class Quantile:
    """A decaying histogram."""

    def __init__(self) -> None:
        self._counts = [0.0] * _BUCKETS
        self._count = 0.0
        self._estimate_ms: float | None = None
        self._is_new = False

    def add(self, took_ms: float) -> None:
        """Add one measurement."""
        bucket = 0 if took_ms <= _FIRST_MS else math.ceil(math.log(took_ms / _FIRST_MS) / _STEP)
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self._count += 1
        self._is_new = True
        if self._count >= _MAX_COUNT:
            self._counts = [count / 2 for count in self._counts]
            self._count /= 2

    def estimate_ms(self) -> float | None:
        """Return the PERCENTILE, at most one bucket too high; `None` before _MIN_COUNT measurements."""
        # It is asked for once per tick, and changes with each read: computing it per read would be wasted.
        if self._is_new and self._count >= _MIN_COUNT:
            self._is_new = False
            self._estimate_ms = self._limit_ms()
        return self._estimate_ms

    def _limit_ms(self) -> float:
        left = self._count * PERCENTILE
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return float(_FIRST_MS * math.exp(_STEP * bucket))
        return float(_FIRST_MS * math.exp(_STEP * (_BUCKETS - 1)))


class Patience:
    """The hedge delay, by role."""

    def __init__(self, *, hedge_after_ms: float) -> None:
        """Set the limit of the hedge delay, in ms; 0 switches hedges off."""
        self.hedges = hedge_after_ms > 0
        self._limit_ms = hedge_after_ms
        self._active = Quantile()
        self._others = Quantile()

    def took(self, took_ms: float, *, is_active: bool) -> None:
        """Record how long a read of an active, or of another replica, took until its answer or its end."""
        (self._active if is_active else self._others).add(took_ms)

    def hedge_ms(self, *, is_active: bool) -> float:
        """Return the time to wait for a replica of this role, in ms; infinite when hedges are off."""
        if not self.hedges:
            return math.inf
        usual_ms = (self._active if is_active else self._others).estimate_ms()
        limit_ms = self._limit_ms if usual_ms is None else min(usual_ms, self._limit_ms)
        return max(limit_ms, MIN_HEDGE_MS)
