"""The placement of tasks at nodes while the assignor looks for a better one (pure).

It counts as it changes: the tasks and actives of each node, and the tasks that two nodes have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from hashlib import blake2b
from typing import NamedTuple

from understudy_node.cluster.task_replicas import TaskReplicas
from understudy_node.cluster.weights import EVEN, Weights


class Rank(NamedTuple):
    """The place of a node in an application's order of nodes."""

    others: int
    """The load of other applications there, in steps."""
    hashed: bytes
    node: str


class Placed:
    """The nodes of each task, and its active one. `touched` are the tasks that changed in this search."""

    def __init__(self, tasks: Iterable[str], application_id: str) -> None:
        """Take the tasks. Without `application_id` nodes have the order of their ids."""
        self._application_id = application_id
        self.weights: Weights = EVEN
        self.ranks: dict[str, Rank] = {}
        self.nodes_of: dict[str, set[str]] = {task: set() for task in sorted(tasks)}
        self.active: dict[str, str] = {}
        self.standings: dict[str, TaskReplicas] = {}
        self.zones: dict[str, str] = {}
        self.has_zones = False
        self.away: Set[str] = frozenset()
        self.tasks_of: dict[str, set[str]] = {}
        self.active_at: dict[str, set[str]] = {}
        self.touched: set[str] = set()
        self._shared: Counter[tuple[str, str]] = Counter()
        """Number of tasks that two nodes have in common."""

    def take_nodes(self, zones: Mapping[str, str], away: Mapping[str, str], weights: Weights) -> None:
        """Take the nodes of this search, live and away, and the weights. No node that goes has a task left."""
        self.zones = {**away, **zones}
        self.has_zones = len(set(self.zones.values())) > 1
        self.away = frozenset(away)
        if zones.keys() != self.tasks_of.keys() or weights != self.weights:
            self.weights = weights
            self.ranks = {node: self._rank(node) for node in zones}
            in_order = sorted(zones, key=self.ranks.__getitem__)
            self.tasks_of = {node: self.tasks_of.get(node, set()) for node in in_order}
            self.active_at = {node: self.active_at.get(node, set()) for node in in_order}

    def _rank(self, node: str) -> Rank:
        others = self.weights.rank_by_bytes(node)
        if not self._application_id:
            return Rank(others, b"", node)
        return Rank(others, blake2b(f"{self._application_id} {node}".encode(), digest_size=8).digest(), node)

    def put_back(self, task: str, replicas: TaskReplicas) -> None:
        """Give a task the nodes that have its replicas now."""
        self.standings[task] = replicas
        for node in replicas.away:
            self._join(task, node)
        for node in replicas.everyone & self.tasks_of.keys():
            self.give(task, node)

    def put_away(self, task: str) -> None:
        """Take all nodes from a task."""
        for node in tuple(self.nodes_of[task]):
            if node in self.tasks_of:
                self.take(task, node)
            else:
                self.withdraw(task, node)

    def give(self, task: str, node: str) -> None:
        self._join(task, node)
        self.tasks_of[node].add(task)

    def _join(self, task: str, node: str) -> None:
        self.touched.add(task)
        self._count_shared(task, node, 1)
        self.nodes_of[task].add(node)

    def take(self, task: str, node: str) -> None:
        """Take a task from a live node, with its role."""
        if self.active.get(task) == node:
            del self.active[task]
            self.active_at[node].remove(task)
        self.tasks_of[node].remove(task)
        self.withdraw(task, node)

    def withdraw(self, task: str, node: str) -> None:
        """Take a task from a node that may be away."""
        self.touched.add(task)
        self.nodes_of[task].remove(node)
        self._count_shared(task, node, -1)

    def pass_role(self, task: str, giver: str, taker: str) -> None:
        self.active_at[giver].remove(task)
        self.set_active(task, taker)

    def set_active(self, task: str, node: str) -> None:
        self.touched.add(task)
        self.active[task] = node
        self.active_at[node].add(task)

    def load_bytes(self, node: str) -> int:
        """Return the bytes that a node bears, for all applications."""
        return self.weights.others_bytes.get(node, 0) + sum(map(self.weights.bytes_of, self.tasks_of[node]))

    def worth(self, task: str, node: str) -> int:
        """Return how much is lost with a task's replica at a node: 3 for the active, 2 for a caught-up or standby
        replica, 1 for a warm-up.
        """
        replicas = self.standings[task]
        if node == replicas.active:
            return 3
        if node in replicas.standbys or node in replicas.ready:
            return 2
        return 1 if node in replicas.warmups else 0

    def in_common(self, task: str, node: str) -> int:
        """Count the tasks that a node shares with the holders of this one."""
        return sum(self._shared[node, each] for each in self.nodes_of[task])

    def in_its_zone(self, task: str, node: str) -> int:
        """Count the other replicas of the task in a node's zone."""
        if not self.has_zones:
            return 0
        zone = self.zones[node]
        return sum(each != node and self.zones[each] == zone for each in self.nodes_of[task])

    def is_alone_elsewhere(self, task: str, node: str) -> bool:
        """Whether all other replicas of the task are in one zone, and the node is in another."""
        if not self.has_zones:
            return False
        others = {self.zones[each] for each in self.nodes_of[task] if each != node}
        return len(others) == 1 and self.zones[node] not in others

    def is_crowded(self, task: str) -> bool:
        """Whether a task has all its replicas, two at least, in one zone."""
        nodes = self.nodes_of[task]
        return len(nodes) > 1 and len({self.zones[node] for node in nodes}) == 1

    def _count_shared(self, task: str, node: str, change: int) -> None:
        for other in self.nodes_of[task]:
            for pair in ((node, other), (other, node)):
                self._shared[pair] += change
                if not self._shared[pair]:
                    del self._shared[pair]
