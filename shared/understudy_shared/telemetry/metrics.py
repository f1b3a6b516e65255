"""Histograms and families of metrics that nodes and routers have in common, and the counts of read requests.

A histogram has the buckets of Prometheus and is cheap enough for every lookup. One thread observes; other threads may
read counts that differ by one value. Only existing stores get a label, because a client may ask for any name, and each
label is a series until the process ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate, pairwise

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from understudy_shared.base.extras import PACKAGE

STALENESS_BOUNDS_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
OFFSET_LAG_BOUNDS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1000)
"""Bounds for the ages of answers in versions: from no lag to an answer that is useless."""


class Histogram:
    """A histogram. `counts[i]` counts values above `bounds[i - 1]` up to `bounds[i]`; the last, values above all."""

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
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, times: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def total(self) -> int:
        return sum(self.counts)


def upper_bound(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the quantile `share`, rounded up to the bound of its bucket: the least bound that at least this share of
    the values does not exceed. Return None without values, and infinity if it is above all bounds.
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


MS_PER_S = 1000
"""Milliseconds per second: histograms count milliseconds, and metrics are in seconds."""

_PROCESS = ProcessCollector(registry=None)


def about_the_process() -> Iterator[Metric]:
    """Yield the release, and the system's metrics of this process: CPU time, memory, open files, start time."""
    yield InfoMetricFamily("understudy_build", "The running release", {"version": version(PACKAGE)})
    yield from _PROCESS.collect()


def histogram_family(name: str, text: str, histogram: Histogram, *, per: float = 1) -> Metric:
    """Make a family of one histogram without labels. `per`: units of the histogram in one unit of the metric."""
    family = HistogramMetricFamily(name, text, labels=())
    add_histogram(family, (), histogram, per=per)
    return family


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, *, per: float) -> None:
    """Add a histogram under these labels to its family."""
    counts = list(histogram.counts)
    names = [*(repr(bound / per) for bound in histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), histogram.sum / per)


DURATION_BOUNDS_MS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)

MAX_LABELLED = 4096
"""Limit on the pairs of operation and store with a label. Names of stores may change while the process runs."""

NO_STORE = ""
"""The label of requests that name no existing store; Prometheus reads it as an absent label."""


class OperationCounts:
    """The counts of one operation on one store.

    `outcomes` begins with found and absent, so a lookup only increments a count.

    `duration_ms` is the duration of the requests that were processed.
    """

    __slots__ = ("duration_ms", "outcomes")

    def __init__(self) -> None:
        self.outcomes = {"found": 0, "absent": 0}
        self.duration_ms = Histogram(DURATION_BOUNDS_MS)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class RequestCounts:
    """The counts of a service, for its metrics."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], OperationCounts] = {}

    def __repr__(self) -> str:
        return f"RequestCounts({self.outcomes})"

    def of(self, operation: str, store: str = NO_STORE) -> OperationCounts:
        found = self._of.get((operation, store))
        if found is None:
            if len(self._of) >= MAX_LABELLED and store:
                return self.of(operation)
            found = self._of[operation, store] = OperationCounts()
        return found

    def ended(self, operations: Collection[str]) -> Counter[tuple[str, str]]:
        """Return the number of requests for these operations by operation and outcome, of all stores together."""
        found: Counter[tuple[str, str]] = Counter()
        for (operation, _), counts in self._of.items():
            if operation in operations:
                for outcome, count in counts.outcomes.items():
                    found[operation, outcome] += count
        return found

    @property
    def outcomes(self) -> Mapping[tuple[str, str, str], int]:
        """The number of requests by operation, store and outcome."""
        return {
            (operation, store, outcome): count
            for (operation, store), counts in sorted(self._of.items())
            for outcome, count in sorted(counts.outcomes.items())
            if count
        }

    def metrics(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "understudy_requests", "Read requests by operation, store and outcome", labels=("op", "store", "outcome")
        )
        for labels, count in self.outcomes.items():
            requests.add_metric(labels, count)
        yield requests
        durations = HistogramMetricFamily(
            "understudy_request_duration_seconds",
            "Time from a request to its answer, without that of the network",
            labels=("op", "store"),
        )
        for key, counts in sorted(self._of.items()):
            if counts.duration_ms.total:
                add_histogram(durations, key, counts.duration_ms, per=MS_PER_S)
        yield durations
