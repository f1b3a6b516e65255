"""The metrics of several processes as those of one service (pure).

Counters, summaries and histograms are added up, and what a process counted before it ended stays in the sum: a sum that
fell would look to Prometheus like a restart of the service. Gauges are added or the worst one counts, by `GAUGES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import Metric

Labels = tuple[tuple[str, str], ...]
Rule = Callable[[Iterable[float]], float]

GAUGES: Mapping[str, Rule] = {
    # Amounts of which each process has its own part.
    "process_max_fds": sum,
    "process_open_fds": sum,
    "process_resident_memory_bytes": sum,
    "process_virtual_memory_bytes": sum,
    "understudy_cache_capacity_bytes": sum,
    "understudy_cache_size_bytes": sum,
    "understudy_connections": sum,
    "understudy_memory_limit_bytes": sum,
    "understudy_node_in_flight": sum,
    "understudy_overlay_bytes": sum,
    "understudy_replica_series_left_out": sum,
    "understudy_replicas": sum,
    "understudy_restore_done_bytes": sum,
    "understudy_restore_size_bytes": sum,
    "understudy_restores": sum,
    "understudy_router_in_flight": sum,
    "understudy_router_retry_budget": sum,
    "understudy_row_cache_bytes": sum,
    "understudy_store_lag_unknown": sum,
    "understudy_tasks_stalled": sum,
    # A fault or a property of any process is one of the service.
    "understudy_end_age_seconds": max,
    "understudy_health": max,
    "understudy_insecure_bind": max,
    "understudy_memory_pressure": max,
    "understudy_node_degraded": max,
    "understudy_node_draining": max,
    "understudy_node_has_lease": max,
    "understudy_node_standbys_wanted": max,
    "understudy_replica_info": max,
    "understudy_replica_lag_batches": max,
    "understudy_replica_lag_seconds": max,
    "understudy_replica_lag_unknown": max,
    "understudy_router_degraded": max,
    "understudy_router_heartbeat_age_seconds": max,
    "understudy_router_info": max,
    "understudy_router_node_health": max,
    "understudy_store_lag_batches": max,
    "understudy_store_lag_seconds": max,
    "understudy_store_partitions": max,
    # The service knows or reaches only what every process does.
    "process_start_time_seconds": min,
    "understudy_tls_certificate_expiry_timestamp_seconds": min,
    "understudy_assignment_epoch": min,
    "understudy_assignment_term": min,
    "understudy_end_confirmed": min,
    "understudy_end_offset_position": min,
    "understudy_node_bus_connected": min,
    "understudy_replica_position": min,
    "understudy_router_bus_connected": min,
    "understudy_router_nodes": min,
}
"""The rules that merge gauges of the processes. A gauge without a rule keeps a series per process, with its name."""

_COUNTED = frozenset({"counter", "summary", "histogram"})


class MetricSample(NamedTuple):
    """One value; `labels` are in order of their names."""

    name: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """The samples of one name, one type and one help text."""

    name: str
    kind: str
    text: str
    samples: Sequence[MetricSample]

    def metric(self) -> Metric:
        """Convert to the library's family."""
        metric = Metric(self.name, self.text, self.kind)
        for sample in self.samples:
            metric.add_sample(sample.name, dict(sample.labels), sample.value)
        return metric


def family_of(metric: Metric) -> Family:
    """Convert a family of the library's."""
    samples = [
        MetricSample(each.name, tuple(sorted(each.labels.items())), float(each.value)) for each in metric.samples
    ]
    return Family(metric.name, metric.type, metric.documentation, samples)


def to_document(families: Iterable[Family]) -> list[object]:
    """Encode families as JSON; a value that JSON has no number for is null."""
    return [
        [
            family.name,
            family.kind,
            family.text,
            [
                [sample.name, sample.labels, sample.value if math.isfinite(sample.value) else None]
                for sample in family.samples
            ],
        ]
        for family in families
    ]


def from_document(document: object) -> list[Family]:
    """Decode the output of `to_document`. Raises ValueError for anything else."""
    try:
        return [
            Family(name, kind, text, [_sample(*sample) for sample in samples])
            for name, kind, text, samples in document  # type: ignore[attr-defined]
        ]
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"these are no metrics: {error}") from None


def _sample(name: str, labels: Iterable[Sequence[str]], value: float | None) -> MetricSample:
    pairs = tuple((label, text) for label, text in labels)
    return MetricSample(name, pairs, math.nan if value is None else float(value))


Place = tuple[str, str, Labels]
"""A counted value: family, sample, labels."""


class MetricSums:
    """The newest report of each process, and what processes that ended had counted."""

    def __init__(self) -> None:
        self._reports: dict[int, list[Family]] = {}
        self._ended: dict[Place, float] = {}
        self._ended_families: dict[str, Family] = {}

    def reported(self, number: int, families: Iterable[Family]) -> None:
        """Store the newest report of the process that is worker `number`."""
        self._reports[number] = list(families)

    def ended(self, number: int) -> None:
        """Add the counts of a process that ended: the next one begins to count at 0."""
        for family in self._reports.pop(number, ()):
            if family.kind in _COUNTED:
                self._ended_families[family.name] = family._replace(samples=())
                for sample in family.samples:
                    place = (family.name, sample.name, sample.labels)
                    self._ended[place] = self._ended.get(place, 0.0) + sample.value

    def families(self, fresh: Collection[int]) -> list[Family]:
        """Return the sums. Gauges count of the `fresh` processes only: those that answered just now."""
        first: dict[str, Family] = {}
        values: dict[str, dict[tuple[str, Labels], list[float]]] = {}
        for place, value in self._ended.items():
            values.setdefault(place[0], {})[place[1], place[2]] = [value]
        for number, families in sorted(self._reports.items()):
            for family in families:
                first.setdefault(family.name, family)
                if family.kind in _COUNTED or number in fresh:
                    _collect(values.setdefault(family.name, {}), family, number)
        for name, family in self._ended_families.items():
            first.setdefault(name, family)
        return [
            family._replace(
                samples=[
                    MetricSample(*place, _rule(family)(numbers))
                    for place, numbers in values.get(family.name, {}).items()
                ]
            )
            for family in first.values()
        ]


def _collect(values: dict[tuple[str, Labels], list[float]], family: Family, number: int) -> None:
    apart = family.kind == "gauge" and family.name not in GAUGES
    for sample in family.samples:
        labels = tuple(sorted((*sample.labels, ("worker", str(number))))) if apart else sample.labels
        values.setdefault((sample.name, labels), []).append(sample.value)


def _rule(family: Family) -> Rule:
    return sum if family.kind in _COUNTED else GAUGES.get(family.name, max)
