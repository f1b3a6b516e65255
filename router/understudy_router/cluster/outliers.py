"""When a node takes much longer than the others do (pure: time passed in).

Medians on both sides: a large batch or a pause of one process makes no outlier, and many slow nodes no new normal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import median_low

OUTLIER_FACTOR = 5
OUTLIER_MS = 50
"""A node is an outlier when its median is above so many times the others', and above so much: readers notice that."""

RECENT = 15
MIN_RECENT = 5
RECENT_MS = 30_000
"""Answers that a median is made of, the least that make one, and how long they tell of a node that is not asked."""

MEDIANS_MS = 250
"""How long the medians are kept: they are asked for at each slow answer, of which there may be thousands a second."""


def usual_ms(recent: Sequence[float]) -> float | None:
    """What a node's answers take; None while there are too few."""
    return median_low(recent) if len(recent) >= MIN_RECENT else None


class Medians:
    """What the nodes' answers take, kept for a moment."""

    def __init__(self) -> None:
        self._by_node: dict[str, float] = {}
        self._ranked: list[float] = []
        self._found_ms = float("-inf")

    def forget(self) -> None:
        """Others count now."""
        self._found_ms = float("-inf")

    def is_outdated(self, now_ms: float) -> bool:
        return now_ms - self._found_ms > MEDIANS_MS

    def find(self, now_ms: float, recent: Iterator[tuple[str, Sequence[float]]]) -> None:
        """Take them anew from the recent answers of those nodes that count."""
        found = ((node_id, usual_ms(answers)) for node_id, answers in recent)
        self._by_node = {node_id: median_ms for node_id, median_ms in found if median_ms is not None}
        self._ranked = sorted(self._by_node.values())
        self._found_ms = now_ms

    def limit_ms(self, node_id: str) -> float | None:
        """What makes a median an outlier beside those of the others; None when there are none."""
        own_ms = self._by_node.get(node_id)
        others = len(self._ranked) - (own_ms is not None)
        if others == 0:
            return None
        middle = (others - 1) // 2
        if own_ms is not None and bisect_left(self._ranked, own_ms) <= middle:
            middle += 1
        return max(OUTLIER_MS, OUTLIER_FACTOR * self._ranked[middle])
