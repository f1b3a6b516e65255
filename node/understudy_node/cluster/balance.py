"""Finds where the replicas of each task should be (pure, deterministic). The assignor decides which moves to make now.

Every task gets the same number of replicas, each on another node. Replicas, actives and standbys per node differ by one
at most; among such placements the search stays close to the present one.

A node that is away keeps its replicas, is given no more and has no role. While there is one, missing replicas are
placed and replicas and actives are levelled, but no standby moves for the sake of standbys or zones.

Why roles alone can even out the actives: with k replicas of each task and D or D+1 replicas on each node, a share of
1/k of every replica is an even spread, and a flow with such a fractional solution has an integral one beside it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from understudy_node.cluster.zones import spread

MAX_TRIED = 32
"""Number of least-loaded nodes considered for a replica: the preference for another zone must not search all nodes."""


@dataclass(frozen=True, slots=True)
class TaskReplicas:
    """The nodes that have a replica of a task now: live ones by role (`ready` are caught up), and those away."""

    active: str | None
    standbys: frozenset[str]
    warmups: frozenset[str]
    ready: frozenset[str]
    versions: Mapping[str, int]
    """The version of each replica that can be read."""
    away: frozenset[str] = frozenset()
    """Nodes that do not live, but keep their place."""

    @property
    def settled(self) -> frozenset[str]:
        """Live nodes whose replica counts: all but the warm-ups."""
        return self.standbys if self.active is None else self.standbys | {self.active}

    @property
    def everyone(self) -> frozenset[str]:
        """All live nodes that have a replica."""
        return self.settled | self.warmups


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes that should have a task."""

    nodes: frozenset[str]
    active: str


def targets(
    zones: Mapping[str, str], replicas_by_task: Mapping[str, TaskReplicas], copies: int, *, away: Mapping[str, str]
) -> dict[str, Target]:
    """Return the target placement. `zones` are the nodes that may have replicas, `away` those that only keep theirs.

    A task has `copies` replicas, fewer if there are fewer nodes, and one more if all of them are away.
    """
    search = _Search(zones, replicas_by_task, copies, away)
    search.trim()
    search.fill()
    search.level_replicas()
    search.choose_actives()
    search.level_actives()
    if not away:
        search.level_standbys()
        search.spread_zones()
    return {task: Target(frozenset(nodes), search.active[task]) for task, nodes in search.nodes_of.items()}


class _Search:
    """The placement while it is built, in phases; each phase keeps even what the earlier ones made even.

    `trim` and `fill` give every task its number of replicas. The levelling phases move one replica or role at a time
    from a node to one that has at least two fewer: each move lowers the sum of the squared loads, so every loop ends.
    Ties are broken by id, so the result is deterministic.
    """

    def __init__(
        self,
        zones: Mapping[str, str],
        replicas_by_task: Mapping[str, TaskReplicas],
        copies: int,
        away: Mapping[str, str],
    ) -> None:
        self.active: dict[str, str] = {}
        self._zones = {**away, **zones}
        self._has_zones = len(set(self._zones.values())) > 1
        self._standings = replicas_by_task
        self._copies = copies
        self._away = away.keys()
        self._shared: Counter[tuple[str, str]] = Counter()
        """Number of tasks that two nodes have in common."""
        self.nodes_of: dict[str, set[str]] = {
            task: set(replicas.away) for task, replicas in sorted(replicas_by_task.items())
        }
        self._tasks_of: dict[str, set[str]] = {node: set() for node in sorted(zones)}
        self._active_at: dict[str, set[str]] = {node: set() for node in self._tasks_of}
        for task in self.nodes_of:
            for node in replicas_by_task[task].everyone & zones.keys():
                self._give(task, node)

    def trim(self) -> None:
        """Drop surplus replicas of each task, from the node with most replicas, then with most standbys.

        A warm-up therefore stays while it makes the placement more even, and each call drops the same replica in its
        favour.
        """
        standbys = Counter(
            node for task, nodes in self.nodes_of.items() for node in nodes if node != self._standings[task].active
        )
        for task, nodes in self.nodes_of.items():
            while len(surplus := nodes & self._away) > self._copies:
                nodes.remove(max(surplus))
            # If all the wanted replicas are away, one more stays, on a live node.
            while len(nodes) > self._copies + (len(surplus) == self._copies):
                _, _, _, _, dropped = max(
                    (
                        not self._is_alone_elsewhere(task, node),
                        len(self._tasks_of[node]),
                        standbys[node],
                        -self._worth(task, node),
                        node,
                    )
                    for node in nodes - surplus
                )
                self._take(task, dropped)
                standbys[dropped] -= dropped != self._standings[task].active

    def fill(self) -> None:
        """Place missing replicas, each at the node with fewest; every task gets at least one live node."""
        order = [(len(tasks), node) for node, tasks in self._tasks_of.items()]
        heapq.heapify(order)
        for task, nodes in self.nodes_of.items():
            while len(lives := nodes - self._away) < len(self._tasks_of) and (not lives or len(nodes) < self._copies):
                node = self._pop_least(order, task)
                self._give(task, node)
                heapq.heappush(order, (len(self._tasks_of[node]), node))

    def level_replicas(self) -> None:
        """Move replicas from the node with most to that with fewest, until these differ by one."""
        while self._tasks_of:
            most = max(self._tasks_of, key=lambda node: len(self._tasks_of[node]))
            least = min(self._tasks_of, key=lambda node: len(self._tasks_of[node]))
            if len(self._tasks_of[most]) - len(self._tasks_of[least]) < 2:
                return
            # First planned replicas, which no node has yet: moving them is free. Then the one whose loss costs least.
            if self._pass_on_new(most, len(self._tasks_of[most]) - 2):
                continue
            task = self._cheapest(self._tasks_of[most] - self._tasks_of[least], most, least)
            self._take(task, most)
            self._give(task, least)

    def choose_actives(self) -> None:
        """Keep actives that can stay; else choose caught-up nodes with few actives and other nodes as standbys."""
        unassigned = []
        for task, nodes in self.nodes_of.items():
            active = self._standings[task].active
            if active is not None and active in nodes:
                self._set_active(task, active)
            else:
                unassigned.append(task)
        # How often the second node stands by for the first: spread, so that a death moves load to many nodes.
        backed: Counter[tuple[str, str]] = Counter()
        for task in unassigned:
            nodes, ready = self.nodes_of[task] - self._away, self._standings[task].ready
            _, _, _, node = min(
                (each not in ready, len(self._active_at[each]), sum(backed[each, other] for other in nodes), each)
                for each in nodes
            )
            self._set_active(task, node)
            backed.update((node, other) for other in nodes if other != node)

    def level_actives(self) -> None:
        """Swap roles along paths of tasks, from nodes with many actives to nodes with few, until they differ by one.

        A node with many actives may share no task with one that has few: the path goes through nodes between them,
        each of which takes one role and gives one, so that only its ends change their numbers.
        """
        searching = True
        while searching:
            searching = False
            fewest = min(map(len, self._active_at.values()), default=0)
            for node in sorted(self._active_at, key=lambda node: -len(self._active_at[node])):
                actives = len(self._active_at[node])
                if actives - fewest < 2:
                    break
                few = {each for each, tasks in self._active_at.items() if len(tasks) <= actives - 2}
                if self._pass_on(node, few):
                    searching = True
                    break

    def level_standbys(self) -> None:
        """Even out standbys, keeping replicas and actives even: by a swap of roles, else by moving a replica."""
        while self._level_a_standby():
            pass

    def spread_zones(self) -> None:
        """Exchange standbys until no task has all its replicas in one zone, as far as the nodes of the zones allow."""
        if self._has_zones and self._copies > 1:
            for task, giver, taker in spread(self._zones, self.nodes_of, self.active, self._worth):
                self._take(task, giver)
                self._give(task, taker)

    def _level_a_standby(self) -> bool:
        """Take a standby from a node with many; False when no such change keeps the rest even."""
        standbys = {node: len(tasks) - len(self._active_at[node]) for node, tasks in self._tasks_of.items()}
        fewest = min(standbys.values(), default=0)
        many = sorted((node for node in standbys if standbys[node] >= fewest + 2), key=lambda node: -standbys[node])
        for most in many:
            few = {node for node in standbys if standbys[node] <= standbys[most] - 2}
            # By roles: a node with few standbys gives an active role to `most`, and is a standby for that task then.
            if any(
                len(self._active_at[node]) > len(self._active_at[most]) and self._pass_on(node, {most})
                for node in sorted(few)
            ):
                return True
            # By a replica: only to a node with fewer replicas, so that these stay even.
            for least in sorted(few, key=lambda node: standbys[node]):
                movable = self._tasks_of[most] - self._active_at[most] - self._tasks_of[least]
                if movable and len(self._tasks_of[least]) < len(self._tasks_of[most]):
                    task = self._cheapest(movable, most, least)
                    self._take(task, most)
                    self._give(task, least)
                    return True
        return False

    def _pass_on(self, start: str, ends: set[str]) -> bool:
        """Move an active role from `start` to one of `ends`; each node between takes one role and gives one."""
        path = _path(start, ends, lambda node: self._active_at[node], lambda task: self.nodes_of[task] - self._away)
        for giver, task, taker in path:
            self._active_at[giver].remove(task)
            self._set_active(task, taker)
        return bool(path)

    def _pass_on_new(self, start: str, most: int) -> bool:
        """Move planned replicas, which no node has yet, along a path to a node with at most `most` replicas."""
        ends = {node for node, tasks in self._tasks_of.items() if len(tasks) <= most}
        path = _path(
            start,
            ends,
            lambda node: {task for task in self._tasks_of[node] if node not in self._standings[task].everyone},
            lambda task: self._tasks_of.keys() - self.nodes_of[task],
        )
        for giver, task, taker in path:
            self._take(task, giver)
            self._give(task, taker)
        return bool(path)

    def _pop_least(self, order: list[tuple[int, str]], task: str) -> str:
        """Pop the node with fewest replicas among those without the task.

        Of equal nodes, prefer another zone, then fewest tasks in common with the other holders, so that the work of a
        node that dies is spread over all.
        """
        passed: list[tuple[int, str]] = []  # popped because they have the task; pushed back below
        equal: list[tuple[int, str]] = []
        holders = self.nodes_of[task]
        while order and len(equal) < MAX_TRIED and (not equal or order[0][0] == equal[0][0]):
            entry = heapq.heappop(order)
            (passed if entry[1] in holders else equal).append(entry)
        assert equal, f"no node is left for a replica of {task}"
        _, _, chosen = min((self._in_its_zone(task, each[1]), self._in_common(task, each[1]), each) for each in equal)
        for entry in passed + equal:
            if entry != chosen:
                heapq.heappush(order, entry)
        return chosen[1]

    def _in_common(self, task: str, node: str) -> int:
        """Count the tasks that a node shares with the holders of this one."""
        return sum(self._shared[node, each] for each in self.nodes_of[task])

    def _cheapest(self, tasks: Iterable[str], giver: str, taker: str) -> str:
        """Return the replica with the least loss at `giver`; of equal ones, the one with its task in most zones."""
        _, _, task = min(
            (self._worth(task, giver), self._in_its_zone(task, taker) - self._in_its_zone(task, giver), task)
            for task in tasks
        )
        return task

    def _in_its_zone(self, task: str, node: str) -> int:
        """Count the other replicas of the task in a node's zone."""
        if not self._has_zones:
            return 0
        zone = self._zones[node]
        return sum(each != node and self._zones[each] == zone for each in self.nodes_of[task])

    def _is_alone_elsewhere(self, task: str, node: str) -> bool:
        """Whether all other replicas of the task are in one zone, and the node is in another."""
        if not self._has_zones:
            return False
        others = {self._zones[each] for each in self.nodes_of[task] if each != node}
        return len(others) == 1 and self._zones[node] not in others

    def _worth(self, task: str, node: str) -> int:
        """Return how much is lost with a task's replica at a node: 3 for the active, 2 for a caught-up or standby
        replica, 1 for a warm-up.
        """
        replicas = self._standings[task]
        if node == replicas.active:
            return 3
        if node in replicas.standbys or node in replicas.ready:
            return 2
        return 1 if node in replicas.warmups else 0

    def _give(self, task: str, node: str) -> None:
        self._count_shared(task, node, 1)
        self.nodes_of[task].add(node)
        self._tasks_of[node].add(task)

    def _take(self, task: str, node: str) -> None:
        self.nodes_of[task].remove(node)
        self._tasks_of[node].remove(task)
        self._count_shared(task, node, -1)

    def _count_shared(self, task: str, node: str, change: int) -> None:
        for other in self.nodes_of[task]:
            self._shared[node, other] += change
            self._shared[other, node] += change

    def _set_active(self, task: str, node: str) -> None:
        self.active[task] = node
        self._active_at[node].add(task)


def _path(
    start: str, ends: set[str], gives: Callable[[str], Iterable[str]], takes: Callable[[str], Iterable[str]]
) -> list[tuple[str, str, str]]:
    """Find, breadth first, the shortest chain of (giver, task, taker) from `start` to an end; empty without one.

    It stops at the first end in sight: looking at the nodes before it in the queue would be a look at nearly all tasks
    for each role that moves.
    """
    if start in ends:
        return []
    came: dict[str, tuple[str, str]] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for task in sorted(gives(node)):
            for taker in sorted(takes(task)):
                if taker != start and taker not in came:
                    came[taker] = (node, task)
                    if taker in ends:
                        return _chain(came, start, taker)
                    queue.append(taker)
    return []


def _chain(came: Mapping[str, tuple[str, str]], start: str, end: str) -> list[tuple[str, str, str]]:
    path, node = [], end
    while node != start:
        giver, task = came[node]
        path.append((giver, task, node))
        node = giver
    return path
