"""Counts of measurements in buckets of 1 %, so that memory does not grow with their number (pure)."""

from __future__ import annotations

import math
from collections import Counter

_STEP = math.log(1.01)
_ZERO = -(2**31)
"""The bucket of 0 and less: a time lag may be 0."""


class Histogram:
    """Percentiles are at most 1 % too high; `largest` is exact."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """One more measurement."""
        self.count += 1
        self.largest = max(self.largest, value)
        self._buckets[_ZERO if value <= 0 else math.ceil(math.log(value) / _STEP)] += 1

    def percentile(self, percent: float) -> float | None:
        """The value that so many per cent do not exceed; None without any."""
        left = self.count * percent / 100
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return 0.0 if bucket == _ZERO else min(self.largest, math.exp(bucket * _STEP))
        return None
