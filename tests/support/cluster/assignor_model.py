"""A small cluster that is played to the assignor, and what the assignor promises about each step and about rest.

Nodes take up what they are given, restore it at some time or never, and lose all when they die. After each call of the
assignor every promise about one step is checked, and that an assignor that was called before says what a new one says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from understudy_node.cluster.assignor import Assignor, Member, Replica
from understudy_node.cluster.weights import UNWEIGHED, Weighed, Weights, next_exchange
from understudy_shared.bus.messages import AssignedTask

END = 100
"""The version of a replica that is in step."""

LAG = 10
"""Behind by more is not caught up."""

NODES = [f"n{number}" for number in range(8)]

WHICH = st.integers(0, 7)
"""Picks a node, modulo those that live."""


_LOADS = st.dictionaries(st.sampled_from(NODES), st.integers(0, 1 << 40))

WEIGHTS = st.builds(
    Weights,
    operator_bytes=st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 1 << 40)),
    reads=st.floats(0, 1 << 20),
    others_bytes=_LOADS,
    others_reads=_LOADS,
)

APPLICATION = "orders"
"""Its nodes have another order than that of their ids."""


def assign(
    members: Sequence[Member],
    tasks: Sequence[str],
    previous: Mapping[str, AssignedTask],
    held: Mapping[str, Sequence[Replica]],
    *,
    num_standby_replicas: int,
    max_warmup_replicas: int,
    application_id: str = "",
    **more: Any,
) -> dict[str, AssignedTask]:
    """Return the next assignment by a new assignor."""
    assignor = Assignor(
        num_standby_replicas=num_standby_replicas,
        max_warmup_replicas=max_warmup_replicas,
        application_id=application_id,
    )
    return assignor.assign(members, tasks, previous, held, **more)


class Cluster:
    """Nodes that live, what each has of which task, and the assignment they follow."""

    def __init__(self, tasks: int, *, standbys: int = 1, warmups: int = 2, zones: int = 1) -> None:
        self.tasks = [f"{number % 2}_{number // 2}" for number in range(tasks)]
        self.standbys = standbys
        self.warmups = warmups
        self.zones = zones
        self.members: dict[str, Member] = {}
        self.away: dict[str, Member] = {}
        self.data: dict[str, dict[str, int | None]] = {}
        self.assignment: dict[str, AssignedTask] = {}
        self._limits: dict[str, Any] = {
            "num_standby_replicas": standbys,
            "max_warmup_replicas": warmups,
            "application_id": APPLICATION,
        }
        self.weighed = UNWEIGHED
        self._assignor = Assignor(**self._limits)
        self._reported: dict[str, set[tuple[str, bool, bool]]] = {}
        """Which members reported which kinds of replicas at the last call, by task."""

    def weigh(self, weights: Weights) -> None:
        """A look at the weights. An exchange in progress goes on."""
        self.weighed = Weighed(self.weighed.look + 1, weights, self.weighed.exchange)

    def begin_exchange(self) -> bool:
        """The assignment is at rest: whether there is something to exchange, which is in progress from now on."""
        found = None
        if not self.away and self.staying == self.members.keys():
            found = next_exchange(
                self.assignment, {node: self.zone(node) for node in self.members}, self.weighed.weights
            )
        self.weighed = self.weighed._replace(exchange=found)
        return found is not None

    def _end_exchange(self) -> None:
        self.weighed = self.weighed._replace(exchange=None)

    def join(self, node: str) -> None:
        self._end_exchange()
        self.members[node] = Member(node, self.zone(node))
        self.data[node] = {}

    def zone(self, node: str) -> str:
        return f"z{NODES.index(node) % self.zones}"

    def die(self, node: str) -> None:
        """Gone for good: drained, or the delay is 0."""
        self._end_exchange()
        del self.members[node], self.data[node]

    def go_away(self, node: str) -> None:
        """A member died, and the rebalance delay runs."""
        self.away[node] = self.members[node]
        self.die(node)

    def come_back(self, node: str) -> None:
        """Within the delay; it finds what it is to have, and nothing of that is open yet."""
        self._end_exchange()
        self.members[node] = self.away.pop(node)
        self.data[node] = {task: None for task, assigned in self.assignment.items() if node in assigned.holders}

    def wait_no_longer(self, node: str) -> None:
        """The delay is over."""
        self._end_exchange()
        del self.away[node]

    def drain(self, node: str, draining: bool = True) -> None:
        self._end_exchange()
        self.members[node] = Member(node, self.members[node].zone, draining)

    def restore(self, node: str, version: int = END) -> None:
        self.data[node] = dict.fromkeys(self.data[node], version)

    def held(self) -> dict[str, list[Replica]]:
        held: dict[str, list[Replica]] = {}
        for node, replicas in self.data.items():
            for task, version in replicas.items():
                replica = Replica(node, version is not None and version >= END - LAG, version)
                held.setdefault(task, []).append(replica)
        return held

    def ready(self, task: str) -> set[str]:
        return {replica.node_id for replica in self.held().get(task, []) if replica.caught_up}

    def next(self) -> dict[str, AssignedTask]:
        members, held, away = list(self.members.values()), self.held(), list(self.away.values())
        kinds = {
            task: {(each.node_id, each.caught_up, each.version is None) for each in found}
            for task, found in held.items()
        }
        changed = {task for task in self.tasks if kinds.get(task) != self._reported.get(task)}
        self._reported = kinds
        known: dict[str, Any] = {"away": away, "weighed": self.weighed}
        found = self._assignor.assign(members, self.tasks, self.assignment, held, changed=changed, **known)
        assert found == assign(members, self.tasks, self.assignment, held, **known, **self._limits)
        return found

    def turn(self) -> bool:
        """Assign, check the step, and let every node take it up; whether anything changed."""
        found = self.next()
        check_step(self, found)
        taken_up = {
            node: {task: replicas.get(task) for task, assigned in found.items() if node in assigned.holders}
            for node, replicas in self.data.items()
        }
        changed = found != self.assignment or taken_up != self.data
        self.assignment, self.data = found, taken_up
        return changed

    def settle(self) -> int:
        """Go on, everything being restored after each turn, until nothing changes; the turns that it took."""
        limit = 8 + 2 * len(self.tasks) * self.copies // self.warmups
        for turns in range(limit):
            for node in self.data:
                self.restore(node)
            if not self.turn():
                return turns
        pytest.fail(f"still moving after {limit} turns")

    @property
    def copies(self) -> int:
        return min(1 + self.standbys, len(self.staying) + len(self.away))

    @property
    def staying(self) -> set[str]:
        """The members that may be given replicas."""
        return {node for node, member in self.members.items() if not member.draining} or set(self.members)

    def living_copies(self, kept: int) -> int:
        """How many replicas of a task are to live, `kept` being on nodes that are away."""
        return max(1, min(self.copies - kept, len(self.staying)))

    def crowded(self) -> int:
        """Tasks with all their replicas, two at least, in one zone."""
        return sum(
            len(assigned.holders) > 1 and len(set(map(self.zone, assigned.holders))) == 1
            for assigned in self.assignment.values()
        )

    def replicas(self) -> set[tuple[str, str]]:
        return {(task, node) for task, assigned in self.assignment.items() for node in assigned.holders}


def settled(before: AssignedTask) -> set[str]:
    return {*before.standbys} | ({before.active} if before.active else set())


def check_step(cluster: Cluster, found: dict[str, AssignedTask]) -> None:
    """Every promise about one step: what was, what nodes hold, what is to be."""
    assert list(found) == cluster.tasks
    if not cluster.members:
        assert set(map(repr, found.values())) <= {repr(AssignedTask(active=None))}
        return
    all_drain = all(member.draining for member in cluster.members.values())
    extra = 0
    for task, assigned in found.items():
        before = cluster.assignment.get(task, AssignedTask(active=None))
        had = set(before.holders) & cluster.members.keys()
        ready, holders = cluster.ready(task), assigned.holders
        kept = set(holders) - cluster.members.keys()
        assert len(set(holders)) == len(holders), "two replicas on one node"
        assert kept <= settled(before) & cluster.away.keys(), "a place that nobody keeps on a node that does not live"
        assert kept <= set(assigned.standbys), "who is away is more than a standby"
        assert len(settled(before) & cluster.away.keys() - kept) <= max(
            0, len(settled(before) & cluster.away.keys()) - cluster.copies
        ), "a node that is away lost its place"
        assert assigned.active is not None, "no active although a node lives"
        assert assigned.active in cluster.members, "an active that does not live"
        assert assigned.active in ready or not ready, "an active that is not caught up while another replica is"
        if before.active in cluster.members and before.active != assigned.active:
            assert assigned.active in ready, "an active moved to a replica that is not caught up"
        staying = set(before.standbys) & ready & set(holders)
        if before.active not in cluster.members and staying:
            best = max(cluster.data[node][task] or 0 for node in staying)
            assert assigned.active in before.standbys, "a standby was passed over"
            assert cluster.data[assigned.active][task] == best, "not the most caught-up standby was promoted"
        if had:
            new = settled(assigned) - settled(before)
            promoted = {assigned.active} if not settled(before) & had else set()
            assert new <= ready | promoted, "a new replica counts before it is caught up"
        wanted = cluster.living_copies(len(kept))
        assert len(ready & set(holders)) >= min(wanted, len(ready & had)), "left before it was replaced"
        if not all_drain:
            given = {node for node in set(holders) - had - kept if cluster.data[node].get(task) is None}
            assert not any(cluster.members[node].draining for node in given), "a draining node was given something"
        extra += min(len(assigned.warmups), max(0, len(holders) - len(kept) - wanted))
    assert extra <= cluster.warmups


def check_rest(cluster: Cluster) -> None:
    """Every promise about the settled assignment. While a member is away, standbys wait for it before they even out."""
    staying = cluster.staying
    actives, standbys = Counter(dict.fromkeys(staying, 0)), Counter(dict.fromkeys(staying, 0))
    for assigned in cluster.assignment.values():
        lives = set(assigned.holders) - cluster.away.keys()
        kept = len(assigned.holders) - len(lives)
        assert not assigned.warmups
        assert lives <= staying
        assert len(lives) == cluster.living_copies(kept)
        actives[str(assigned.active)] += 1
        standbys.update(lives - {assigned.active})
    assert spread(actives[node] + standbys[node] for node in staying) <= 1
    if not cluster.away:
        assert spread(actives.values()) <= 1
        assert spread(standbys.values()) <= 1
        assert not cluster.crowded() or not can_be_spread(cluster, staying)


def can_be_spread(cluster: Cluster, nodes: Iterable[str]) -> bool:
    """Whether no zone has so many replicas that a task must be in it whole, whichever nodes have one more than others:
    its nodes at `ceil(tasks * copies / nodes)` each are at most `tasks * (copies - 1)`.
    """
    in_zone = Counter(map(cluster.zone, nodes))
    each = -(-len(cluster.tasks) * cluster.copies // in_zone.total())
    return all(count * each <= len(cluster.tasks) * (cluster.copies - 1) for count in in_zone.values())


def picked(nodes: Iterable[str], which: int) -> str:
    known = sorted(nodes)
    return known[which % len(known)]


def spread(counts: Iterable[int]) -> int:
    values = list(counts)
    return max(values, default=0) - min(values, default=0)
