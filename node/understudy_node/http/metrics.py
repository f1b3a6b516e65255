"""Prometheus metrics of a node, read from its state when they are scraped: nothing is counted twice or goes stale.

The families by store count every replica, and alerts use them. Series by partition are for people: at most
`max_partitions` replicas have them, the first by store and partition, so that they are the same each time. Unknown lag
has a series of its own, because a series that is absent fires no alert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily as Total
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from understudy_node.counters import During
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.events import BUS_AWAY, CAUSES
from understudy_node.node import Node
from understudy_node.replica.pinned_versions import CHANGES
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.auth.access import Access
from understudy_shared.base.words import WRITES_REFUSED, LagInfo, ReplicaState, Role, StoreName
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.app import CAUSES_OF_PROCESS, degraded_metric
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.telemetry.metrics import MS_PER_S, about_the_process, histogram_family

if TYPE_CHECKING:  # a node without a cluster does without these modules
    from understudy_node.cluster.member import ClusterMember


class _ShownReplica(NamedTuple):
    """A store's partition and its replica, with version and lag of the shown version; None if it shows no version."""

    store: str
    partition: int
    replica: TaskReplica
    lag: LagInfo | None


def replica_metrics(readers: Mapping[StoreName, StoreReader], max_partitions: int) -> Iterator[Metric]:
    lags: dict[TaskReplica, LagInfo | None] = {}
    held = [
        _ShownReplica(name, partition, replica, _lag_of(replica, lags))
        for name, reader in sorted(readers.items())
        for partition, replica in sorted(reader.replicas.items())
    ]
    yield from _by_store(readers, held)
    yield from _by_partition(list(islice(held, max_partitions)))
    yield Gauge(
        "understudy_replica_series_left_out",
        "Replicas without series of their own: there are more than metrics_max_partitions",
        max(0, len(held) - max_partitions),
    )


def _lag_of(replica: TaskReplica, known: dict[TaskReplica, LagInfo | None]) -> LagInfo | None:
    """Return the lag of a task, measured once for all its stores."""
    if replica not in known:
        view = replica.view
        known[replica] = None if view is None else replica.progress.lag_of(view)
    return known[replica]


def _by_store(readers: Mapping[StoreName, StoreReader], held: list[_ShownReplica]) -> Iterator[Metric]:
    labels = ("store",)
    partitions = Gauge("understudy_store_partitions", "Partitions, held here or not", labels=labels)
    counts = Gauge(
        "understudy_replicas",
        "Replicas of store partitions by store, role and state",
        labels=("store", "role", "state"),
    )
    sizes = Gauge(
        "understudy_store_stored_bytes", "Size of the records of the replicas that show a version", labels=labels
    )
    alike = Counter((each.store, each.replica.role, each.replica.state) for each in held)
    for name, reader in sorted(readers.items()):
        partitions.add_metric((name,), reader.partitions)
        for role in Role:
            for state in ReplicaState:
                counts.add_metric((name, role, state), alike[name, role, state])
        views = [view for replica in reader.replicas.values() if (view := replica.view) is not None]
        sizes.add_metric((name,), sum(view.stores[reader.store.store_name].stored_bytes for view in views))
    yield from (partitions, counts, sizes)
    yield from _lags_by_store(readers, held)


def _lags_by_store(stores: Iterable[StoreName], held: list[_ShownReplica]) -> Iterator[Metric]:
    labels = ("store",)
    unknown = Gauge("understudy_store_lag_unknown", "Replicas that show a version, of unknown lag", labels=labels)
    batches = Gauge(
        "understudy_store_lag_batches", "Versions that the last replica is behind; absent if unknown", labels=labels
    )
    seconds = Gauge(
        "understudy_store_lag_seconds", "Time that the last replica is behind; absent if unknown", labels=labels
    )
    shown: dict[str, list[LagInfo]] = {}
    for each in held:
        if each.lag is not None:
            shown.setdefault(each.store, []).append(each.lag)
    for name in sorted(stores):
        lags = shown.get(name, [])
        offset_lags = [lag.offset_lag for lag in lags if lag.offset_lag is not None]
        time_lags_ms = [lag.time_lag_ms for lag in lags if lag.time_lag_ms is not None]
        unknown.add_metric((name,), len(lags) - len(offset_lags))
        if offset_lags:
            batches.add_metric((name,), max(offset_lags))
        if time_lags_ms:
            seconds.add_metric((name,), max(time_lags_ms) / 1000)
    yield from (unknown, batches, seconds)


def _by_partition(held: list[_ShownReplica]) -> Iterator[Metric]:
    labels = ("store", "partition")
    info = Gauge("understudy_replica_info", "1: role and state of the replica", labels=(*labels, "role", "state"))
    position = Gauge("understudy_replica_position", "Version on show", labels=labels)
    batches = Gauge("understudy_replica_lag_batches", "Versions behind; absent if unknown", labels=labels)
    seconds = Gauge("understudy_replica_lag_seconds", "Time behind; absent if unknown", labels=labels)
    unknown = Gauge("understudy_replica_lag_unknown", "1: it shows a version, and its lag is unknown", labels=labels)
    for store, partition, replica, lag in held:
        place = (store, str(partition))
        info.add_metric((*place, replica.role, replica.state), 1)
        if lag is None:
            continue
        position.add_metric(place, lag.current_offset_position)
        unknown.add_metric(place, lag.offset_lag is None)
        if lag.offset_lag is not None:
            batches.add_metric(place, lag.offset_lag)
        if lag.time_lag_ms is not None:
            seconds.add_metric(place, lag.time_lag_ms / 1000)
    yield from (info, position, batches, seconds, unknown)


class NodeMetrics:
    """The metrics of one node; several can live in one process."""

    def __init__(
        self,
        node: Node,
        lookups: LookupsFirst,
        guard: ConnectionGuard,
        causes: Callable[[], Mapping[str, str]],
        cluster: ClusterMember | None = None,
    ) -> None:
        """Take the parts to report. `causes`: why the service is degraded, by cause. `cluster`: its part in a cluster;
        None without one.
        """
        self._node = node
        self._guard = guard
        self._lookups = lookups
        self._cluster = cluster
        self._causes = causes

    def collect(self) -> Iterator[Metric]:
        yield from process_metrics(self._guard, self._lookups.access, self._node.cache)
        yield from self.of_application((*CAUSES, *CAUSES_OF_PROCESS))

    def of_application(self, known: Iterable[str] = CAUSES) -> Iterator[Metric]:
        """Yield the families of this application alone: a process of several has the others once. `known`: causes to
        show.
        """
        causes, generation = self._causes(), self._node.generation
        yield from self._requests()
        overlay_bytes = sum(replica.overlay_bytes for replica in generation.replicas) if generation else 0
        yield Gauge("understudy_overlay_bytes", "Changes kept in memory above the snapshots", overlay_bytes)
        yield from self._following()
        yield from replica_metrics(generation.readers if generation else {}, self._node.settings.metrics_max_partitions)
        yield from self._restores()
        yield from self._leases()
        yield degraded_metric("understudy_node_degraded", known, causes)
        if self._cluster is not None:
            yield from _cluster_metrics(
                self._cluster, is_connected=causes.keys().isdisjoint((BUS_AWAY, WRITES_REFUSED))
            )

    def _requests(self) -> Iterator[Metric]:
        yield from self._lookups.requests.metrics()
        yield from self._lookups.long_reads.metrics()
        yield from self._lookups.watch_streams.metrics()
        yield Gauge(
            "understudy_node_in_flight",
            "Batches that are being answered, and lookups that wait",
            self._lookups.in_flight,
        )
        generation, lags = self._node.generation, self._node.measures.lags
        for replica in generation.replicas if generation else ():
            replica.readings.count()
        yield histogram_family(
            "understudy_node_read_staleness_seconds",
            "Time lag of the versions that reads were answered from, as far as it is known",
            lags.staleness_ms,
            per=MS_PER_S,
        )
        yield histogram_family(
            "understudy_node_read_lag_batches",
            "Lag of the versions that reads were answered from, as far as it is known",
            lags.offset_lag,
        )
        yield Total("understudy_node_read_lag_unknown", "Reads answered from a version of unknown lag", lags.unknown)

    def _following(self) -> Iterator[Metric]:
        node = self._node
        end, measures = node.end, node.measures
        yield Gauge("understudy_end_offset_position", "Last committed version that was seen", end.version)
        yield Gauge(
            "understudy_end_confirmed", "Whether the end of the history is confirmed", end.confirmed_ms is not None
        )
        if end.confirmed_ms is not None:
            yield Gauge(
                "understudy_end_age_seconds",
                "Time since the end was confirmed; absent if it is not",
                max(0.0, node.now_ms() - end.confirmed_ms) / 1000,
            )
        yield histogram_family(
            "understudy_commit_to_visible_seconds",
            "Time from a commit to the moment when a replica showed it, of commits after it had reached the end",
            measures.visible.histogram,
            per=MS_PER_S,
        )
        failed, text = measures.storage_errors, "Looks at the commit log and steps of replicas that failed"
        yield _totals("understudy_storage_errors", text, "during", {each: failed[each] for each in During})

    def _leases(self) -> Iterator[Metric]:
        leases, pinned = self._node.leases, self._node.pinned.by_version()
        of_leases = [pinned[version] for version in leases.until_ms if version in pinned]
        yield Gauge("understudy_snapshot_leases", "Snapshot leases that are held", len(leases))
        yield Gauge("understudy_snapshot_lease_versions", "Versions that snapshot leases are of", len(leases.until_ms))
        yield Gauge(
            "understudy_snapshot_lease_extra_bytes",
            "Memory that leased versions hold beyond those on show",
            sum(each.extra_bytes for each in of_leases),
        )
        yield Gauge(
            "understudy_snapshot_lease_disk_bytes",
            "Files of leased versions that were opened from the checkpoint",
            sum(each.disk_bytes for each in of_leases),
        )
        changes: dict[str, int] = {change: leases.counts[change] for change in CHANGES}
        yield _totals("understudy_snapshot_lease_changes", "What became of snapshot leases", "change", changes)

    def _restores(self) -> Iterator[Metric]:
        generation = self._node.generation
        found = [replica.restore for replica in generation.replicas] if generation else []
        restores = [restore for restore in found if restore is not None]
        yield Gauge("understudy_restores", "Tasks that restore now", len(restores))
        yield Gauge(
            "understudy_tasks_stalled",
            "Tasks whose replica is behind the end and cannot advance",
            len(self._node.stalled()),
        )
        yield Gauge(
            "understudy_restore_done_bytes",
            "Bytes of these tasks' snapshots that are on the local disk",
            sum(restore.done_bytes for restore in restores),
        )
        yield Gauge(
            "understudy_restore_size_bytes",
            "Bytes of these tasks' snapshots, as far as they are known",
            sum(restore.total_bytes or 0 for restore in restores),
        )
        yield Total(
            "understudy_restored_bytes",
            "Bytes of snapshots that were linked, copied or downloaded",
            self._node.measures.restored_bytes,
        )
        yield Total(
            "understudy_bases_replaced",
            "Times that a store partition moved onto a newer snapshot",
            self._node.measures.replaced_bases,
        )
        yield Total(
            "understudy_local_copies_damaged",
            "Times that the local copy of a task was found damaged and was built again",
            self._node.measures.damaged_copies,
        )


def _totals(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = Total(name, text, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


def _cluster_metrics(cluster: ClusterMember, *, is_connected: bool) -> Iterator[Metric]:
    term, epoch = (0, 0) if cluster.assignment is None else cluster.assignment.order
    yield Gauge("understudy_assignment_term", "Term of the followed assignment; 0: no assignment", term)
    yield Gauge("understudy_assignment_epoch", "Epoch of the followed assignment; 0: no assignment", epoch)
    yield Gauge("understudy_node_has_lease", "1: this node assigns the tasks", cluster.has_lease)
    yield Gauge("understudy_node_draining", "1: this node asked for its tasks to move away", cluster.draining)
    yield Gauge("understudy_node_standbys_wanted", "num_standby_replicas as configured", cluster.num_standby_replicas)
    yield Gauge("understudy_node_bus_connected", "Whether Redis is heard and takes writes", is_connected)
    refused = dict(sorted(cluster.refused.items()))
    yield _totals("understudy_node_refused_messages", "Documents from Redis that were not used", "kind", refused)


def process_metrics(guard: ConnectionGuard, access: Access, cache: BlockCache) -> Iterator[Metric]:
    yield from about_the_process()
    yield Gauge(
        "understudy_cache_size_bytes",
        "Bytes in the block cache that all stores share (KIP-770 cache-size-bytes-total)",
        cache.used_bytes,
    )
    yield Gauge("understudy_cache_capacity_bytes", "statestore_cache_max_bytes as configured", cache.capacity_bytes)
    yield Gauge(
        "understudy_row_cache_bytes", "Rows asked for lately, as they are stored and as printed", cache.rows.used_bytes
    )
    yield from guard.metrics()
    yield from access.metrics()
