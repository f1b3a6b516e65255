"""The assignor's promises, over any sequence of joins, leaves, deaths, restarts within the delay and after it, drains.

A small cluster is played: nodes take up what they are given, restore it at some time or never, and lose all when they
die. After each call of the assignor every promise about one step is checked; in the end, with everything restored and
nobody away, that it comes to rest, balanced.
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
        self.away: dict[str, Member] = {}
        self.data: dict[str, dict[str, int | None]] = {}
        self.assignment: dict[str, AssignedTask] = {}

    def join(self, node: str) -> None:
        self.members[node] = Member(node, self.zone(node))
        self.data[node] = {}

    def zone(self, node: str) -> str:
        return f"z{NODES.index(node) % self.zones}"

    def die(self, node: str) -> None:
        """Gone for good: drained, or the delay is 0."""
        del self.members[node], self.data[node]

    def go_away(self, node: str) -> None:
        """It died, and the delay runs."""
        self.away[node] = self.members[node]
        self.die(node)

    def come_back(self, node: str) -> None:
        """Within the delay; it finds what it is to have, and nothing of that is open yet."""
        self.members[node] = self.away.pop(node)
        self.data[node] = {task: None for task, assigned in self.assignment.items() if node in assigned.holders}

    def wait_no_longer(self, node: str) -> None:
        """The delay is over."""
        del self.away[node]

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
            away=list(self.away.values()),
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
        return min(1 + self.standbys, len(self.staying) + len(self.away))

    @property
    def staying(self) -> set[str]:
        """Who may be given replicas."""
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
    """Every promise about where it comes to rest. While somebody is away, standbys wait for it to be evened out."""
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
        return picked(self.cluster.members, which)

    @precondition(lambda self: len(self.cluster.members) + len(self.cluster.away) < len(NODES))
    @rule()
    def join(self) -> None:
        known = self.cluster.members.keys() | self.cluster.away.keys()
        self.cluster.join(next(node for node in NODES if node not in known))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def go_away(self, which: int) -> None:
        node = self.pick(which)
        if self.cluster.members[node].draining:
            self.cluster.die(node)
        else:
            self.cluster.go_away(node)

    @precondition(lambda self: self.cluster.away)
    @rule(which=WHICH)
    def come_back(self, which: int) -> None:
        self.cluster.come_back(picked(self.cluster.away, which))

    @precondition(lambda self: self.cluster.away)
    @rule(which=WHICH)
    def wait_no_longer(self, which: int) -> None:
        self.cluster.wait_no_longer(picked(self.cluster.away, which))

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
            for node in list(self.cluster.away):
                self.cluster.wait_no_longer(node)
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


@st.composite
def spread_clusters(draw: st.DrawFn) -> Cluster:
    """A cluster in several zones, at rest."""
    cluster = Cluster(draw(st.integers(1, 40)), standbys=draw(st.integers(1, 3)), zones=draw(st.integers(2, 4)))
    for node in NODES[: draw(st.integers(2, 7))]:
        cluster.join(node)
    cluster.settle()
    return cluster


@given(cluster=spread_clusters())
def test_with_enough_nodes_in_each_zone_no_task_has_all_its_replicas_in_one(cluster: Cluster) -> None:
    check_rest(cluster)
    assert not cluster.crowded() or not can_be_spread(cluster, cluster.members)


@given(tasks=st.integers(1, 60), each=st.integers(1, 4), standbys=st.integers(1, 3))
def test_zones_of_as_many_nodes_share_every_task(tasks: int, each: int, standbys: int) -> None:
    cluster = Cluster(tasks, standbys=standbys, zones=2)
    for node in NODES[: 2 * each]:
        cluster.join(node)
    cluster.settle()
    check_rest(cluster)
    assert not cluster.crowded()


@given(cluster=clusters(), which=WHICH)
def test_a_restart_within_the_delay_moves_no_replica(cluster: Cluster, which: int) -> None:
    before, copies = cluster.replicas(), cluster.copies
    gone = picked(cluster.members, which)
    cluster.go_away(gone)
    if not cluster.members:
        return
    cluster.settle()
    alone = {task for task, node in before if node == gone} if copies == 1 else set()
    assert {place for place in cluster.replicas() if place[0] not in alone} == {
        place for place in before if place[0] not in alone
    }
    cluster.come_back(gone)
    found = cluster.next()
    assert copies == 1 or {(task, node) for task, each in found.items() for node in each.holders} == before
    assert all(each.active != gone or copies == 1 for each in found.values()), "a role before it is caught up"
    cluster.settle()
    assert cluster.replicas() == before or copies == 1
    check_rest(cluster)


@given(cluster=clusters(), which=WHICH)
def test_when_the_delay_is_over_it_is_as_if_the_node_had_died_then(cluster: Cluster, which: int) -> None:
    before, copies = cluster.replicas(), cluster.copies
    gone = picked(cluster.members, which)
    lost = sum(node == gone for _, node in before)
    cluster.go_away(gone)
    if not cluster.members:
        return
    cluster.settle()
    cluster.wait_no_longer(gone)
    cluster.settle()
    check_rest(cluster)
    wanted = lost if cluster.copies == copies else 0
    assert len(cluster.replicas() - before) <= wanted + len(cluster.members)


@given(cluster=clusters(), order=st.permutations(range(7)))
def test_a_rolling_restart_moves_no_replica(cluster: Cluster, order: list[int]) -> None:
    if cluster.copies == 1:
        return
    before = cluster.replicas()
    for number in order:
        if NODES[number] in cluster.members:
            cluster.go_away(NODES[number])
            cluster.settle()
            cluster.come_back(NODES[number])
            cluster.settle()
    assert cluster.replicas() == before
