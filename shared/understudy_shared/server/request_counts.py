"""Counts of read requests by operation, store and outcome, and their durations, changed on the event loop.

Only stores that exist get a label. A client may ask for any name, and each label is a series for as long as the process
runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from understudy_shared.telemetry.histogram import Histogram
from understudy_shared.telemetry.metric_families import MS_PER_S, add_histogram

DURATION_BOUNDS_MS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)

MAX_LABELLED = 4096
"""Most pairs of operation and store with a label. Names of stores may change as long as the process runs."""

NO_STORE = ""
"""The label of requests that name no existing store; Prometheus reads it as an absent label."""


class OperationCounts:
    """The counts of one operation on one store.

    `outcomes` begins with found and absent, so that a lookup only adds one.

    `duration_ms` is the duration of the requests that were processed.
    """

    __slots__ = ("duration_ms", "outcomes")

    def __init__(self) -> None:
        self.outcomes = {"found": 0, "absent": 0}
        self.duration_ms = Histogram(DURATION_BOUNDS_MS)

    def count(self, outcome: str) -> None:
        """Count a request that ended with this outcome."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class RequestCounts:
    """The counts of a service, for its metrics."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], OperationCounts] = {}

    def __repr__(self) -> str:
        return f"RequestCounts({self.outcomes})"

    def of(self, operation: str, store: str = NO_STORE) -> OperationCounts:
        """Return the counts of an operation on an existing store."""
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
        """Yield the two metric families of these counts."""
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
