"""Finds where the replicas of each task should be (pure, deterministic). The assignor decides which moves to make now.

Every task gets the same number of replicas, each on another node. Replicas, actives and standbys per node differ by one
at most; among such placements the search stays close to the present one.

A node that is away keeps its replicas, is given no more and has no role. While there is one, missing replicas are
placed and replicas and actives are levelled, but no standby moves for the sake of standbys or zones.

Why roles alone can even out the actives: with k replicas of each task and D or D+1 replicas on each node, a share of
1/k of every replica is an even spread, and a flow with a fractional solution has a neighbouring integral one.

Zones (KIP-708's rack awareness): standbys move to another zone than their active, and the balance stays. A task is
crowded if all its replicas, two at least, are in one zone. It exchanges one of its standbys with a task
that has two replicas outside that zone; afterwards neither is crowded, and every node has as many replicas, actives
and standbys as before. Such a task exists unless the zone has more than `tasks * (copies - 1)` replicas. A zone that
has more passes a standby to a node of another zone that has fewer replicas and fewer standbys.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from understudy_node.cluster.weights import EVEN, UNWEIGHED, ReplicaSwap, Weighed, Weights


@dataclass(frozen=True, slots=True)
class TaskReplicas:
    """The nodes that have a replica of a task now: live ones by role (`ready` are caught up), and those away."""

    active: str | None
    standbys: frozenset[str]
    warmups: frozenset[str]
    ready: frozenset[str]
    versions: Mapping[str, int]
    away: frozenset[str] = frozenset()
    """Nodes that do not live, but keep their place."""

    @property
    def settled(self) -> frozenset[str]:
        """Live nodes with a replica that counts: all but the warm-ups."""
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

    def take_nodes(self, zones: Mapping[str, str], away: Mapping[str, str], weights: Weights) -> None:
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

    def move(self, task: str, giver: str, taker: str) -> None:
        self.take(task, giver)
        self.give(task, taker)

    def standbys_at(self, node: str) -> int:
        return len(self.tasks_of[node]) - len(self.active_at[node])

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


MAX_TRIED = 32
"""Number of least-loaded nodes considered for a replica: the preference for another zone must not search all nodes."""


Step = tuple[str, str, str]
"""A giver, a task, and the node that takes it."""


def find_path(
    start: str,
    is_end: Callable[[str], bool],
    gives: Callable[[str], Iterable[str]],
    takes: Callable[[str], Iterable[str]],
) -> tuple[list[Step], Set[str]]:
    """Find the shortest chain from `start` to an end, breadth first. Return it; without one, the nodes reached.

    It stops at the first end in sight: checking the nodes before it in the queue would mean checking nearly all tasks
    for each role that moves.
    """
    came: dict[str, tuple[str, str]] = {}
    queue = deque([] if is_end(start) else [start])
    while queue:
        node = queue.popleft()
        for task in sorted(gives(node)):
            for taker in sorted(takes(task)):
                if taker != start and taker not in came:
                    came[taker] = (node, task)
                    if is_end(taker):
                        return _chain(came, start, taker), frozenset()
                    queue.append(taker)
    return [], frozenset({start, *came})


def _chain(came: Mapping[str, tuple[str, str]], start: str, end: str) -> list[Step]:
    path, node = [], end
    while node != start:
        giver, task = came[node]
        path.append((giver, task, node))
        node = giver
    return path


class Balance:
    """The placement of all tasks, kept from one search to the next.

    A search starts from the present replicas. A task that already has its target starts where the last search ended, so
    only the other tasks are reset to what they have; then the phases run. The result is the same as a search from
    scratch, and its cost depends on the tasks that are reset or move.

    `_trim` and `_fill` give every task its number of replicas. The levelling phases move one replica or role at a time
    from a node to one that has at least two fewer: each move lowers the sum of the squared loads, so every loop ends.
    Each phase keeps even what the earlier ones made even. Ties are broken by the order of the tasks, then of the nodes:
    those with less weight of other applications come first, then each application has its own order. So the result is
    deterministic, and the odd replicas of many applications lie at different nodes.
    """

    def __init__(self, tasks: Iterable[str], copies: int, application_id: str = "") -> None:
        """Take the tasks. A task has `copies` replicas, fewer if there are fewer nodes, one more if all are away.

        Without `application_id` nodes have the order of their ids.
        """
        self._copies = copies
        self._placed = Placed(tasks, application_id)
        self._unjudged = set(self._placed.nodes_of)
        """The tasks that may have all their replicas in one zone."""
        self._crowded: set[str] = set()

    def leaving(self, zones: Container[str]) -> set[str]:
        """Return the tasks of the nodes that may no longer have replicas: they must be reset."""
        return {task for node, tasks in self._placed.tasks_of.items() if node not in zones for task in tasks}

    def search(
        self,
        zones: Mapping[str, str],
        replicas_by_task: Mapping[str, TaskReplicas],
        *,
        away: Mapping[str, str],
        weighed: Weighed = UNWEIGHED,
    ) -> dict[str, Target]:
        """Return the targets of the tasks that are reset to `replicas_by_task`, and of all that the search moves.

        `zones` are the nodes that may have replicas, `away` those that only keep theirs. The other tasks must have what
        they had at the end of the last search, and the wanted number of replicas. The tasks of an exchange are reset
        until it is over.
        """
        placed = self._placed
        tasks = sorted(replicas_by_task)
        placed.touched = set(tasks)
        for task in tasks:
            placed.put_away(task)
        self._place(zones, away, weighed.weights)
        for task in tasks:
            placed.put_back(task, replicas_by_task[task])
        if (exchange := weighed.exchange) is not None and not exchange.is_role:
            self._exchange(exchange)
        self._trim(tasks)
        self._fill(tasks)
        self._level_replicas()
        self._choose_actives(tasks)
        if exchange is not None and exchange.is_role:
            self._pass_role(exchange)
        self._level_actives()
        if not away:
            while self._level_a_standby():
                pass
            self._spread_zones()
        self._unjudged |= placed.touched
        return {task: Target(frozenset(placed.nodes_of[task]), placed.active[task]) for task in placed.touched}

    def _place(self, zones: Mapping[str, str], away: Mapping[str, str], weights: Weights) -> None:
        placed = self._placed
        before = placed.zones
        placed.take_nodes(zones, away, weights)
        if any(before.get(node, zone) != zone for node, zone in placed.zones.items()):
            self._unjudged = set(placed.nodes_of)

    def _exchange(self, exchange: ReplicaSwap) -> None:
        """Move the replicas that did not move yet."""
        placed = self._placed
        for task, giver, taker in exchange.moves():
            nodes = placed.nodes_of[task]
            if giver not in nodes or taker not in placed.tasks_of:
                continue
            if taker not in nodes:
                placed.give(task, taker)
            if len(nodes) > self._copies:
                placed.take(task, giver)

    def _pass_role(self, exchange: ReplicaSwap) -> None:
        placed, task = self._placed, exchange.given
        if placed.active[task] == exchange.giver and exchange.taker in placed.nodes_of[task] - placed.away:
            placed.pass_role(task, exchange.giver, exchange.taker)

    def _trim(self, tasks: Iterable[str]) -> None:
        """Drop surplus replicas of each task, from the node with most replicas, then with most standbys.

        A warm-up therefore stays while it makes the placement more even, and each call drops the same replica in its
        favour.
        """
        placed = self._placed
        # Roles that are not given yet: all others are in `active_at`.
        roles = Counter(
            role for task in tasks if (role := placed.standings[task].active or "") in placed.nodes_of[task]
        )
        for task in tasks:
            nodes, active = placed.nodes_of[task], placed.standings[task].active
            while len(surplus := nodes & placed.away) > self._copies:
                placed.withdraw(task, max(surplus))
            # If all the wanted replicas are away, one more stays, on a live node.
            while len(nodes) > self._copies + (len(surplus) == self._copies):
                _, _, _, _, dropped = max(
                    (
                        not placed.is_alone_elsewhere(task, node),
                        len(placed.tasks_of[node]),
                        len(placed.tasks_of[node]) - len(placed.active_at[node]) - roles[node],
                        -placed.worth(task, node),
                        node,
                    )
                    for node in nodes - surplus
                )
                placed.take(task, dropped)
                roles[dropped] -= dropped == active

    def _fill(self, tasks: Iterable[str]) -> None:
        """Place missing replicas, each at the node with fewest; every task gets at least one live node."""
        placed = self._placed
        order = [(len(held), placed.ranks[node]) for node, held in placed.tasks_of.items()]
        heapq.heapify(order)
        for task in tasks:
            nodes = placed.nodes_of[task]
            while len(lives := nodes - placed.away) < len(placed.tasks_of) and (not lives or len(nodes) < self._copies):
                node = self._pop_least(order, task)
                placed.give(task, node)
                heapq.heappush(order, (len(placed.tasks_of[node]), placed.ranks[node]))

    def _level_replicas(self) -> None:
        """Move replicas from the node with most to that with fewest, until these differ by one."""
        placed = self._placed
        while placed.tasks_of:
            most = max(placed.tasks_of, key=lambda node: len(placed.tasks_of[node]))
            least = min(placed.tasks_of, key=lambda node: len(placed.tasks_of[node]))
            if len(placed.tasks_of[most]) - len(placed.tasks_of[least]) < 2:
                return
            # First planned replicas, which no node has yet: moving them is free. Then the one that is cheapest to lose.
            if self._pass_on_new(most, len(placed.tasks_of[most]) - 2):
                continue
            task = self._cheapest(placed.tasks_of[most] - placed.tasks_of[least], most, least)
            placed.move(task, most, least)

    def _choose_actives(self, tasks: Iterable[str]) -> None:
        """Keep actives that can stay; else choose caught-up nodes with few actives and other nodes as standbys.

        Other tasks lost their active when their replica moved.
        """
        placed = self._placed
        for task in tasks:
            active = placed.standings[task].active
            if active is not None and active in placed.nodes_of[task]:
                placed.set_active(task, active)
        unassigned = sorted(placed.touched - placed.active.keys())
        # How often the second node stands by for the first: spread, so that a death moves load to many nodes.
        backed: Counter[tuple[str, str]] = Counter()
        for task in unassigned:
            nodes, ready = placed.nodes_of[task] - placed.away, placed.standings[task].ready
            _, _, _, _, (_, _, node) = min(
                (
                    each not in ready,
                    len(placed.active_at[each]),
                    placed.weights.rank_by_reads(each),
                    sum(backed[each, other] for other in nodes),
                    placed.ranks[each],
                )
                for each in nodes
            )
            placed.set_active(task, node)
            backed.update((node, other) for other in nodes if other != node)

    def _level_actives(self) -> None:
        """Swap roles along paths of tasks, from nodes with many actives to nodes with few, until they differ by one.

        A path may pass through other nodes, because its two ends need not share a task. Each node in between takes one
        role and gives one, so that only the ends change their numbers.
        """
        placed = self._placed
        # If a search finds no path, no role can leave the nodes that it reached, and no later path enters them: it
        # would end there, at a node with fewer actives. So those nodes are not searched from again.
        stuck: set[str] = set()
        while True:
            fewest = min(map(len, placed.active_at.values()), default=0)
            free = (node for node in placed.active_at if node not in stuck)
            node = max(free, key=lambda node: len(placed.active_at[node]), default=None)
            if node is None or len(placed.active_at[node]) - fewest < 2:
                return
            stuck |= self._pass_on(node, partial(self._has_few_actives, len(placed.active_at[node]) - 2))

    def _has_few_actives(self, most: int, node: str) -> bool:
        return len(self._placed.active_at[node]) <= most

    def _spread_zones(self) -> None:
        """Exchange standbys until no task has all its replicas in one zone, if the zones have enough nodes."""
        placed = self._placed
        unjudged, self._unjudged = self._unjudged | placed.touched, set()
        self._crowded = {task for task in self._crowded | unjudged if placed.is_crowded(task)}
        if not (self._crowded and placed.has_zones and self._copies > 1):
            return
        crowded = {task: zone for task in placed.nodes_of if (zone := self._crowded_in(task)) is not None}
        for zone in sorted(set(crowded.values())):
            # Partners for an exchange, crowded tasks of other zones last, so that they are taken first: both profit.
            others = [task for task in placed.nodes_of if len(self._outside(task, zone)) > 1]
            others.sort(key=lambda task: (task not in crowded, task), reverse=True)
            for task in [each for each, where in crowded.items() if where == zone]:
                if self._crowded_in(task) is not None and not self._exchange_standbys(task, zone, others):
                    self._hand_over(task, zone)

    def _exchange_standbys(self, task: str, zone: str, others: list[str]) -> bool:
        """Exchange a standby with the last of `others` that still has two replicas outside the zone. Of a task moves
        the replica with the least loss, preferably to a node that has part of it.
        """
        placed = self._placed
        while others:
            other = others[-1]
            outside = self._outside(other, zone)
            mine = self._standbys_of(task) - placed.nodes_of[other]
            theirs = (self._standbys_of(other) & outside) - placed.nodes_of[task]
            if len(outside) > 1 and mine and theirs:
                giver = min(mine, key=lambda node: (placed.worth(task, node) - placed.worth(other, node), node))
                taker = min(theirs, key=lambda node: (placed.worth(other, node) - placed.worth(task, node), node))
                placed.move(task, giver, taker)
                placed.move(other, taker, giver)
                return True
            others.pop()
        return False

    def _hand_over(self, task: str, zone: str) -> None:
        """Move a standby to a node of another zone with fewer replicas and fewer standbys."""
        placed = self._placed
        pairs = [
            (placed.worth(task, giver) - placed.worth(task, taker), giver, taker)
            for giver in self._standbys_of(task)
            for taker in placed.zones
            if placed.zones[taker] != zone
            and len(placed.tasks_of[taker]) < len(placed.tasks_of[giver])
            and placed.standbys_at(taker) < placed.standbys_at(giver)
        ]
        if pairs:
            _, giver, taker = min(pairs)
            placed.move(task, giver, taker)

    def _crowded_in(self, task: str) -> str | None:
        """Return the zone of all replicas of a crowded task; None for other tasks."""
        placed = self._placed
        return placed.zones[min(placed.nodes_of[task])] if placed.is_crowded(task) else None

    def _outside(self, task: str, zone: str) -> set[str]:
        return {node for node in self._placed.nodes_of[task] if self._placed.zones[node] != zone}

    def _standbys_of(self, task: str) -> set[str]:
        return self._placed.nodes_of[task] - {self._placed.active[task]}

    def _level_a_standby(self) -> bool:
        """Take a standby from a node with many, by a swap of roles, else by moving a replica. Return False when no such
        change keeps replicas and actives even.
        """
        placed = self._placed
        standbys = {node: placed.standbys_at(node) for node in placed.tasks_of}
        fewest = min(standbys.values(), default=0)
        many = sorted((node for node in standbys if standbys[node] >= fewest + 2), key=lambda node: -standbys[node])
        for most in many:
            few = {node for node in standbys if standbys[node] <= standbys[most] - 2}
            # By roles: a node with few standbys gives an active role to `most`, and is a standby for that task then.
            if any(
                len(placed.active_at[node]) > len(placed.active_at[most]) and not self._pass_on(node, most.__eq__)
                for node in sorted(few)
            ):
                return True
            # By a replica: only to a node with fewer replicas, so that these stay even.
            for least in sorted(few, key=lambda node: standbys[node]):
                movable = placed.tasks_of[most] - placed.active_at[most] - placed.tasks_of[least]
                if movable and len(placed.tasks_of[least]) < len(placed.tasks_of[most]):
                    task = self._cheapest(movable, most, least)
                    placed.move(task, most, least)
                    return True
        return False

    def _pass_on(self, start: str, is_end: Callable[[str], bool]) -> Set[str]:
        """Move an active role from `start` to an end; each node between takes one role and gives one.

        Return the nodes that can be reached if there is no end among them; else nothing.
        """
        placed = self._placed
        steps, reached = find_path(
            start, is_end, placed.active_at.__getitem__, lambda task: placed.nodes_of[task] - placed.away
        )
        for giver, task, taker in steps:
            placed.pass_role(task, giver, taker)
        return reached

    def _pass_on_new(self, start: str, most: int) -> bool:
        """Move planned replicas, which no node has yet, along a path to a node with at most `most` replicas."""
        placed = self._placed
        steps, _ = find_path(
            start,
            lambda node: len(placed.tasks_of[node]) <= most,
            lambda node: {task for task in placed.tasks_of[node] if node not in placed.standings[task].everyone},
            lambda task: placed.tasks_of.keys() - placed.nodes_of[task],
        )
        for giver, task, taker in steps:
            placed.move(task, giver, taker)
        return bool(steps)

    def _pop_least(self, order: list[tuple[int, Rank]], task: str) -> str:
        """Pop the node with fewest replicas among those without the task.

        Of equal nodes, prefer another zone, then fewest tasks in common with the other holders, so that the work of a
        node that dies is spread over all.
        """
        placed = self._placed
        passed: list[tuple[int, Rank]] = []  # popped because they have the task; pushed back below
        equal: list[tuple[int, Rank]] = []
        holders = placed.nodes_of[task]
        while order and len(equal) < MAX_TRIED and (not equal or order[0][0] == equal[0][0]):
            entry = heapq.heappop(order)
            (passed if entry[1].node in holders else equal).append(entry)
        assert equal, f"no node is left for a replica of {task}"
        preferred = ((placed.in_its_zone(task, node), placed.in_common(task, node)) for _, (_, _, node) in equal)
        _, chosen = min(zip(preferred, equal, strict=True))
        for entry in passed + equal:
            if entry != chosen:
                heapq.heappush(order, entry)
        return chosen[1].node

    def _cheapest(self, tasks: Iterable[str], giver: str, taker: str) -> str:
        """Return the replica with the least loss at `giver`; of equal ones, the one with its task in most zones, then
        the one that makes the loads most even.
        """
        placed = self._placed
        half = (placed.load_bytes(giver) - placed.load_bytes(taker)) / 2
        *_, task = min(
            (
                placed.worth(task, giver),
                placed.in_its_zone(task, taker) - placed.in_its_zone(task, giver),
                abs(placed.weights.bytes_of(task) - half),
                task,
            )
            for task in tasks
        )
        return task
