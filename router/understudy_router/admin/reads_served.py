"""The rates of reads over the last minute, from the counters of the reads served (pure; time is passed in)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from understudy_router.admin.store_reads import StoreReadRates, StoreReads, StoreServed

WINDOW_MS = 60_000
MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""

MAX_SEEN = 128


class HistogramLike(Protocol):
    """Counts of values up to each bound, and above the last."""

    @property
    def bounds(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...


class ServedReads(Protocol):
    """The counters of a router's answers, which only grow."""

    @property
    def staleness_ms(self) -> HistogramLike: ...
    @property
    def violations(self) -> int: ...
    @property
    def refused_by_bound(self) -> int: ...
    @property
    def answers(self) -> int: ...
    @property
    def errors(self) -> int: ...
    @property
    def stores(self) -> Mapping[str, StoreReads]: ...


class Counts(NamedTuple):
    """The counters at one moment."""

    at_ms: float
    answers: int
    errors: int
    refused: int
    violations: int


class Rates(NamedTuple):
    """The rates of the last minute. `None`: not yet known, or without reads."""

    per_s: float | None = None
    errors_per_s: float | None = None
    within_bound_percent: float | None = None
    error_percent: float | None = None
    violations: int = 0
    """Answers beyond the bound that was asked for, since the router started."""


class ReadRates:
    """The memory of the counters. `served` is `None` where no reads are counted."""

    def __init__(self, served: ServedReads | None) -> None:
        self._served = served
        self._seen: deque[Counts] = deque(maxlen=MAX_SEEN)
        self._stores = StoreReadRates()

    def see(self, now_ms: float) -> Rates:
        """Look at the counters now. Return the rates over the last minute."""
        served = self._served
        if served is None:
            return Rates()
        now = Counts(now_ms, served.answers, served.errors, served.refused_by_bound, served.violations)
        while len(self._seen) > 1 and now_ms - self._seen[1].at_ms >= WINDOW_MS:
            self._seen.popleft()
        rates = rates_between(self._seen[0], now) if self._seen else Rates(violations=now.violations)
        if not self._seen or now_ms - self._seen[-1].at_ms >= MIN_MS:
            self._seen.append(now)
        return rates

    def of_stores(self, now_ms: float) -> dict[str, StoreServed]:
        """Look at the counters of each store now."""
        return {} if self._served is None else self._stores.see(now_ms, self._served.stores)

    def staleness(self) -> dict[str, list[float | None]]:
        """Return how old the answers were, since the router started: counts up to each bound, the last above all."""
        if self._served is None:
            return {"le_ms": [None], "counts": [0]}
        found = self._served.staleness_ms
        bounds: list[float | None] = [bound for bound in found.bounds if math.isfinite(bound)]
        return {"le_ms": [*bounds, None], "counts": list(found.counts)}


def rates_between(before: Counts, now: Counts) -> Rates:
    """Return the rates of the reads between two looks."""
    took_s = (now.at_ms - before.at_ms) / 1000
    if took_s * 1000 < MIN_MS:
        return Rates(violations=now.violations)
    answers, errors, refused = (
        now.answers - before.answers,
        now.errors - before.errors,
        now.refused - before.refused,
    )
    asked = answers + errors + refused
    bounded = answers + refused
    return Rates(
        per_s=round(answers / took_s, 1),
        errors_per_s=round(errors / took_s, 1),
        within_bound_percent=round(100 * answers / bounded, 2) if bounded else None,
        error_percent=round(100 * errors / asked, 2) if asked else None,
        violations=now.violations,
    )
