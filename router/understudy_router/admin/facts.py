"""The replicas by an assignment and a catalogue, numbered once and read by every snapshot; and the facts about one
replica, and about one node, at one moment (pure).

A replica is a number. Arrays give its task, its node and its role, so 100,000 replicas are not objects for the garbage
collector. Replicas are numbered by operator, partition and node id: reports and cursors use this order.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from understudy_router.cluster.candidates import NOTHING_OPEN, lags_of
from understudy_router.cluster.catalogue import CatalogueStores, StoreRoute
from understudy_router.cluster.health import Health, HealthChange
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat, Restore
from understudy_shared.cluster.view import DeadNode, NodeReport

ROLES = ("active", "standby", "warmup")
"""The names of the roles; a replica's role is an index into them."""

ACTIVE, STANDBY, WARMUP = range(3)


class ReplicaIndex:
    """The numbered replicas of an `assignment` and its `stores`; each is `None` while it is unknown."""

    def __init__(self, assignment: Assignment | None, stores: CatalogueStores | None) -> None:
        self.assignment = assignment
        self.stores = stores
        routes = () if stores is None else stores.by_name.values()
        self.routes: tuple[StoreRoute, ...] = tuple(sorted(routes, key=lambda route: route.name))
        self.node_ids = () if assignment is None else tuple(sorted(assignment.holders))
        """The nodes that hold any task; a node's number is its place here."""
        self.number_of = {node_id: number for number, node_id in enumerate(self.node_ids)}
        self.tasks_of: dict[int, range] = {}
        """The tasks of each operator, by operator id; partition by partition."""
        self.operator_id, self.partition = array("q"), array("I")
        """The operator and the partition of each task, by task."""
        self.starts = array("I", [0])
        """The number of each task's first replica, by task, and of the end of the last task's."""
        self.task, self.node, self.role = array("I"), array("I"), bytearray()
        """The task, the node and the role of each replica, by replica."""
        self.of_node = [array("I") for _ in self.node_ids]
        """The replicas of each node, ascending, by node."""
        new = partial(array, "I")
        self.duties: list[dict[tuple[int, int], array[int]]] = [defaultdict(new) for _ in self.node_ids]
        """The replicas by (operator id, role) of each node, ascending, by node."""
        self.counts = {node_id: [0] * len(ROLES) for node_id in self.node_ids}
        """The number of tasks by role of each node, by node id: of all tasks, whether or not their stores are known."""
        self.unheld: set[int] = set()
        """Tasks that no node holds."""
        self.alone: set[int] = set()
        """Numbers of the nodes that hold any task alone."""
        self.stores_of: dict[int, tuple[str, ...]] = {}
        """The names of the stores of each operator, by operator id."""

    @property
    def replicas(self) -> int:
        return len(self.node)

    def key(self, task: int) -> str:
        """Return the name of the task in assignments and heartbeats."""
        return f"{self.operator_id[task]}_{self.partition[task]}"

    def holders(self, task: int) -> range:
        """Return the replicas of a task."""
        return range(self.starts[task], self.starts[task + 1])

    def replica_by_key(self, key: str, node: int) -> int | None:
        """Return the replica that a node has of a task; `None` when it has no replica of it."""
        operator_id, _, partition = key.partition("_")
        tasks = self.tasks_of.get(int(operator_id), range(0))
        holders = self.holders(tasks[int(partition)]) if int(partition) < len(tasks) else range(0)
        return next((replica for replica in holders if self.node[replica] == node), None)

    def tasks_of_store(self, route: StoreRoute) -> range:
        return self.tasks_of[route.operator_id][: route.partitions]

    def of_store(self, route: StoreRoute) -> range:
        return self.of_tasks(self.tasks_of_store(route))

    def of_tasks(self, tasks: range) -> range:
        """Return the replicas of tasks with consecutive numbers."""
        return range(self.starts[tasks.start], self.starts[tasks.stop])

    def name(self, replica: int) -> tuple[int, str]:
        """Return the partition and the node id of a replica: its name within its store."""
        return self.partition[self.task[replica]], self.node_ids[self.node[replica]]

    def add_operator(self, operator_id: int, partitions: int) -> Iterator[None]:
        """Number the tasks of an operator, in slices."""
        first = len(self.partition)
        self.tasks_of[operator_id] = range(first, first + partitions)
        for task in self.tasks_of[operator_id]:
            self.operator_id.append(operator_id)
            self.partition.append(task - first)
            self._add(task, None if self.assignment is None else self.assignment.tasks.get(self.key(task)))
            yield

    def count(self, duty: AssignedTask) -> None:
        """Count a task for each of its nodes."""
        if duty.active is not None:
            self.counts[duty.active][ACTIVE] += 1
        for role, node_ids in ((STANDBY, duty.standbys), (WARMUP, duty.warmups)):
            for node_id in node_ids:
                self.counts[node_id][role] += 1

    def _add(self, task: int, duty: AssignedTask | None) -> None:
        holders = () if duty is None else sorted(set(duty.holders))
        for node_id in holders:
            assert duty is not None
            role = ACTIVE if node_id == duty.active else STANDBY if node_id in duty.standbys else WARMUP
            number, replica = self.number_of[node_id], len(self.node)
            self.of_node[number].append(replica)
            self.duties[number][self.operator_id[task], role].append(replica)
            self.task.append(task)
            self.node.append(number)
            self.role.append(role)
            if len(holders) == 1:
                self.alone.add(number)
        if not holders:
            self.unheld.add(task)
        self.starts.append(len(self.node))


def index_replicas(
    assignment: Assignment | None, stores: CatalogueStores | None
) -> Generator[None, None, ReplicaIndex]:
    """Number the replicas, in slices."""
    index = ReplicaIndex(assignment, stores)
    for duty in () if assignment is None else assignment.tasks.values():
        index.count(duty)
        yield
    for route in index.routes:
        index.stores_of[route.operator_id] = (*index.stores_of.get(route.operator_id, ()), route.name)
    for operator_id in index.stores_of:
        partitions = max(route.partitions for route in index.routes if route.operator_id == operator_id)
        yield from index.add_operator(operator_id, partitions)
    return index


DEAD = "DEAD"
"""The state of a replica on a dead node."""

UNKNOWN = "UNKNOWN"
"""The filter value for replicas of unknown state."""

RUNNING = "RUNNING"


class Standing(IntEnum):
    """The usefulness of a replica to readers. From BEHIND on, a version of the history in use is open."""

    DEAD = 0
    UNHEARD = 1
    CLOSED = 2
    BEHIND = 3
    SILENT = 4
    """Caught up when its node last spoke: that said nothing for three heartbeats, or did not answer when asked."""
    DOUBTFUL = 5
    """Caught up, but not reliable: its node drains, leaves, has failed, or does not answer as it should."""
    CAUGHT_UP = 6

    @property
    def is_live(self) -> bool:
        return self is not Standing.DEAD

    @property
    def is_open(self) -> bool:
        return self >= Standing.BEHIND


class Facts(NamedTuple):
    """The facts about one replica, without its role. `state` is `None` until a heartbeat of its node is heard."""

    state: str | None
    version: int | None = None
    offset_lag: int | None = None
    time_lag_ms: int | None = None
    report_age_ms: int | None = None
    error: str | None = None
    restore: Restore | None = None
    standing: Standing = Standing.DEAD

    @property
    def is_restoring(self) -> bool:
        return self.state in {"RESTORING", "CREATED"} or self.restore is not None

    @property
    def restored_percent(self) -> float | None:
        """The progress of a restore; `None` while it is unknown."""
        if self.restore is None or not self.restore.total_bytes:
            return None
        return round(min(100.0, 100 * self.restore.done_bytes / self.restore.total_bytes), 1)


class NodeView(NamedTuple):
    """The facts about one node. `facts` hold for all its replicas but those in `own`, by their numbers."""

    node_id: str
    endpoint: HostInfo
    facts: Facts
    own: Mapping[int, Facts] = {}
    report: NodeReport | None = None
    """The last report of the node; `None` when the node does not live, or was never heard."""
    dead: DeadNode | None = None
    health: HealthChange | None = None
    age_ms: int | None = None
    """Milliseconds since its last heartbeat, or since its death."""
    is_silent: bool = False
    """Whether the node said nothing for three heartbeats, on the bus or by an answer."""

    def of(self, replica: int) -> Facts:
        """Return the facts of one of its replicas."""
        return self.own.get(replica, self.facts)

    @property
    def is_live(self) -> bool:
        return self.report is not None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return None if self.report is None else self.report.heartbeat

    @property
    def zone(self) -> str | None:
        """The zone of the node, after its death too."""
        known = self.report or self.dead
        return None if known is None else known.heartbeat.zone

    @property
    def reason(self) -> str:
        """The reason why the node is not well; empty while it is."""
        if self.health is not None:
            return self.health.why
        return "" if self.dead is None else self.dead.why

    @property
    def state(self) -> str:
        """The state that the node reports; `dead`, or `unheard` when only the assignment names it."""
        if self.report is not None:
            return self.report.heartbeat.standing
        return "unheard" if self.dead is None else "dead"


class NodeReader:
    """The maker of the views of nodes, against one end."""

    def __init__(
        self, tables: Tables, index: ReplicaIndex, previous: Assignment | None, *, now_ms: float, end: int | None
    ) -> None:
        self._tables = tables
        self._index = index
        self._previous = previous
        self._now_ms = now_ms
        self._end = end

    def view(self, report: NodeReport) -> Generator[None, None, NodeView]:
        """Return the view of a live node. A node with many exceptions takes several slices."""
        beat, age_ms = report.heartbeat, round(report.age_ms(self._now_ms))
        health, is_silent = self._tables.health.of(beat.node_id), self._tables.is_silent(report, self._now_ms)
        best = Standing.CAUGHT_UP
        if is_silent or self._tables.silence.is_unanswered(beat.node_id):
            best = Standing.SILENT
        elif beat.is_asked_last or health.health is not Health.OK:
            best = Standing.DOUBTFUL
        own: dict[int, Facts] = {}
        for replica, applied in self._exceptions(beat):
            if replica is not None and replica not in own:
                own[replica] = self._facts(beat, applied, age_ms, best)
            yield
        return NodeView(
            node_id=beat.node_id,
            endpoint=beat.endpoint.host_info(),
            facts=self._facts(beat, beat.applied, age_ms, best),
            own=own,
            report=report,
            health=health,
            age_ms=age_ms,
            is_silent=is_silent,
        )

    def _exceptions(self, beat: Heartbeat) -> Iterator[tuple[int | None, Applied]]:
        """Yield the replicas of a node that differ from its others, and what is reported of them. A replica that the
        node does not hold here is `None`.
        """
        index, holds = self._index, self._holds(beat)
        number = index.number_of.get(beat.node_id)
        if number is None:
            return
        for key, applied in beat.exceptions.items():
            yield index.replica_by_key(key, number), applied
        if holds is not None:
            for replica in index.of_node[number]:
                yield None if holds(index.key(index.task[replica])) else replica, NOTHING_OPEN

    def dead(self, dead: DeadNode) -> NodeView:
        facts = Facts(DEAD, error=dead.why)
        age_ms = round(self._now_ms - dead.died_ms)
        return NodeView(dead.heartbeat.node_id, dead.heartbeat.endpoint.host_info(), facts, dead=dead, age_ms=age_ms)

    def unheard(self, node_id: str) -> NodeView:
        """Return the view of a node that only the assignment names. Without an address it counts as dead."""
        assignment = self._index.assignment
        endpoint = None if assignment is None else assignment.members.get(node_id)
        if endpoint is None:
            return NodeView(node_id, HostInfo("unknown", 0), Facts(DEAD))
        return NodeView(node_id, endpoint.host_info(), Facts(None, standing=Standing.UNHEARD))

    def _holds(self, beat: Heartbeat) -> Callable[[str], bool] | None:
        """Return a test of whether a heartbeat reports on a task (see `applied_of`); None: it reports on all."""
        if beat.held is not None:
            return frozenset(beat.held).__contains__
        assignment, previous = self._index.assignment, self._previous
        order = (beat.term, beat.epoch)
        if previous is None or assignment is None or order == assignment.order or order != previous.order:
            return None
        tasks = previous.tasks
        return lambda key: key in tasks and beat.node_id in tasks[key].holders

    def _facts(self, beat: Heartbeat, applied: Applied, age_ms: int, best: Standing) -> Facts:
        """Return the facts of a replica; `best` is the standing of a caught-up one on this node."""
        offset_lag, time_lag_ms = lags_of(applied, age_ms, self._end, self._tables.end_expiry_ms)
        return Facts(
            state=applied.state,
            version=applied.version,
            offset_lag=offset_lag,
            time_lag_ms=time_lag_ms,
            report_age_ms=age_ms,
            error=applied.error,
            restore=applied.restore,
            standing=self._standing(beat, applied, best),
        )

    def _standing(self, beat: Heartbeat, applied: Applied, best: Standing) -> Standing:
        assignment = self._index.assignment
        fits = assignment is None or (
            beat.lineage == assignment.lineage and beat.partitions in {None, assignment.partitions}
        )
        if applied.version is None or not fits:
            return Standing.CLOSED
        if applied.state != RUNNING:
            return Standing.BEHIND
        return best
