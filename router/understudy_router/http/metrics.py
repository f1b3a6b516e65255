"""Prometheus metrics of a router, read from its state when they are scraped: nothing is counted twice or goes stale.

Base units, `_total` for counters. Nothing here grows with the replicas: the nodes that hold them report their lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_router.cluster.health import RANK, Health
from understudy_router.cluster.readiness import Cause
from understudy_router.forwarding.fallback import Step
from understudy_router.router import Router
from understudy_shared.auth.access import Access
from understudy_shared.cluster.node_calls import CallKind, CallOutcome
from understudy_shared.http.health import HealthReport
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.app import CAUSES_OF_PROCESS, degraded_metric
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.telemetry.metrics import MS_PER_S, about_the_process, histogram_family

CAUSES_OF_APPLICATION = tuple(cause for cause in Cause if cause not in CAUSES_OF_PROCESS)


class RouterMetrics:
    """The metrics of one router; several can live in one process."""

    def __init__(
        self,
        router: Router,
        lookups: LookupsFirst,
        guard: ConnectionGuard,
        causes: Callable[[], Mapping[str, str]],
        health: Callable[[], HealthReport | None],
    ) -> None:
        """Take the parts to report. `causes`: why the service is degraded, by cause. `health`: its last findings."""
        self._router = router
        self._guard = guard
        self._lookups = lookups
        self._causes = causes
        self._health = health

    def collect(self) -> Iterator[Metric]:
        yield from process_metrics(self._guard, self._lookups.access)
        yield from self.of_application(Cause)

    def of_application(self, known: Iterable[str] = CAUSES_OF_APPLICATION) -> Iterator[Metric]:
        """Yield the families of this application alone: a process of several has the others once. `known`: causes to
        show.
        """
        yield from self._lookups.requests.metrics()
        yield from self._lookups.long_reads.metrics()
        yield from self._lookups.watch_streams.metrics()
        yield GaugeMetricFamily(
            "understudy_router_in_flight", "Requests that are being answered", self._lookups.in_flight
        )
        yield from self._itself()
        yield from self._served()
        yield from self._hops()
        yield from self._extra()
        yield from self._cluster()
        yield degraded_metric("understudy_router_degraded", known, self._causes())
        yield from self._known()
        yield from self._nodes()

    def _itself(self) -> Iterator[Metric]:
        """Yield its name, and the health of the cluster as it sees it."""
        info = GaugeMetricFamily("understudy_router_info", "1; the router's name", labels=("router_id",))
        info.add_metric((self._router.settings.name,), 1)
        yield info
        health = GaugeMetricFamily(
            "understudy_health",
            "State of each indicator of health: 0 ok, 1 attention, 2 unknown, 3 hurt",
            labels=("indicator",),
        )
        report = self._health()
        for each in () if report is None else report.indicators:
            health.add_metric((each.name,), each.state)
        yield health

    def _served(self) -> Iterator[Metric]:
        """Yield the ages of the answers that readers got."""
        served = self._router.served
        yield histogram_family(
            "understudy_served_staleness_seconds",
            "Time lag of answers, as far as it was known",
            served.staleness_ms,
            per=MS_PER_S,
        )
        yield histogram_family(
            "understudy_served_lag_batches",
            "Versions that answers were behind, as far as it was known",
            served.offset_lag,
        )
        for name, text, count in (
            ("served_lag_unknown", "Answers of unknown lag", served.unknown),
            ("bound_violations", "Answers beyond the bound that was asked for: stays 0", served.violations),
            ("refused_by_bound", "Reads that no replica might answer within the bound", served.refused_by_bound),
            (
                "read_errors",
                "Reads without an answer, neither by their bound nor by a mistake of theirs",
                served.errors,
            ),
        ):
            yield CounterMetricFamily(f"understudy_{name}", text, count)

    def _hops(self) -> Iterator[Metric]:
        counts = self._router.clients.counts
        yield histogram_family(
            "understudy_router_hop_seconds",
            "Requests to nodes, from the first byte sent to the last received",
            counts.duration_ms,
            per=MS_PER_S,
        )
        yield CounterMetricFamily("understudy_router_hop_keys", "Keys that travelled in requests to nodes", counts.keys)
        yield CounterMetricFamily("understudy_router_hop_failures", "Requests to nodes without a reply", counts.failed)
        yield CounterMetricFamily(
            "understudy_router_hop_retries", "Requests sent again because their connection was stale", counts.retried
        )
        yield CounterMetricFamily(
            "understudy_router_silences", "Times that a node answered nothing while others did", counts.silences
        )

        calls = CounterMetricFamily(
            "understudy_router_calls",
            "Calls to nodes besides lookups, by kind and by how they ended",
            labels=("kind", "outcome"),
        )
        for kind in CallKind:
            for outcome in CallOutcome:
                calls.add_metric((kind, outcome), self._router.nodes.counts[kind, outcome])
        yield calls

    def _extra(self) -> Iterator[Metric]:
        """Yield the requests to more than one node, with their reasons."""
        reads = self._router.forwarder.context
        yield _counted(
            "understudy_router_fallbacks", "Candidates that did not answer, by reason", "reason", reads.fallbacks
        )
        for name, step, text in (
            ("hedges", Step.HEDGE, "Keys asked of another replica because the first was slow"),
            ("rescues", Step.RESCUE, "Keys asked of another replica because the first was silent"),
            ("retries", Step.RETRY, "Keys asked of another replica after a timeout or overload"),
        ):
            yield CounterMetricFamily(f"understudy_router_{name}", text, reads.steps[step])
        yield CounterMetricFamily(
            "understudy_router_retries_refused",
            "Keys not hedged or retried: the retry budget was spent",
            reads.not_paid,
        )
        yield GaugeMetricFamily(
            "understudy_router_retry_budget",
            "Keys that may be hedged or retried now",
            reads.budget.balance(self._router.now_ms()),
        )

    def _cluster(self) -> Iterator[Metric]:
        router = self._router
        yield GaugeMetricFamily("understudy_router_nodes", "Nodes that live", len(router.tables.nodes))
        is_connected = router.watcher.bus_lost_why is None
        yield GaugeMetricFamily("understudy_router_bus_connected", "Whether Redis is heard", is_connected)
        yield _counted(
            "understudy_router_refused_messages",
            "Documents from Redis that were not used",
            "kind",
            router.gossip.refused,
        )

    def _known(self) -> Iterator[Metric]:
        """Yield the state of the tables that this router routes by."""
        tables, stores = self._router.tables, self._router.watcher.catalogue.stores
        yield GaugeMetricFamily(
            "understudy_end_offset_position", "Last committed version that was heard of", tables.end_version
        )
        yield GaugeMetricFamily(
            "understudy_end_confirmed",
            "Whether any node confirms the end of the history",
            tables.end_confirmed(self._router.now_ms()),
        )
        term, epoch = tables.order
        yield GaugeMetricFamily("understudy_assignment_term", "Term of the followed assignment; 0: no assignment", term)
        yield GaugeMetricFamily(
            "understudy_assignment_epoch", "Epoch of the followed assignment; 0: no assignment", epoch
        )
        partitions = GaugeMetricFamily(
            "understudy_store_partitions", "Partitions, wherever they are held", labels=("store",)
        )
        for name, route in sorted(stores.by_name.items()) if stores is not None else ():
            partitions.add_metric((name,), route.partitions)
        yield partitions

    def _nodes(self) -> Iterator[Metric]:
        tables, now_ms = self._router.tables, self._router.now_ms()
        health = GaugeMetricFamily(
            "understudy_router_node_health", "0: ok, 1: suspect, 2: quarantined", labels=("node",)
        )
        age = GaugeMetricFamily(
            "understudy_router_heartbeat_age_seconds", "Age of what is known of a node that lives", labels=("node",)
        )
        for node_id, node in sorted(tables.nodes.items()):
            health.add_metric((node_id,), RANK[tables.health.of(node_id).health])
            age.add_metric((node_id,), node.age_ms(now_ms) / MS_PER_S)
        yield from (health, age)
        changes = {str(became): tables.health.entered[became] for became in Health}
        yield _counted(
            "understudy_router_node_health_changes", "Changes of a node's health, by what it became", "health", changes
        )


def process_metrics(guard: ConnectionGuard, access: Access) -> Iterator[Metric]:
    """Yield the metrics of the process, whatever it serves."""
    yield from about_the_process()
    yield from guard.metrics()
    yield from access.metrics()


def _counted(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family
