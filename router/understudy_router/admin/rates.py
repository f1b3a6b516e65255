"""Results of repeated samples of a router: the trend of a lag, the pace of commits, and the recent reads (pure; time is
passed in).

The rates of lookups are over the last minute, by store over the last one or two minutes. Other reads have two rates:
calls to nodes that failed, and requests of readers that failed.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from understudy_router.forwarding.answer_ages import ServedReads, StoreReads
from understudy_shared.cluster.node_calls import CallKind, CallOutcome
from understudy_shared.http.problems import ProblemType
from understudy_shared.telemetry.metrics import STALENESS_BOUNDS_MS, RequestCounts, upper_bound

WINDOW_MS = 60_000
MAX_SAMPLES = 64
"""Most moments of a window that are kept."""

MIN_BATCHES = 3
MIN_TREND_MS = 30_000
"""Shortest window of a trend, in ms, unless it has MIN_BATCHES commits: between two commits every lag is a sawtooth."""

MIN_CHANGE = 2
"""Least change of a lag, in versions, to be called growing or shrinking."""

PACE_KEPT = 32
"""Number of changes of the end to compute the usual time between commits from."""

Direction = Literal["steady", "growing", "shrinking", "unknown"]


class LagSample(NamedTuple):
    """A lag at one moment, and the end then. `lag` is `None` while it is unknown."""

    at_ms: float
    end_version: int
    lag: int | None


class Trend(NamedTuple):
    """The direction of a lag, and the seconds until it is gone while it shrinks."""

    direction: Direction
    eta_s: float | None


NO_TREND = Trend("unknown", None)


def trend_of(seen: Sequence[LagSample]) -> Trend:
    """Compute the trend of a window, oldest first: by the least squares of all of it."""
    # Each guard excludes a false trend: an unknown lag, too few commits to see past the sawtooth, a single step.
    if not seen or any(each.lag is None for each in seen):
        return NO_TREND
    took_ms, batches = seen[-1].at_ms - seen[0].at_ms, seen[-1].end_version - seen[0].end_version
    if took_ms <= 0 or len(seen) < MIN_BATCHES or (batches < MIN_BATCHES and took_ms < MIN_TREND_MS):
        return NO_TREND
    slope = _slope([(each.at_ms, each.lag or 0) for each in seen])
    change, lag = slope * took_ms, seen[-1].lag or 0
    if change >= MIN_CHANGE and lag > 0:
        # A replica that was just opened is a step: it does not rise in both halves of the window.
        half = len(seen) // 2
        rises = all(
            _slope([(each.at_ms, each.lag or 0) for each in part]) > 0 for part in (seen[: half + 1], seen[half:])
        )
        return Trend("growing" if rises else "steady", None)
    if change <= -MIN_CHANGE and lag > 0:
        return Trend("shrinking", round(lag / -slope / 1000, 1))
    return Trend("steady", None)


def _slope(points: Sequence[tuple[float, int]]) -> float:
    """Return the slope by least squares: lag per millisecond. The points must not all be of one moment."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Trends:
    """The lags of stores within the window."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[LagSample]] = {}

    def see(self, now_ms: float, end_version: int, lags: Iterable[tuple[str, int | None]]) -> None:
        """Take in the lag of each store."""
        before, self._seen = self._seen, {}
        for store, lag in lags:
            seen = self._seen[store] = before.get(store) or deque(maxlen=MAX_SAMPLES)
            while seen and (now_ms - seen[0].at_ms > WINDOW_MS or end_version < seen[-1].end_version):
                seen.popleft()
            if not seen or now_ms - seen[-1].at_ms >= WINDOW_MS / MAX_SAMPLES:
                seen.append(LagSample(now_ms, end_version, lag))

    def of(self, store: str) -> Trend:
        return trend_of(tuple(self._seen.get(store, ())))

    def of_all(self, stores: Iterable[str]) -> Generator[None, None, dict[str, Trend]]:
        """Compute the trends of many stores, in slices."""
        found: dict[str, Trend] = {}
        for store in stores:
            found[store] = self.of(store)
            yield
        return found


class Pace:
    """The time between commits of the query, by the ends that were seen."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, int]] = deque(maxlen=PACE_KEPT)
        self._lineage: str | None = None

    def see(self, now_ms: float, lineage: str | None, end_version: int) -> None:
        """Take in the newest end. The pace begins again with another history, or one that was cut back."""
        if lineage != self._lineage or (self._changes and end_version < self._changes[-1][1]):
            self._changes.clear()
            self._lineage = lineage
        if not self._changes or end_version > self._changes[-1][1]:
            self._changes.append((now_ms, end_version))

    @property
    def usual_ms(self) -> float | None:
        """Return the usual time between two commits in ms; `None` before a few of them."""
        if not self._changes:
            return None
        (began_ms, first), (ended_ms, last) = self._changes[0], self._changes[-1]
        return (ended_ms - began_ms) / (last - first) if last - first >= MIN_BATCHES else None

    def silent_ms(self, now_ms: float) -> float:
        """Return how long ago the end was last seen to change, in ms."""
        return now_ms - self._changes[-1][0] if self._changes else 0.0


MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""

MAX_LOOKS = 128

MIN_FAILED_CALLS = 3
"""Fewest failed calls or requests of a kind within the minute that are reported."""

KIND_OF: Mapping[str, CallKind] = {
    **dict.fromkeys(("scan", "count", "windows", "history"), CallKind.SCAN),
    **dict.fromkeys(("export", "changes"), CallKind.EXPORT),
    **dict.fromkeys(("snapshot", "snapshot-release"), CallKind.LEASE),
    "watch": CallKind.WATCH,
}
"""The kinds of the operations other than lookups."""

FAILED_OUTCOMES = frozenset(each.slug for each in ProblemType if each.status >= 500 or each is ProblemType.OVERLOADED)
"""The outcomes of requests that failed, but not by the reader's fault. The alert has them, too."""

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
    """The percentage of calls to nodes without a reply, or with a long wait for a place, by kind, if enough failed;
    without calls about members.
    """
    failed_requests: Mapping[CallKind, float] = {}
    """The percentage of readers' requests without an answer, by kind, if enough failed; without readers' mistakes."""


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
    """The requests other than lookups, by operation and outcome."""


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
        self._seen: deque[ReadCounts] = deque(maxlen=MAX_LOOKS)
        self._stores = StoreReadRates()

    def see(self, now_ms: float) -> Rates:
        """Read the counters now. Return the rates over the last minute."""
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
        return self._stores.see(now_ms, self._served.stores)

    def staleness(self) -> dict[str, Any]:
        """Return how old the answers were, since the router started: counts up to each bound, the last above all."""
        found = self._served.staleness_ms
        return {"le_ms": [*(bound for bound in found.bounds if math.isfinite(bound)), None], "counts": [*found.counts]}


class StoreReadRates:
    """The counters of stores as they were at the last two marks, a minute apart: the rates are over the time since the
    older one. Two marks cost little for a thousand stores; sampling each second would not.
    """

    def __init__(self) -> None:
        self._older: Mapping[str, StoreCounts] = {}
        self._newer: Mapping[str, StoreCounts] = {}
        self._marked_ms = -math.inf

    def see(self, now_ms: float, stores: Mapping[str, StoreReads]) -> dict[str, StoreServed]:
        """Read the counters of stores now. Return each store's reads since the older mark."""
        now = {
            name: StoreCounts(each.answers, each.refused_by_bound, tuple(each.staleness_ms.counts))
            for name, each in stores.items()
        }
        if now_ms - self._marked_ms >= WINDOW_MS:
            self._older, self._newer, self._marked_ms = self._newer, now, now_ms
        return {name: served_between(self._older.get(name, StoreCounts()), counts) for name, counts in now.items()}


def rates_between(before: ReadCounts, now: ReadCounts) -> Rates:
    """Return the rates of reads between two readings of the counters."""
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
        # Calls for heartbeats also go to dead nodes, which the indicators of nodes and of the bus report.
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
    """Return the reads of a store between two readings of its counters."""
    answers = now.answers - before.answers
    staleness = [after - earlier for earlier, after in zip(before.staleness, now.staleness, strict=True)]
    p99 = upper_bound(STALENESS_BOUNDS_MS, staleness, P99)
    is_more = p99 is not None and math.isinf(p99)
    within = _percent(answers, answers + now.refused - before.refused)
    return StoreServed(within, STALENESS_BOUNDS_MS[-1] if is_more else p99, is_more)


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 2) if whole else None
