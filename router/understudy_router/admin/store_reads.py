"""The recent reads of each store: the share within their bound, and the age of the answers (pure; time is passed
in).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from understudy_shared.telemetry.histogram import STALENESS_BOUNDS_MS, upper_bound

WINDOW_MS = 60_000

P99 = 0.99


class Staleness(Protocol):
    """Counts of answers by their age, in the bins of STALENESS_BOUNDS_MS."""

    @property
    def counts(self) -> list[int]: ...


class StoreReads(Protocol):
    """The counters of one store, which only grow."""

    @property
    def answers(self) -> int: ...
    @property
    def refused_by_bound(self) -> int: ...
    @property
    def staleness_ms(self) -> Staleness: ...


class Counts(NamedTuple):
    """The counters of a store at one moment."""

    answers: int = 0
    refused: int = 0
    staleness: tuple[int, ...] = (0,) * (len(STALENESS_BOUNDS_MS) + 1)


class StoreServed(NamedTuple):
    """The reads of one store in the last one or two minutes. `None`: without reads, or of unknown age.

    `staleness_p99_ms` is rounded up to a bound; with `is_more` it is above the last one.
    """

    within_bound_percent: float | None = None
    staleness_p99_ms: float | None = None
    is_more: bool = False


NOTHING_SERVED = StoreServed()


class StoreReadRates:
    """The counters as they were at the last two marks, a minute apart: the rates are over the time since the older one.
    Two marks cost little for a thousand stores; a look each second would not.
    """

    def __init__(self) -> None:
        self._older: Mapping[str, Counts] = {}
        self._newer: Mapping[str, Counts] = {}
        self._marked_ms: float | None = None

    def see(self, now_ms: float, stores: Mapping[str, StoreReads]) -> dict[str, StoreServed]:
        """Look at the counters now."""
        now = {
            name: Counts(each.answers, each.refused_by_bound, tuple(each.staleness_ms.counts))
            for name, each in stores.items()
        }
        if self._marked_ms is None or now_ms - self._marked_ms >= WINDOW_MS:
            self._older, self._newer, self._marked_ms = self._newer, now, now_ms
        return {name: served_between(self._older.get(name, Counts()), counts) for name, counts in now.items()}


def served_between(before: Counts, now: Counts) -> StoreServed:
    """Return the reads of a store between two looks."""
    answers = now.answers - before.answers
    asked = answers + now.refused - before.refused
    staleness = [after - earlier for after, earlier in zip(now.staleness, before.staleness, strict=True)]
    p99 = upper_bound(STALENESS_BOUNDS_MS, staleness, P99)
    is_more = p99 is not None and math.isinf(p99)
    return StoreServed(
        within_bound_percent=round(100 * answers / asked, 2) if asked else None,
        staleness_p99_ms=STALENESS_BOUNDS_MS[-1] if is_more else p99,
        is_more=is_more,
    )
