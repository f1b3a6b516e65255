"""A histogram with the buckets of Prometheus: cheap enough for every lookup (pure).

One thread observes; readers on other threads see counts that may be one value apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

STALENESS_BOUNDS_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
OFFSET_LAG_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1000)
"""Ages of answers, in versions: from following in step to being of no use."""


class Histogram:
    """`counts[i]` are the values above `bounds[i - 1]` and up to `bounds[i]`; the last are those above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start at zero. Raises ValueError unless the bounds grow."""
        if not bounds or any(lower >= upper for lower, upper in pairwise(bounds)):
            raise ValueError(f"the bounds of a histogram must grow: {list(bounds)}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"Histogram({self.total} values, {self.sum:g} in all)"

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, times: int) -> None:
        """Count so many equal values."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def total(self) -> int:
        """The number of values that were observed."""
        return sum(self.counts)


def upper_bound(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the quantile `share` rounded up to a bucket's bound: the least bound that at least this share of the
    values does not exceed. None without values, and infinity where it lies above every bound.
    """
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= share * total:
            return bound
    return float("inf")
