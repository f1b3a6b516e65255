"""The served generation and its successor: one thread changes them, readers read references.

A generation is one layout of one lineage: the description of the checkpoint, and the replicas built from it. It never
changes. When the query changes its layout, the new generation is restored next to the served one, and swapped in when
all its tasks that the node is to hold can answer. Other duties or names make a new generation of the same layout:
replicas that stay are the same objects, so nothing is restored twice and no answer is interrupted.

When the query was restarted with other state, a running node adopts what it can. Replicas stay as they are. So does an
operator that would need other replicas: it is read as before, until the node is restarted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.checkpoint.logs import Provider
from understudy_node.follow.end import End
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.read_views import Progress
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import Origin
from understudy_node.replica.workers import Steps
from understudy_node.settings import NodeSettings
from understudy_node.stores.lookup import StoreReader, store_readers
from understudy_node.stores.parts import has_families, scan_order_of
from understudy_node.stores.stores import Naming, StoreAlias, naming_of
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import ApplicationId, HostInfo, KeyPlacement, Lineage, Role, StoreName, TaskId
from understudy_shared.bus.messages import Announcement, task_key

ROW_PREFIX: dict[Provider, bytes] = {"rocksdb": b"\x00", "hdfs": b""}
"""RocksDB keys and values begin with the encoding's version byte; the HDFS-backed provider stores bare rows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout, which decides a key's partition and its bytes. It may change at a restart of the query."""

    partitions: int
    provider: Provider
    placement: KeyPlacement

    def fits(self, record: CommitRecord) -> bool:
        """Whether a version was written in this layout: another placement does not change earlier files."""
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
        return all(replica.view is not None for replica in self.replicas)

    @property
    def held(self) -> dict[str, TaskReplica]:
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


def with_new_schemas(
    known: CheckpointDescription, found: CheckpointDescription
) -> tuple[CheckpointDescription, list[str]]:
    """Return the description to serve from now on, and which parts of `found` are not in it, with the reasons."""
    before = {each.operator_id: each for each in known.operators}
    operators, left = [], []
    for operator in found.operators:
        was = before.get(operator.operator_id, operator)
        why = _why_others(was, operator)
        operators.append(operator if why is None else was)
        if why is not None:
            left.append(f"operator {operator.operator_id} is read as before: {why}. Start the node again")
    return replace(found, operators=tuple(operators)), left


def read_alike(one: CheckpointDescription, other: CheckpointDescription) -> bool:
    return [_read_by(each) for each in one.operators] == [_read_by(each) for each in other.operators]


def _why_others(was: OperatorDescription, now: OperatorDescription) -> str | None:
    if _stores(was) != _stores(now) or was.partitions != now.partitions:
        reasons = [str(reason) for _, reason in now.refusals]
        return f"it has other stores ({'; '.join(reasons)})" if reasons else "it has other stores"
    orders = [[scan_order_of(each, store, "rocksdb") for store in each.served] for each in (was, now)]
    return None if orders[0] == orders[1] else "it has a map or timers for the first time, or no more"


def _stores(operator: OperatorDescription) -> list[tuple[str, int]]:
    return [(store.name, store.index) for store in operator.served]


def _read_by(operator: OperatorDescription) -> object:
    files = [[file.name for file in store.schema_files] for store in operator.stores]
    variables = [(each.name, each.kind, each.has_ttl) for each in operator.variables]
    return operator.operator_id, operator.operator_name, bool(operator.inferred_from), files, variables


@dataclass(frozen=True, slots=True)
class Duties:
    """The tasks that a node is to hold: an assignment for another number of partitions does not apply to this layout.

    `tasks`: role by task key, None for all tasks as active. `partitions`: the layout they apply to, None for any."""

    tasks: Mapping[str, Role] | None = None
    partitions: int | None = None

    def are_about(self, partitions: int) -> bool:
        """Whether they apply to a layout with that many partitions."""
        return self.partitions in (None, partitions)

    def role_of(self, task: str) -> Role | None:
        """Return the node's role for a task; None when it is not to hold it."""
        return Role.ACTIVE if self.tasks is None else self.tasks.get(task)


EVERYTHING = Duties()


class Generations:
    """`serving` answers readers; it is None until the first commit was seen. `event` is called at changes."""

    def __init__(self, workers: Steps, aliases: Mapping[str, StoreAlias], *, event: Callable[[str, str], None]) -> None:
        self.serving: Generation | None = None
        self.pending: Generation | None = None
        self.duties: Duties = EVERYTHING
        self.announcement: Announcement | None = None
        self._workers = workers
        self._file = aliases
        self._event = event
        self._leaving: list[TaskReplica] = []
        self._fitted: tuple[object, ...] | None = None
        """The generations, duties and announcement that the last `refit` made fit; None: it must run again."""
        self._is_named = False
        self._unreported: Naming | None = None
        """Names in use that had no event yet."""
        self._roles = threading.Lock()

    @property
    def newest(self) -> Generation | None:
        return self.pending or self.serving

    def all(self) -> list[Generation]:
        return [generation for generation in (self.serving, self.pending) if generation is not None]

    def replicas(self) -> list[TaskReplica]:
        return [replica for generation in self.all() for replica in generation.replicas]

    def assign(self, duties: Duties) -> None:
        """Set the duties; called from any thread. Roles change at once; the tasks held change at the next `refit`."""
        with self._roles:
            self.duties = duties
            for generation in self.all():
                _give_roles(generation, duties)

    @property
    def are_settled(self) -> bool:
        """Whether everything to be held can answer, and nothing is joining or leaving."""
        return self.serving is not None and self.serving.ready and self.pending is None and not self._leaving

    def swap_if_ready(self) -> bool:
        """Serve the newest layout if all of its tasks that this node is to hold can answer."""
        pending, replaced = self.pending, self.serving
        if pending is None or not pending.ready or not self.duties.are_about(pending.layout.partitions):
            return False
        self.serving, self.pending = pending, None
        self._event("layout", f"serving {pending.layout.partitions} partitions")
        if replaced is not None:
            self._retire(replaced)
        return True

    def open(self, describe: Callable[[], CheckpointDescription], layout: Layout, wiring: Wiring) -> bool:
        """Make sure that there is a generation of `layout`; True when it is new. Raises when it cannot be built."""
        newest = self.newest
        if newest is not None and newest.layout == layout:
            return False
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._retire(pending)
        description, announcement = describe(), self.announcement
        names = self._names(description, announcement)
        generation = self._built(description, layout, wiring, names=(names, announcement), kept={})
        if self.serving is None:
            self.serving = generation
        else:
            self.pending = generation
            self._event("layout", f"the query now has {layout}: restoring, the old layout is served meanwhile")
        self._report_names()
        return True

    def renew(self, description: CheckpointDescription, wiring: Wiring) -> bool:
        """Read the newest layout by other schemas, over the same replicas; True when something changed."""
        newest = self.newest
        if newest is None:
            return False
        description, left = with_new_schemas(newest.description, description)
        for why in left:
            self._event("schemas left out", why)
        if read_alike(newest.description, description):
            return False
        names = self._names(description, newest.announcement)
        renewed = self._built(
            description, newest.layout, wiring, names=(names, newest.announcement), kept=newest.held, is_refit=False
        )
        if self.pending is newest:
            self.pending = renewed
        else:
            self.serving = renewed
        self._event("schemas", "the query was started again with other state: its columns are read")
        self._report_names()
        return True

    def drop(self) -> None:
        """Hold nothing: it is all from another history."""
        dropped = self.all()
        self.serving = self.pending = None
        for generation in dropped:
            self._retire(generation)

    def close(self) -> None:
        """Take no further steps; the local files stay."""
        for generation in self.all():
            generation.close()

    def refit(self, wiring: Wiring) -> bool:
        """Hold the tasks of the duties and use the announced names; True when something changed."""
        self._leaving = [replica for replica in self._leaving if not replica.gone]
        serving, pending = self.serving, self.pending
        wanted, waits, fitted = (serving, pending, self.duties, self.announcement), bool(self._leaving), self._fitted
        if not waits and fitted and all(now is before for now, before in zip(wanted, fitted, strict=True)):
            return False  # a hundred polls a second, and a thousand tasks to check
        self.serving = None if serving is None else self._refitted(serving, wiring)
        self.pending = None if pending is None else self._refitted(pending, wiring)
        for before, after in ((serving, self.serving), (pending, self.pending)):
            if before is not None and after is not None and after is not before:
                self._remove_unheld(before, after)
        self._report_names()
        # A task may wait until its replica before is gone.
        self._fitted = None if waits else (self.serving, self.pending, *wanted[2:])
        return self.serving is not serving or self.pending is not pending

    def _refitted(self, generation: Generation, wiring: Wiring) -> Generation:
        """Return a generation of the same layout with the wanted tasks and names; the same object when nothing
        differs.
        """
        held, announcement = generation.held, self.announcement
        to_hold = frozenset(filter(self._chosen(generation.layout, held), generation.tasks))
        if to_hold == held.keys() and generation.announcement is announcement:
            return generation
        aliases = generation.aliases
        if generation.announcement is not announcement:
            aliases = self._names(generation.description, announcement)
        return self._built(generation.description, generation.layout, wiring, names=(aliases, announcement), kept=held)

    def _built(
        self,
        description: CheckpointDescription,
        layout: Layout,
        wiring: Wiring,
        *,
        names: tuple[Mapping[str, StoreAlias], Announcement | None],
        kept: Mapping[str, TaskReplica],
        is_refit: bool = True,
    ) -> Generation:
        """Build a generation. `names` are the aliases, and the announcement that they include. Without `is_refit` the
        held tasks stay.
        """
        generation = build_generation(
            description,
            layout,
            wiring=wiring,
            aliases=names[0],
            announcement=names[1],
            is_held=self._chosen(layout, kept) if is_refit else kept.__contains__,
            kept=kept,
        )
        with self._roles:
            _give_roles(generation, self.duties)
        return generation

    def _names(self, description: CheckpointDescription, announcement: Announcement | None) -> Mapping[str, StoreAlias]:
        naming = naming_of(description, self._file, announcement)
        self._unreported = naming
        return naming.aliases

    def _report_names(self) -> None:
        naming, self._unreported = self._unreported, None
        if naming is None:
            return
        for why in naming.left_out:
            self._event("names left out", why)
        if naming.announced:
            self._event("named", f"as the pipeline says: {', '.join(naming.announced)}")
        elif self._is_named:
            self._event("unnamed", "the pipeline's names are not used any more")
        self._is_named = bool(naming.announced)

    def _chosen(self, layout: Layout, kept: Container[str]) -> Callable[[str], bool]:
        """Return which tasks of a layout to hold; while no duties apply to it, the current ones.

        A leaving replica may still remove files in the directory that a new replica of its task would use: the new one
        waits until the old one is gone.
        """
        duties, leaving = self.duties, {replica.key for replica in self._leaving}
        if not duties.are_about(layout.partitions):
            return kept.__contains__
        return lambda task: duties.role_of(task) is not None and (task in kept or task not in leaving)

    def _remove_unheld(self, before: Generation, after: Generation) -> None:
        """Close the replicas that are not held any more; each takes one more step, to remove its local files."""
        held = after.held
        for replica in before.replicas:
            if replica.key not in held:
                replica.leave()
                self._leaving.append(replica)
                self._workers.submit(replica)

    def _retire(self, generation: Generation) -> None:
        generation.close()
        for replica in generation.replicas:
            self._workers.discard(replica)


def _give_roles(generation: Generation, duties: Duties) -> None:
    """Give replicas their roles. A replica without a role becomes a standby."""
    if duties.are_about(generation.layout.partitions):
        for replica in generation.replicas:
            replica.origin.set_role(duties.role_of(replica.key) or Role.STANDBY)
