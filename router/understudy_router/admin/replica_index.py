"""The replicas by an assignment and a catalogue: numbered once, and read by every snapshot (pure).

A replica is a number. Arrays give its task, its node and its role, so 100,000 replicas are not objects for the garbage
collector. Replicas are numbered by operator, partition and node id: reports and cursors use this order.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import partial

from understudy_router.cluster.catalogue import StoreRoute, Stores
from understudy_shared.bus.messages import AssignedTask, Assignment

ROLES = ("active", "standby", "warmup")
"""The names of the roles; a replica's role is an index into them."""

ACTIVE, STANDBY, WARMUP = range(3)


class ReplicaIndex:
    """The numbered replicas of an `assignment` and its `stores`; each is `None` while it is unknown."""

    def __init__(self, assignment: Assignment | None, stores: Stores | None) -> None:
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
        """Return the replicas of a store."""
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


def index_replicas(assignment: Assignment | None, stores: Stores | None) -> Generator[None, None, ReplicaIndex]:
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
