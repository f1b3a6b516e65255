"""Pauses for what failed: it is left alone for a while, which grows with each failure in a row (pure)."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Generic, TypeVar

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""Shortest and longest pause: doubled with each failure in a row."""

MAX_PAUSES = 10_000
"""Most things that pause at once; with more of them all are forgotten."""

K = TypeVar("K", bound=Hashable)


class Pauses(Generic[K]):
    """The pauses of things of one kind: servers, or nodes with partitions."""

    def __init__(self, rng: random.Random) -> None:
        self.failing: dict[K, int] = {}
        """The number of failures in a row of what has not succeeded since."""
        self._rng = rng
        self._until_s: dict[K, float] = {}

    def left_s(self, thing: K, now_s: float) -> float:
        """Return how long it is left alone from now on."""
        return max(0.0, self._until_s.get(thing, 0.0) - now_s)

    def failed(self, thing: K, now_s: float, at_least_s: float = 0.0) -> None:
        """Leave it alone for a while."""
        if len(self.failing) >= MAX_PAUSES:
            self.clear()
        count = self.failing[thing] = min(self.failing.get(thing, 0) + 1, 16)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (count - 1)) * self._rng.uniform(0.5, 1.0)
        self._until_s[thing] = now_s + max(pause_s, at_least_s)

    def succeeded(self, thing: K) -> None:
        """Forget its failures."""
        self.failing.pop(thing, None)
        self._until_s.pop(thing, None)

    def clear(self) -> None:
        """Forget all failures."""
        self.failing.clear()
        self._until_s.clear()
