"""One layout of one lineage: what the checkpoint said when it was described, and the replicas built from it.

The wiring never changes. A repartitioned, rewound or re-created checkpoint gets a new generation, and the node swaps
one reference when that is ready to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.checkpoint.logs import Provider
from understudy_node.follow.end import End
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.surroundings import StorePlace, Surroundings
from understudy_node.replica.task import TaskReplica
from understudy_node.serving.lookup import Holding
from understudy_node.serving.stores import StoreAlias, served_stores
from understudy_node.settings import NodeSettings
from understudy_shared.clock import Clock
from understudy_shared.words import ApplicationId, HostInfo, Lineage, Role, StoreName, TaskId

ROW_PREFIX: dict[Provider, bytes] = {"rocksdb": b"\x00", "hdfs": b""}
"""RocksDB keys and values begin with the encoding's version byte; the HDFS-backed provider stores bare rows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What decides which partition a key is in and how its bytes look. It may change at a restart of the query."""

    partitions: int
    provider: Provider

    def fits(self, record: CommitRecord) -> bool:
        """Whether a version was written in this layout."""
        return layout_of(record) == self


def layout_of(record: CommitRecord) -> Layout:
    """The layout a version was written in: that of its own batch, because operator metadata may be stale."""
    properties = record.offsets.properties
    return Layout(properties.shuffle_partitions, properties.provider)


@dataclass(frozen=True, slots=True)
class Generation:
    """Stores and replicas of one layout."""

    lineage: Lineage
    layout: Layout
    description: CheckpointDescription
    holdings: Mapping[StoreName, Holding]
    replicas: tuple[TaskReplica, ...]

    @property
    def ready(self) -> bool:
        """Whether every task can be answered from."""
        return all(replica.view is not None for replica in self.replicas)

    def close(self) -> None:
        """Stop following; views in flight stay readable."""
        for replica in self.replicas:
            replica.close()


def build_generation(
    description: CheckpointDescription,
    layout: Layout,
    *,
    settings: NodeSettings,
    aliases: Mapping[str, StoreAlias],
    around: Surroundings,
    host: HostInfo,
    end: Callable[[], End],
    clock: Clock,
    published: Callable[[], None],
) -> Generation:
    """Replicas of every task of every supported operator, not yet restored."""
    application_id = ApplicationId(settings.application)
    around.disk.keep_lineage(application_id, description.query_id)
    by_operator: dict[int, dict[int, TaskReplica]] = {}
    for operator in description.operators:
        by_operator[operator.operator_id] = {
            partition: TaskReplica(
                _places(
                    operator, TaskId(application_id, operator.operator_id, partition), description.query_id, layout
                ),
                around,
                end=end,
                clock=clock,
                host=host,
                role=Role.ACTIVE,
                acceptable_recovery_lag=settings.acceptable_recovery_lag,
                end_expiry_ms=settings.end_expiry_ms,
                published=published,
            )
            for partition in range(operator.partitions if operator.stores else 0)
        }
    partitions = {operator.operator_id: operator.partitions for operator in description.operators}
    holdings = {
        name: Holding(
            store=store,
            application_id=application_id,
            lineage=description.query_id,
            partitions=partitions[store.operator_id],
            replicas=by_operator[store.operator_id],
            row_prefix=ROW_PREFIX[layout.provider],
            json_name=orjson.dumps(store.name),
        )
        for name, store in served_stores(description, aliases).items()
    }
    replicas = tuple(replica for tasks in by_operator.values() for replica in tasks.values())
    return Generation(description.query_id, layout, description, holdings, replicas)


def _places(operator: OperatorDescription, task: TaskId, lineage: Lineage, layout: Layout) -> list[StorePlace]:
    return [
        StorePlace(task, lineage, store.name, store.directory(task.partition), store.index, layout.fits)
        for store in operator.stores
    ]
