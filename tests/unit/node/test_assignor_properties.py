"""The assignor's promises, over any sequence of joins, crashes, restarts, drains and restores.

A small cluster is played: nodes take up what they are given, restore it at some time or never, and lose all when they
die. After each call of the assignor every promise about one step is checked; in the end, with everything restored, that
it comes to rest, balanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from understudy_node.cluster.assignor import Member, Replica, assign
from understudy_shared.messages import AssignedTask

END = 100
"""The version of whoever is in step."""

LAG = 10
"""Behind by more is not caught up."""

NODES = [f"n{number}" for number in range(8)]

WHICH = st.integers(0, 7)
"""Picks a node, modulo those that live."""


class Cluster:
    """Nodes that live, what each has of which task, and the assignment they follow."""

    def __init__(self, tasks: int, *, standbys: int = 1, warmups: int = 2, zones: int = 1) -> None:
        self.tasks = [f"{number % 2}_{number // 2}" for number in range(tasks)]
        self.standbys = standbys
        self.warmups = warmups
        self.zones = zones
        self.members: dict[str, Member] = {}
        self.data: dict[str, dict[str, int | None]] = {}
        self.assignment: dict[str, AssignedTask] = {}

    def join(self, node: str) -> None:
        self.members[node] = Member(node, f"z{NODES.index(node) % self.zones}")
        self.data[node] = {}

    def die(self, node: str) -> None:
        del self.members[node], self.data[node]

    def drain(self, node: str, draining: bool = True) -> None:
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
        return assign(
            list(self.members.values()),
            self.tasks,
            self.assignment,
            self.held(),
            num_standby_replicas=self.standbys,
            max_warmup_replicas=self.warmups,
        )

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
        staying = [member for member in self.members.values() if not member.draining] or self.members
        return min(1 + self.standbys, len(staying))

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
        assert len(set(holders)) == len(holders), "two replicas on one node"
        assert set(holders) <= cluster.members.keys(), "a replica on a node that does not live"
        assert assigned.active is not None, "no active although a node lives"
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
        assert len(ready & set(holders)) >= min(cluster.copies, len(ready & had)), "left before it was replaced"
        if not all_drain:
            given = {node for node in set(holders) - had if cluster.data[node].get(task) is None}
            assert not any(cluster.members[node].draining for node in given), "a draining node was given something"
        extra += min(len(assigned.warmups), max(0, len(holders) - cluster.copies))
    assert extra <= cluster.warmups


def check_rest(cluster: Cluster) -> None:
    """Every promise about where it comes to rest."""
    staying = {node for node, member in cluster.members.items() if not member.draining} or cluster.members.keys()
    actives, standbys = Counter(dict.fromkeys(staying, 0)), Counter(dict.fromkeys(staying, 0))
    for assigned in cluster.assignment.values():
        assert not assigned.warmups
        assert len(assigned.holders) == cluster.copies
        assert set(assigned.holders) <= staying
        actives[str(assigned.active)] += 1
        standbys.update(assigned.standbys)
    assert spread(actives.values()) <= 1
    assert spread(standbys.values()) <= 1
    assert spread(actives[node] + standbys[node] for node in staying) <= 1


def spread(counts: Iterable[int]) -> int:
    told = list(counts)
    return max(told, default=0) - min(told, default=0)


class AnySequence(RuleBasedStateMachine):
    """Whatever happens, each step keeps its promises, and after it all the cluster comes to rest."""

    cluster: Cluster

    @initialize(
        tasks=st.integers(0, 40),
        standbys=st.integers(0, 3),
        warmups=st.integers(1, 4),
        zones=st.integers(1, 3),
        nodes=st.integers(0, 8),
    )
    def begin(self, tasks: int, standbys: int, warmups: int, zones: int, nodes: int) -> None:
        self.cluster = Cluster(tasks, standbys=standbys, warmups=warmups, zones=zones)
        for node in NODES[:nodes]:
            self.cluster.join(node)
        self.cluster.turn()

    def pick(self, which: int) -> str:
        """One of those that live."""
        return sorted(self.cluster.members)[which % len(self.cluster.members)]

    @precondition(lambda self: len(self.cluster.members) < len(NODES))
    @rule()
    def join(self) -> None:
        self.cluster.join(next(node for node in NODES if node not in self.cluster.members))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def die(self, which: int) -> None:
        self.cluster.die(self.pick(which))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def restart_unnoticed(self, which: int) -> None:
        node = self.pick(which)
        self.cluster.data[node] = dict.fromkeys(self.cluster.data[node])

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH, draining=st.booleans())
    def drain(self, which: int, draining: bool) -> None:
        self.cluster.drain(self.pick(which), draining)

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH, version=st.integers(END - 2 * LAG, END))
    def restore(self, which: int, version: int) -> None:
        self.cluster.restore(self.pick(which), version)

    @rule(seed=st.randoms(use_true_random=False))
    def restore_some(self, seed: Random) -> None:
        for replicas in self.cluster.data.values():
            for task in replicas:
                if seed.random() < 0.4:
                    replicas[task] = END

    @rule()
    def keep_what_was_taken_away(self) -> None:
        """Nodes give up slowly: what is told may be what the assignment before gave."""
        for task in self.cluster.tasks[::3]:
            for node in list(self.cluster.members)[:2]:
                self.cluster.data[node].setdefault(task, END)

    @rule()
    def turn(self) -> None:
        self.cluster.turn()

    @rule()
    def come_to_rest(self) -> None:
        if self.cluster.members:
            self.cluster.settle()
            check_rest(self.cluster)

    def teardown(self) -> None:
        if hasattr(self, "cluster") and self.cluster.members:
            self.cluster.settle()
            check_rest(self.cluster)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=50, stateful_step_count=40)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A cluster at rest, with all that was asked for restored."""
    cluster = Cluster(draw(st.integers(0, 40)), standbys=draw(st.integers(0, 3)), warmups=draw(st.integers(1, 4)))
    for node in NODES[: draw(st.integers(1, 7))]:
        cluster.join(node)
    cluster.settle()
    return cluster


@given(cluster=clusters(), which=st.integers(0, 7))
def test_when_a_node_leaves_little_more_than_its_replicas_is_restored(cluster: Cluster, which: int) -> None:
    before, copies = cluster.replicas(), cluster.copies
    gone = sorted(cluster.members)[which % len(cluster.members)]
    lost = sum(node == gone for _, node in before)
    cluster.die(gone)
    if cluster.members:
        cluster.settle()
        wanted = lost if cluster.copies == copies else 0
        assert len(cluster.replicas() - before) <= wanted + len(cluster.members)


@given(cluster=clusters())
def test_when_a_node_joins_little_more_than_its_share_is_moved(cluster: Cluster) -> None:
    before = cluster.replicas()
    joined = NODES[len(cluster.members)]
    cluster.join(joined)
    cluster.settle()
    share = -(-len(cluster.tasks) * cluster.copies // len(cluster.members))
    assert len(cluster.replicas() - before) <= share + 1


@given(cluster=clusters(), gone=st.integers(0, 7), seed=st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_told_changes_nothing(cluster: Cluster, gone: int, seed: Random) -> None:
    cluster.die(sorted(cluster.members)[gone % len(cluster.members)])
    cluster.join("n7")
    found, told = cluster.next(), cluster.held()
    members, tasks = list(cluster.members.values()), list(cluster.tasks)
    seed.shuffle(members)
    seed.shuffle(tasks)
    for replicas in told.values():
        seed.shuffle(replicas)
    again = assign(
        members,
        tasks,
        dict(reversed(cluster.assignment.items())),
        told,
        num_standby_replicas=cluster.standbys,
        max_warmup_replicas=cluster.warmups,
    )
    assert again == found


@given(cluster=clusters())
def test_at_rest_the_same_assignment_comes_out_again(cluster: Cluster) -> None:
    assert cluster.next() == cluster.assignment
