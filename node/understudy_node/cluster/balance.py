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
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Set
from functools import partial
from hashlib import blake2b

from understudy_node.cluster.role_paths import find_path
from understudy_node.cluster.task_replicas import Target, TaskReplicas
from understudy_node.cluster.zones import spread

Rank = tuple[bytes, str]
"""The place of a node in an application's order of nodes."""

MAX_TRIED = 32
"""Number of least-loaded nodes considered for a replica: the preference for another zone must not search all nodes."""


class Balance:
    """The placement of all tasks, kept from one search to the next.

    A search starts from the present replicas. A task whose target is what it has starts where the last search ended,
    so only the other tasks are put back to what they have; then the phases run. The result is that of a search from
    the beginning, and what it costs follows from the tasks that are put back or move.

    `_trim` and `_fill` give every task its number of replicas. The levelling phases move one replica or role at a time
    from a node to one that has at least two fewer: each move lowers the sum of the squared loads, so every loop ends.
    Each phase keeps even what the earlier ones made even. Ties are broken by the order of the tasks and by one of the
    nodes that an application has for itself, so the result is deterministic, and the odd replicas of many applications
    lie at different nodes.
    """

    def __init__(self, tasks: Iterable[str], copies: int, application_id: str = "") -> None:
        """Take the tasks. A task has `copies` replicas, fewer if there are fewer nodes, one more if all are away.

        Without `application_id` nodes have the order of their ids.
        """
        self._copies = copies
        self._application_id = application_id
        self._ranks: dict[str, Rank] = {}
        self._nodes_of: dict[str, set[str]] = {task: set() for task in sorted(tasks)}
        self._active: dict[str, str] = {}
        self._standings: dict[str, TaskReplicas] = {}
        self._zones: dict[str, str] = {}
        self._has_zones = False
        self._away: Set[str] = frozenset()
        self._tasks_of: dict[str, set[str]] = {}
        self._active_at: dict[str, set[str]] = {}
        self._shared: Counter[tuple[str, str]] = Counter()
        """Number of tasks that two nodes have in common."""
        self._touched: set[str] = set()
        """The tasks whose nodes or active one changed in this search."""
        self._unjudged = set(self._nodes_of)
        """The tasks of which it is not known whether all their replicas are in one zone."""
        self._crowded: set[str] = set()

    def leaving(self, zones: Container[str]) -> set[str]:
        """Return the tasks of the nodes that may no longer have replicas: they must be put back."""
        return {task for node, tasks in self._tasks_of.items() if node not in zones for task in tasks}

    def search(
        self, zones: Mapping[str, str], replicas_by_task: Mapping[str, TaskReplicas], *, away: Mapping[str, str]
    ) -> dict[str, Target]:
        """Return the targets of the tasks that are put back to `replicas_by_task`, and of all that the search moves.

        `zones` are the nodes that may have replicas, `away` those that only keep theirs. The other tasks must have what
        they had at the end of the last search, and as many replicas as are wanted.
        """
        tasks = sorted(replicas_by_task)
        self._touched = set(tasks)
        for task in tasks:
            self._put_away(task)
        self._place(zones, away)
        for task in tasks:
            self._put_back(task, replicas_by_task[task])
        self._trim(tasks)
        self._fill(tasks)
        self._level_replicas()
        self._choose_actives(tasks)
        self._level_actives()
        if not away:
            self._level_standbys()
            self._spread_zones()
        self._unjudged |= self._touched
        return {task: Target(frozenset(self._nodes_of[task]), self._active[task]) for task in self._touched}

    def _put_away(self, task: str) -> None:
        """Take all nodes from a task."""
        if task in self._active:
            self._active_at[self._active.pop(task)].discard(task)
        nodes = self._nodes_of[task]
        for node in nodes & self._tasks_of.keys():
            self._take(task, node)
        nodes.clear()

    def _place(self, zones: Mapping[str, str], away: Mapping[str, str]) -> None:
        """Take the nodes of this search. No node that goes has a task left."""
        before, self._zones = self._zones, {**away, **zones}
        self._has_zones = len(set(self._zones.values())) > 1
        if any(before.get(node, zone) != zone for node, zone in self._zones.items()):
            self._unjudged = set(self._nodes_of)
        self._away = frozenset(away)
        if zones.keys() != self._tasks_of.keys():
            self._ranks = {node: self._rank(node) for node in zones}
            in_order = sorted(zones, key=self._ranks.__getitem__)
            self._tasks_of = {node: self._tasks_of.get(node, set()) for node in in_order}
            self._active_at = {node: self._active_at.get(node, set()) for node in self._tasks_of}

    def _rank(self, node: str) -> Rank:
        if not self._application_id:
            return b"", node
        return blake2b(f"{self._application_id} {node}".encode(), digest_size=8).digest(), node

    def _put_back(self, task: str, replicas: TaskReplicas) -> None:
        """Give a task the nodes that have its replicas now."""
        self._standings[task] = replicas
        self._nodes_of[task].update(replicas.away)
        for node in replicas.everyone & self._tasks_of.keys():
            self._give(task, node)

    def _trim(self, tasks: Iterable[str]) -> None:
        """Drop surplus replicas of each task, from the node with most replicas, then with most standbys.

        A warm-up therefore stays while it makes the placement more even, and each call drops the same replica in its
        favour.
        """
        # Roles that are not given yet: all others are in `_active_at`.
        roles = Counter(role for task in tasks if (role := self._standings[task].active or "") in self._nodes_of[task])
        for task in tasks:
            nodes, active = self._nodes_of[task], self._standings[task].active
            while len(surplus := nodes & self._away) > self._copies:
                self._withdraw(task, max(surplus))
            # If all the wanted replicas are away, one more stays, on a live node.
            while len(nodes) > self._copies + (len(surplus) == self._copies):
                _, _, _, _, dropped = max(
                    (
                        not self._is_alone_elsewhere(task, node),
                        len(self._tasks_of[node]),
                        len(self._tasks_of[node]) - len(self._active_at[node]) - roles[node],
                        -self._worth(task, node),
                        node,
                    )
                    for node in nodes - surplus
                )
                self._take(task, dropped)
                roles[dropped] -= dropped == active

    def _fill(self, tasks: Iterable[str]) -> None:
        """Place missing replicas, each at the node with fewest; every task gets at least one live node."""
        order = [(len(held), self._ranks[node]) for node, held in self._tasks_of.items()]
        heapq.heapify(order)
        for task in tasks:
            nodes = self._nodes_of[task]
            while len(lives := nodes - self._away) < len(self._tasks_of) and (not lives or len(nodes) < self._copies):
                node = self._pop_least(order, task)
                self._give(task, node)
                heapq.heappush(order, (len(self._tasks_of[node]), self._ranks[node]))

    def _level_replicas(self) -> None:
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

    def _choose_actives(self, tasks: Iterable[str]) -> None:
        """Keep actives that can stay; else choose caught-up nodes with few actives and other nodes as standbys."""
        unassigned = []
        for task in tasks:
            active = self._standings[task].active
            if active is not None and active in self._nodes_of[task]:
                self._set_active(task, active)
            else:
                unassigned.append(task)
        # How often the second node stands by for the first: spread, so that a death moves load to many nodes.
        backed: Counter[tuple[str, str]] = Counter()
        for task in unassigned:
            nodes, ready = self._nodes_of[task] - self._away, self._standings[task].ready
            _, _, _, (_, node) = min(
                (
                    each not in ready,
                    len(self._active_at[each]),
                    sum(backed[each, other] for other in nodes),
                    self._ranks[each],
                )
                for each in nodes
            )
            self._set_active(task, node)
            backed.update((node, other) for other in nodes if other != node)

    def _level_actives(self) -> None:
        """Swap roles along paths of tasks, from nodes with many actives to nodes with few, until they differ by one.

        A node with many actives may share no task with one that has few: the path goes through nodes between them,
        each of which takes one role and gives one, so that only its ends change their numbers.
        """
        # If a search finds no path, no role can leave the nodes that it reached, and no later path enters them: it
        # would end there, at a node with fewer actives. So those nodes are not searched from again.
        stuck: set[str] = set()
        while True:
            fewest = min(map(len, self._active_at.values()), default=0)
            free = (node for node in self._active_at if node not in stuck)
            node = max(free, key=lambda node: len(self._active_at[node]), default=None)
            if node is None or len(self._active_at[node]) - fewest < 2:
                return
            stuck |= self._pass_on(node, partial(self._has_few_actives, len(self._active_at[node]) - 2))

    def _has_few_actives(self, most: int, node: str) -> bool:
        return len(self._active_at[node]) <= most

    def _level_standbys(self) -> None:
        """Even out standbys, keeping replicas and actives even: by a swap of roles, else by moving a replica."""
        while self._level_a_standby():
            pass

    def _spread_zones(self) -> None:
        """Exchange standbys until no task has all its replicas in one zone, as far as the nodes of the zones allow."""
        unjudged, self._unjudged = self._unjudged | self._touched, set()
        self._crowded = {task for task in self._crowded | unjudged if self._is_crowded(task)}
        if self._crowded and self._has_zones and self._copies > 1:
            for task, giver, taker in spread(self._zones, self._nodes_of, self._active, self._worth):
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
                len(self._active_at[node]) > len(self._active_at[most]) and not self._pass_on(node, most.__eq__)
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

    def _pass_on(self, start: str, is_end: Callable[[str], bool]) -> Set[str]:
        """Move an active role from `start` to an end; each node between takes one role and gives one.

        Return the nodes that can be reached if there is no end among them; else nothing.
        """
        found = find_path(start, is_end, self._active_at.__getitem__, lambda task: self._nodes_of[task] - self._away)
        for giver, task, taker in found.steps:
            self._active_at[giver].remove(task)
            self._set_active(task, taker)
        return frozenset() if found.steps else frozenset(found.reached)

    def _pass_on_new(self, start: str, most: int) -> bool:
        """Move planned replicas, which no node has yet, along a path to a node with at most `most` replicas."""
        found = find_path(
            start,
            lambda node: len(self._tasks_of[node]) <= most,
            lambda node: {task for task in self._tasks_of[node] if node not in self._standings[task].everyone},
            lambda task: self._tasks_of.keys() - self._nodes_of[task],
        )
        for giver, task, taker in found.steps:
            self._take(task, giver)
            self._give(task, taker)
        return bool(found.steps)

    def _pop_least(self, order: list[tuple[int, Rank]], task: str) -> str:
        """Pop the node with fewest replicas among those without the task.

        Of equal nodes, prefer another zone, then fewest tasks in common with the other holders, so that the work of a
        node that dies is spread over all.
        """
        passed: list[tuple[int, Rank]] = []  # popped because they have the task; pushed back below
        equal: list[tuple[int, Rank]] = []
        holders = self._nodes_of[task]
        while order and len(equal) < MAX_TRIED and (not equal or order[0][0] == equal[0][0]):
            entry = heapq.heappop(order)
            (passed if entry[1][1] in holders else equal).append(entry)
        assert equal, f"no node is left for a replica of {task}"
        preferred = ((self._in_its_zone(task, node), self._in_common(task, node)) for _, (_, node) in equal)
        _, chosen = min(zip(preferred, equal, strict=True))
        for entry in passed + equal:
            if entry != chosen:
                heapq.heappush(order, entry)
        return chosen[1][1]

    def _in_common(self, task: str, node: str) -> int:
        """Count the tasks that a node shares with the holders of this one."""
        return sum(self._shared[node, each] for each in self._nodes_of[task])

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
        return sum(each != node and self._zones[each] == zone for each in self._nodes_of[task])

    def _is_alone_elsewhere(self, task: str, node: str) -> bool:
        """Whether all other replicas of the task are in one zone, and the node is in another."""
        if not self._has_zones:
            return False
        others = {self._zones[each] for each in self._nodes_of[task] if each != node}
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

    def _is_crowded(self, task: str) -> bool:
        """Whether a task has all its replicas, two at least, in one zone."""
        nodes = self._nodes_of[task]
        return len(nodes) > 1 and len({self._zones[node] for node in nodes}) == 1

    def _give(self, task: str, node: str) -> None:
        self._touched.add(task)
        self._count_shared(task, node, 1)
        self._nodes_of[task].add(node)
        self._tasks_of[node].add(task)

    def _take(self, task: str, node: str) -> None:
        self._tasks_of[node].remove(task)
        self._withdraw(task, node)

    def _withdraw(self, task: str, node: str) -> None:
        self._touched.add(task)
        self._nodes_of[task].remove(node)
        self._count_shared(task, node, -1)

    def _count_shared(self, task: str, node: str, change: int) -> None:
        for other in self._nodes_of[task]:
            for pair in ((node, other), (other, node)):
                self._shared[pair] += change
                if not self._shared[pair]:
                    del self._shared[pair]

    def _set_active(self, task: str, node: str) -> None:
        self._touched.add(task)
        self._active[task] = node
        self._active_at[node].add(task)
