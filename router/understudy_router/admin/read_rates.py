"""The recent reads of readers, by the counters of the reads served: all reads of the last minute, those of each store
of the last one or two; and, of other reads than lookups, the recent calls to nodes and how they ended for their readers
(pure; time is passed in).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from understudy_router.forwarding.answer_ages import ServedReads, StoreReads
from understudy_shared.cluster.node_calls import CallKind, CallOutcome
from understudy_shared.http.problems import ProblemType
from understudy_shared.telemetry.metrics import STALENESS_BOUNDS_MS, RequestCounts, upper_bound

WINDOW_MS = 60_000
MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""

MAX_SEEN = 128

MIN_FAILED_CALLS = 3
"""Fewest calls, or requests, of a kind that failed within the minute before it is said."""

KIND_OF: Mapping[str, CallKind] = {
    **dict.fromkeys(("scan", "count", "windows", "history"), CallKind.SCAN),
    **dict.fromkeys(("export", "changes"), CallKind.EXPORT),
    **dict.fromkeys(("snapshot", "snapshot-release"), CallKind.LEASE),
    "watch": CallKind.WATCH,
}
"""The kinds of the operations other than lookups."""

FAILED_OUTCOMES = frozenset(each.slug for each in ProblemType if each.status >= 500 or each is ProblemType.OVERLOADED)
"""The outcomes of requests that failed through no fault of their readers. The alert has them, too."""

P99 = 0.99


class Rates(NamedTuple):
    """The rates of the last minute. `None`: not yet known, or without reads."""

    per_s: float | None = None
    errors_per_s: float | None = None
    within_bound_percent: float | None = None
    error_percent: float | None = None
    violations: int = 0
    """Answers beyond the bound that was asked for, since the router started."""
    failed_calls: Mapping[CallKind, float] = {}
    """The percentage of calls to nodes without a reply, or that waited long for a place, by kind, where enough failed;
    those about members left out."""
    failed_requests: Mapping[CallKind, float] = {}
    """The percentage of readers' requests without an answer, by kind, where enough failed; readers' mistakes left
    out."""


class StoreServed(NamedTuple):
    """The reads of one store in the last one or two minutes. `None`: without reads, or of unknown age.

    `staleness_p99_ms` is rounded up to a bound; with `staleness_is_more` it is above the last one.
    """

    within_bound_percent: float | None = None
    staleness_p99_ms: float | None = None
    staleness_is_more: bool = False


NOTHING_SERVED = StoreServed()


class ReadCounts(NamedTuple):
    """The counters at one moment."""

    at_ms: float
    answers: int
    errors: int
    refused: int
    calls: Mapping[tuple[CallKind, CallOutcome], int] = {}
    requests: Mapping[tuple[str, str], int] = {}
    """Those besides lookups, by operation and outcome."""


class StoreCounts(NamedTuple):
    """The counters of a store at one moment."""

    answers: int = 0
    refused: int = 0
    staleness: tuple[int, ...] = (0,) * (len(STALENESS_BOUNDS_MS) + 1)


class ReadRates:
    """The memory of the counters of a router: of lookups, of calls to nodes, and of requests for other reads."""

    def __init__(
        self, served: ServedReads, calls: Mapping[tuple[CallKind, CallOutcome], int], requests: RequestCounts
    ) -> None:
        self._served, self._calls, self._requests = served, calls, requests
        self._seen: deque[ReadCounts] = deque(maxlen=MAX_SEEN)
        self._stores = StoreReadRates()

    def see(self, now_ms: float) -> Rates:
        """Look at the counters now. Return the rates over the last minute."""
        served, seen = self._served, self._seen
        requests = self._requests.ended(KIND_OF)
        now = ReadCounts(now_ms, served.answers, served.errors, served.refused_by_bound, dict(self._calls), requests)
        while len(seen) > 1 and now_ms - seen[1].at_ms >= WINDOW_MS:
            seen.popleft()
        rates = rates_between(seen[0], now) if seen else Rates()
        if not seen or now_ms - seen[-1].at_ms >= MIN_MS:
            seen.append(now)
        return rates._replace(violations=served.violations)

    def of_stores(self, now_ms: float) -> dict[str, StoreServed]:
        """Look at the counters of each store now."""
        return self._stores.see(now_ms, self._served.stores)

    def staleness(self) -> dict[str, Any]:
        """Return how old the answers were, since the router started: counts up to each bound, the last above all."""
        found = self._served.staleness_ms
        return {"le_ms": [*(bound for bound in found.bounds if math.isfinite(bound)), None], "counts": [*found.counts]}


class StoreReadRates:
    """The counters of stores as they were at the last two marks, a minute apart: the rates are over the time since the
    older one. Two marks cost little for a thousand stores; a look each second would not.
    """

    def __init__(self) -> None:
        self._older: Mapping[str, StoreCounts] = {}
        self._newer: Mapping[str, StoreCounts] = {}
        self._marked_ms = -math.inf

    def see(self, now_ms: float, stores: Mapping[str, StoreReads]) -> dict[str, StoreServed]:
        """Look at the counters now."""
        now = {
            name: StoreCounts(each.answers, each.refused_by_bound, tuple(each.staleness_ms.counts))
            for name, each in stores.items()
        }
        if now_ms - self._marked_ms >= WINDOW_MS:
            self._older, self._newer, self._marked_ms = self._newer, now, now_ms
        return {name: served_between(self._older.get(name, StoreCounts()), counts) for name, counts in now.items()}


def rates_between(before: ReadCounts, now: ReadCounts) -> Rates:
    """Return the rates of the reads between two looks."""
    took_s = (now.at_ms - before.at_ms) / 1000
    if took_s * 1000 < MIN_MS:
        return Rates()
    answers, errors, refused = now.answers - before.answers, now.errors - before.errors, now.refused - before.refused
    return Rates(
        per_s=round(answers / took_s, 1),
        errors_per_s=round(errors / took_s, 1),
        within_bound_percent=_percent(answers, answers + refused),
        error_percent=_percent(errors, answers + errors + refused),
        failed_calls=dict(_failed_calls(before, now)),
        failed_requests=dict(_failed_requests(before, now)),
    )


def _failed_calls(before: ReadCounts, now: ReadCounts) -> Iterator[tuple[CallKind, float]]:
    for kind in CallKind:
        ended = {each: now.calls.get((kind, each), 0) - before.calls.get((kind, each), 0) for each in CallOutcome}
        failed = sum(ended.values()) - ended[CallOutcome.ANSWERED]
        # Dead nodes are asked for heartbeats, too: the indicators of nodes and of the bus say so.
        if failed >= MIN_FAILED_CALLS and kind is not CallKind.MEMBERSHIP:
            yield kind, round(100 * failed / sum(ended.values()), 2)


def _failed_requests(before: ReadCounts, now: ReadCounts) -> Iterator[tuple[CallKind, float]]:
    answered: Counter[CallKind] = Counter()
    failed: Counter[CallKind] = Counter()
    for (operation, outcome), count in now.requests.items():
        ended = count - before.requests.get((operation, outcome), 0)
        if outcome in FAILED_OUTCOMES:
            failed[KIND_OF[operation]] += ended
        elif outcome == "answered":
            answered[KIND_OF[operation]] += ended
    for kind, count in failed.items():
        if count >= MIN_FAILED_CALLS:
            yield kind, round(100 * count / (count + answered[kind]), 2)


def served_between(before: StoreCounts, now: StoreCounts) -> StoreServed:
    """Return the reads of a store between two looks."""
    answers = now.answers - before.answers
    staleness = [after - earlier for earlier, after in zip(before.staleness, now.staleness, strict=True)]
    p99 = upper_bound(STALENESS_BOUNDS_MS, staleness, P99)
    is_more = p99 is not None and math.isinf(p99)
    within = _percent(answers, answers + now.refused - before.refused)
    return StoreServed(within, STALENESS_BOUNDS_MS[-1] if is_more else p99, is_more)


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 2) if whole else None
