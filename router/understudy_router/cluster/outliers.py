"""The detection of outliers: nodes that take much longer than the others (pure: time is passed in).

Medians are compared with medians: one large batch or one pause makes no outlier, and a few slow nodes do not change
what is normal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import median_low

OUTLIER_FACTOR = 5
OUTLIER_MS = 50
"""Limits of an outlier: a node is one when its median is above this factor of the others' median, and above this time.
"""

RECENT = 15
MIN_RECENT = 5
RECENT_MS = 30_000
"""Number of answers that a median is made of, the fewest that make one, and the milliseconds for which they count."""

MEDIANS_MS = 250
"""Milliseconds for which the medians are cached: each slow answer needs them, and there may be thousands a second."""


def usual_ms(recent: Sequence[float]) -> float | None:
    """Return the median latency of a node's answers in ms; `None` while there are too few."""
    return median_low(recent) if len(recent) >= MIN_RECENT else None


class Medians:
    """The median latency of each node, cached for a moment."""

    def __init__(self) -> None:
        self._by_node: dict[str, float] = {}
        self._ranked: list[float] = []
        self._found_ms = float("-inf")

    def forget(self) -> None:
        """Drop the cache: the set of nodes that count has changed."""
        self._found_ms = float("-inf")

    def is_outdated(self, now_ms: float) -> bool:
        return now_ms - self._found_ms > MEDIANS_MS

    def find(self, now_ms: float, recent: Iterator[tuple[str, Sequence[float]]]) -> None:
        """Compute the medians from the recent answers of the nodes that count."""
        found = ((node_id, usual_ms(answers)) for node_id, answers in recent)
        self._by_node = {node_id: median_ms for node_id, median_ms in found if median_ms is not None}
        self._ranked = sorted(self._by_node.values())
        self._found_ms = now_ms

    def limit_ms(self, node_id: str) -> float | None:
        """Return the median, in ms, above which a node is an outlier among the others; `None` when there are no
        others.
        """
        own_ms = self._by_node.get(node_id)
        others = len(self._ranked) - (own_ms is not None)
        if others == 0:
            return None
        middle = (others - 1) // 2
        if own_ms is not None and bisect_left(self._ranked, own_ms) <= middle:
            middle += 1
        return max(OUTLIER_MS, OUTLIER_FACTOR * self._ranked[middle])
