"""Prometheus metrics, read from the router's state when they are scraped: nothing is counted twice or goes stale.

Base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from understudy_router.cluster.degraded import Cause
from understudy_router.cluster.health import RANK, Health
from understudy_router.forwarding.fallback import Step
from understudy_router.router import Router
from understudy_shared.http.connection_guard import ConnectionGuard
from understudy_shared.http.lookups import LookupsFirst


class RouterMetrics:
    """The metrics of one router; several can live in one process."""

    def __init__(
        self, router: Router, lookups: LookupsFirst, guard: ConnectionGuard, causes: Callable[[], Mapping[str, str]]
    ) -> None:
        """`causes`: why the service is degraded, by cause."""
        self._router = router
        self._guard = guard
        self._lookups = lookups
        self._causes = causes

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        yield InfoMetricFamily("understudy_build", "The running release", {"version": version("understudy")})
        yield from self._requests()
        yield from self._hops()
        yield from self._cluster()
        yield from self._guard.metrics()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "understudy_requests", "Read requests by operation and outcome", labels=("op", "outcome")
        )
        for labels, count in sorted(self._lookups.requests.items()):
            requests.add_metric(labels, count)
        yield requests
        yield GaugeMetricFamily(
            "understudy_router_in_flight", "Requests that are being answered", self._lookups.in_flight
        )

    def _hops(self) -> Iterator[Metric]:
        counts = self._router.clients.counts
        yield SummaryMetricFamily(
            "understudy_router_hop_seconds",
            "Requests to nodes, from the first byte sent to the last received",
            count_value=counts.hops,
            sum_value=counts.seconds,
        )
        yield CounterMetricFamily("understudy_router_hop_keys", "Keys that travelled in requests to nodes", counts.keys)
        yield CounterMetricFamily("understudy_router_hop_failures", "Requests to nodes without a reply", counts.failed)
        yield CounterMetricFamily(
            "understudy_router_hop_retries", "Requests sent again because their connection was stale", counts.retried
        )
        yield from self._extra()

    def _extra(self) -> Iterator[Metric]:
        """What was asked of more than one node, and why."""
        forwarder = self._router.forwarder
        yield _by_reason(
            "understudy_router_fallbacks", "Candidates that did not answer, by reason", forwarder.fallbacks
        )
        for name, step, text in (
            ("hedges", Step.HEDGE, "Keys asked of another replica because the first was slow"),
            ("rescues", Step.RESCUE, "Keys asked of another replica because the first was silent"),
            ("retries", Step.RETRY, "Keys asked of another replica after a timeout or overload"),
        ):
            yield CounterMetricFamily(f"understudy_router_{name}", text, forwarder.steps[step])
        yield CounterMetricFamily(
            "understudy_router_retries_refused",
            "Keys not hedged or retried: the retry budget was spent",
            forwarder.not_paid,
        )
        yield GaugeMetricFamily(
            "understudy_router_retry_budget",
            "Keys that may be hedged or retried now",
            self._router.budget.balance(self._router.now_ms()),
        )
        yield CounterMetricFamily(
            "understudy_router_silences",
            "Times that a node answered nothing while others did",
            self._router.clients.counts.silences,
        )

    def _cluster(self) -> Iterator[Metric]:
        router = self._router
        yield GaugeMetricFamily("understudy_router_nodes", "Nodes that live", len(router.tables.nodes))
        yield from self._health()
        is_connected = router.watcher.bus_lost_why is None
        yield GaugeMetricFamily("understudy_router_bus_connected", "Whether the bus is heard", is_connected)
        degraded = GaugeMetricFamily(
            "understudy_router_degraded", "1: this does not work although lookups do", labels=("cause",)
        )
        causes = self._causes()
        for cause in Cause:
            degraded.add_metric((cause,), cause in causes)
        yield degraded
        refused = CounterMetricFamily(
            "understudy_router_refused_messages", "Documents from the bus that were not used", labels=("kind",)
        )
        for kind, count in sorted(router.gossip.refused.items()):
            refused.add_metric((kind,), count)
        yield refused
        yield GaugeMetricFamily(
            "understudy_end_offset_position", "Last committed version that was heard of", router.tables.end_version
        )

    def _health(self) -> Iterator[Metric]:
        tables = self._router.tables
        health = GaugeMetricFamily(
            "understudy_router_node_health", "0: ok, 1: suspect, 2: quarantined", labels=("node",)
        )
        for node_id in sorted(tables.nodes):
            health.add_metric((node_id,), RANK[tables.health.of(node_id).health])
        yield health
        changes = CounterMetricFamily(
            "understudy_router_node_health_changes", "Changes of a node's health, by what it became", labels=("health",)
        )
        for became in Health:
            changes.add_metric((became,), tables.health.entered[became])
        yield changes


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("reason",))
    for reason, count in sorted(counts.items()):
        family.add_metric((reason,), count)
    return family
