"""Prometheus metrics, read from the node's state when they are scraped: nothing is counted twice, nothing goes stale.

Series of tasks that are no longer held disappear by themselves. Base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from understudy_node.degraded import CAUSES
from understudy_node.node import Node
from understudy_shared.http.connection_guard import ConnectionGuard
from understudy_shared.http.lookups import LookupsFirst
from understudy_shared.words import ReplicaState


class ClusterPart(Protocol):
    """The state of a node's part in a cluster."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Documents from the bus that were not used, by kind."""


class NodeMetrics:
    """The metrics of one node; several can live in one process."""

    def __init__(
        self,
        node: Node,
        lookups: LookupsFirst,
        guard: ConnectionGuard,
        causes: Callable[[], Mapping[str, str]],
        cluster: ClusterPart | None = None,
    ) -> None:
        """`causes`: why the service is degraded, by cause. `cluster`: its part in a cluster; None without one."""
        self._node = node
        self._guard = guard
        self._lookups = lookups
        self._cluster = cluster
        self._causes = causes

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        yield InfoMetricFamily("understudy_build", "The running release", {"version": version("understudy")})
        yield self._requests()
        yield from self._memory()
        yield from self._replicas()
        yield self._degraded()
        yield from self._guard.metrics()
        if self._cluster is not None:
            refused = CounterMetricFamily(
                "understudy_node_refused_messages", "Documents from the bus that were not used", labels=("kind",)
            )
            for kind, count in sorted(self._cluster.refused.items()):
                refused.add_metric((kind,), count)
            yield refused

    def _degraded(self) -> Metric:
        causes = self._causes()
        degraded = GaugeMetricFamily(
            "understudy_node_degraded", "1: this does not work although lookups do", labels=("cause",)
        )
        for cause in CAUSES:
            degraded.add_metric((cause,), cause in causes)
        return degraded

    def _requests(self) -> Metric:
        requests = CounterMetricFamily(
            "understudy_requests", "Read requests by operation and outcome", labels=("op", "outcome")
        )
        for (operation, outcome), count in sorted(self._lookups.requests.items()):
            requests.add_metric((operation, outcome), count)
        return requests

    def _memory(self) -> Iterator[Metric]:
        cache = self._node.cache
        yield GaugeMetricFamily(
            "understudy_cache_size_bytes_total",
            "Bytes in the block cache that all stores share (KIP-770 cache-size-bytes-total)",
            cache.used_bytes,
        )
        yield GaugeMetricFamily(
            "understudy_cache_capacity_bytes", "statestore_cache_max_bytes as configured", cache.capacity_bytes
        )
        yield GaugeMetricFamily(
            "understudy_row_cache_bytes",
            "Rows asked for lately, as they are stored and as printed",
            cache.rows.used_bytes,
        )
        generation = self._node.generation
        overlay_bytes = sum(replica.overlay_bytes for replica in generation.replicas) if generation else 0
        yield GaugeMetricFamily("understudy_overlay_bytes", "Changes kept in memory above the snapshots", overlay_bytes)

    def _replicas(self) -> Iterator[Metric]:
        node, generation = self._node, self._node.generation
        end = node.end
        yield GaugeMetricFamily("understudy_end_offset_position", "Last committed version that was seen", end.version)
        yield GaugeMetricFamily(
            "understudy_end_confirmed", "Whether the end of the history is confirmed", end.confirmed_ms is not None
        )
        states = dict.fromkeys(ReplicaState, 0)
        labels = ("operator", "partition")
        lag_batches = GaugeMetricFamily(
            "understudy_replica_lag_batches", "Versions behind; absent if unknown", labels=labels
        )
        lag_seconds = GaugeMetricFamily(
            "understudy_replica_lag_seconds", "Time behind; absent if unknown", labels=labels
        )
        position = GaugeMetricFamily("understudy_replica_position", "Version on show", labels=labels)
        for replica in generation.replicas if generation else ():
            states[replica.state] += 1
            view = replica.view
            if view is None:
                continue
            task = (str(replica.task.operator_id), str(replica.task.partition))
            position.add_metric(task, view.version)
            lag = replica.progress.lag_of(view)
            if lag.offset_lag is not None:
                lag_batches.add_metric(task, lag.offset_lag)
            if lag.time_lag_ms is not None:
                lag_seconds.add_metric(task, lag.time_lag_ms / 1000)
        by_state = GaugeMetricFamily("understudy_replicas", "Replicas by state", labels=("state",))
        for state, count in states.items():
            by_state.add_metric((state,), count)
        yield from (by_state, position, lag_batches, lag_seconds)
