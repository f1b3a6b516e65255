"""The metrics of the replicas that a node holds: by store, and for a limited number of them by partition as well.

The families by store count every replica, and alerts use them. Series by partition are for people: at most
`max_partitions` replicas have them, the first by store and partition, so that they are the same each time. Series of
replicas that left disappear by themselves. Unknown lag has a series of its own, because a series that is absent fires
no alert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import LagInfo, ReplicaState, Role, StoreName


class _Held(NamedTuple):
    """A store's partition and its replica, with version and lag of the shown version; None if it shows no version."""

    store: str
    partition: int
    replica: TaskReplica
    lag: LagInfo | None


def replica_metrics(readers: Mapping[StoreName, StoreReader], max_partitions: int) -> Iterator[Metric]:
    """Yield all families of the replicas of these stores."""
    lags: dict[TaskReplica, LagInfo | None] = {}
    held = [
        _Held(name, partition, replica, _lag_of(replica, lags))
        for name, reader in sorted(readers.items())
        for partition, replica in sorted(reader.replicas.items())
    ]
    yield from _by_store(readers, held)
    yield from _by_partition(list(islice(held, max_partitions)))
    yield GaugeMetricFamily(
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


def _by_store(readers: Mapping[StoreName, StoreReader], held: list[_Held]) -> Iterator[Metric]:
    labels = ("store",)
    partitions = GaugeMetricFamily("understudy_store_partitions", "Partitions, held here or not", labels=labels)
    counts = GaugeMetricFamily(
        "understudy_replicas",
        "Replicas of store partitions by store, role and state",
        labels=("store", "role", "state"),
    )
    sizes = GaugeMetricFamily(
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


def _lags_by_store(stores: Iterable[StoreName], held: list[_Held]) -> Iterator[Metric]:
    labels = ("store",)
    unknown = GaugeMetricFamily(
        "understudy_store_lag_unknown", "Replicas that show a version, of unknown lag", labels=labels
    )
    batches = GaugeMetricFamily(
        "understudy_store_lag_batches", "Versions that the last replica is behind; absent if unknown", labels=labels
    )
    seconds = GaugeMetricFamily(
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


def _by_partition(held: list[_Held]) -> Iterator[Metric]:
    labels = ("store", "partition")
    info = GaugeMetricFamily(
        "understudy_replica_info", "1: role and state of the replica", labels=(*labels, "role", "state")
    )
    position = GaugeMetricFamily("understudy_replica_position", "Version on show", labels=labels)
    batches = GaugeMetricFamily("understudy_replica_lag_batches", "Versions behind; absent if unknown", labels=labels)
    seconds = GaugeMetricFamily("understudy_replica_lag_seconds", "Time behind; absent if unknown", labels=labels)
    unknown = GaugeMetricFamily(
        "understudy_replica_lag_unknown", "1: it shows a version, and its lag is unknown", labels=labels
    )
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
