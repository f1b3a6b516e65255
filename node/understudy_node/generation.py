"""One layout of one lineage: the description of the checkpoint, and the replicas built from it.

A generation never changes. A repartitioned, rewound or re-created checkpoint gets a new one, and the node swaps one
reference when that is ready to answer. Other tasks to hold, or other names, make a new generation of the same layout,
which keeps the replicas that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.checkpoint.logs import Provider
from understudy_node.follow.end import End
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.progress import Progress
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.replica_identity import Origin
from understudy_node.replica.task import TaskReplica
from understudy_node.settings import NodeSettings
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.parts import has_families, scan_order_of
from understudy_node.stores.readers import store_readers
from understudy_node.stores.stores import StoreAlias
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import ApplicationId, HostInfo, KeyPlacement, Lineage, Role, StoreName, TaskId
from understudy_shared.bus.announcement import Announcement
from understudy_shared.bus.messages import task_key

ROW_PREFIX: dict[Provider, bytes] = {"rocksdb": b"\x00", "hdfs": b""}
"""RocksDB keys and values begin with the encoding's version byte; the HDFS-backed provider stores bare rows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout, which decides a key's partition and its bytes. It may change at a restart of the query."""

    partitions: int
    provider: Provider
    placement: KeyPlacement

    def fits(self, record: CommitRecord) -> bool:
        """Whether a version was written in this layout: another placement changes no file of before."""
        written = layout_of(record)
        return (written.partitions, written.provider) == (self.partitions, self.provider)


def layout_of(record: CommitRecord) -> Layout:
    """Return the layout of a version, from its own batch, because operator metadata may be stale."""
    properties = record.offsets.properties
    return Layout(properties.shuffle_partitions, properties.provider, properties.placement)


@dataclass(frozen=True, slots=True)
class Generation:
    """The stores of one layout, and the replicas of the tasks that this node holds.

    `tasks` are the keys of all tasks of the layout, held here or not. `aliases` are names of the stores,
    from the alias file and from `announcement`.
    """

    lineage: Lineage
    layout: Layout
    description: CheckpointDescription
    aliases: Mapping[str, StoreAlias]
    announcement: Announcement | None
    tasks: tuple[str, ...]
    readers: Mapping[StoreName, StoreReader]
    replicas: tuple[TaskReplica, ...]

    @property
    def ready(self) -> bool:
        """Whether every task that is held can answer."""
        return all(replica.view is not None for replica in self.replicas)

    @property
    def held(self) -> dict[str, TaskReplica]:
        """The replicas by task key."""
        return {replica.key: replica for replica in self.replicas}

    def not_served(self) -> list[dict[str, str | int]]:
        """List operators of the query, and stores of operators, that cannot be looked up, with the reason."""
        return [
            {
                "operator_id": operator.operator_id,
                "operator": operator.operator_name,
                **({"store": store} if store else {}),
                "reason": str(reason),
            }
            for operator in self.description.operators
            for store, reason in operator.refusals
        ]

    def close(self) -> None:
        """Stop following; views in flight stay readable."""
        for replica in self.replicas:
            replica.close()


@dataclass(frozen=True, slots=True)
class Wiring:
    """The dependencies of a node's replicas. `node_id` is None outside a cluster."""

    settings: NodeSettings
    around: Surroundings
    host: HostInfo
    node_id: str | None
    end: Callable[[], End]
    clock: Clock
    published: Callable[[], None]

    def replica(self, places: list[StorePlace], role: Role) -> TaskReplica:
        """Make a new replica of the task that `places` belong to."""
        return TaskReplica(
            places,
            self.around,
            progress=Progress(
                places[0], self.around, end=self.end, clock=self.clock, end_expiry_ms=self.settings.end_expiry_ms
            ),
            origin=Origin(self.host, self.node_id, role),
            acceptable_recovery_lag=self.settings.acceptable_recovery_lag,
            published=self.published,
        )


def build_generation(
    description: CheckpointDescription,
    layout: Layout,
    *,
    wiring: Wiring,
    aliases: Mapping[str, StoreAlias],
    announcement: Announcement | None,
    is_held: Callable[[str], bool],
    kept: Mapping[str, TaskReplica],
) -> Generation:
    """Build the stores of a layout over the replicas of the tasks held: those in `kept` as they are, others new.

    New replicas are standbys until they are given another role.
    """
    application_id = ApplicationId(wiring.settings.application)
    wiring.around.disk.keep_lineage(application_id, description.query_id)
    tasks: list[str] = []
    by_operator: dict[int, dict[int, TaskReplica]] = {}
    for operator in description.operators:
        held = by_operator.setdefault(operator.operator_id, {})
        for partition in range(operator.partitions if operator.served else 0):
            task = TaskId(application_id, operator.operator_id, partition)
            key = task_key(task)
            tasks.append(key)
            if is_held(key):
                replica = kept.get(key)
                if replica is None:
                    replica = wiring.replica(places_of(operator, task, description.query_id, layout), Role.STANDBY)
                held[partition] = replica
    readers = store_readers(
        description,
        aliases,
        application_id=application_id,
        row_prefix=ROW_PREFIX[layout.provider],
        max_key_bytes=wiring.settings.max_key_bytes,
        replicas=by_operator,
        rows=wiring.around.cache.rows,
    )
    replicas = tuple(replica for held in by_operator.values() for replica in held.values())
    return Generation(
        lineage=description.query_id,
        layout=layout,
        description=description,
        aliases=aliases,
        announcement=announcement,
        tasks=tuple(tasks),
        readers=readers,
        replicas=replicas,
    )


def places_of(operator: OperatorDescription, task: TaskId, lineage: Lineage, layout: Layout) -> list[StorePlace]:
    """List the stores of a task."""
    return [
        StorePlace(
            task,
            lineage,
            store.name,
            store.directory(task.partition),
            store.index,
            layout.fits,
            scan_order_of(operator, store, layout.provider),
            has_families(operator),
        )
        for store in operator.served
    ]
