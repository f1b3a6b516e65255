"""The assignor case by case, and its promises over any sequence of joins, leaves, deaths, restarts and drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.support.bus.documents import heartbeat
from tests.support.cluster.assignor_model import (
    APPLICATION,
    END,
    LAG,
    NODES,
    WEIGHTS,
    WHICH,
    Cluster,
    assign,
    can_be_spread,
    check_rest,
    picked,
)
from tests.support.cluster.placement_world import BEAT_MS, DELAY_MS, World, beat, turns_until_written

from understudy_node.cluster.assignor import Holdings, Member, Replica, members_of
from understudy_node.cluster.leader import Leadership
from understudy_node.cluster.weights import Weights
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Heartbeat, NodeEndpoint

A, B, C, D = (Member(node_id) for node_id in "abcd")
TASKS = [f"0_{partition}" for partition in range(4)]


def ready(*node_ids: str, version: int = 9) -> list[Replica]:
    return [Replica(node_id, True, version) for node_id in node_ids]


def behind(*node_ids: str, version: int | None = 1) -> list[Replica]:
    return [Replica(node_id, False, version) for node_id in node_ids]


def one(
    members: list[Member],
    before: AssignedTask,
    replicas: list[Replica],
    *,
    standbys: int = 1,
    away: Sequence[Member] = (),
) -> AssignedTask:
    """The next assignment of a single task, while `away` keep their places."""
    held = {"0_0": replicas}
    return assign(
        members, ["0_0"], {"0_0": before}, held, num_standby_replicas=standbys, max_warmup_replicas=2, away=away
    )["0_0"]


def task(active: str | None, standbys: str = "", warmups: str = "") -> AssignedTask:
    return AssignedTask(active=active, standbys=tuple(standbys), warmups=tuple(warmups))


@pytest.mark.parametrize("tasks", [1, 4])
def test_the_odd_replicas_of_many_applications_lie_at_different_nodes(tasks: int) -> None:
    actives: Counter[str | None] = Counter()
    replicas: Counter[str] = Counter()
    for number in range(300):
        found = assign(
            [A, B, C], TASKS[:tasks], {}, {}, num_standby_replicas=1, max_warmup_replicas=2, application_id=f"q{number}"
        )
        actives.update(each.active for each in found.values())
        replicas.update(node for each in found.values() for node in each.holders)
    for held in (actives, replicas):
        assert min(held.values()) > 0.8 * max(held.values()), held


@pytest.mark.parametrize(
    ("replicas", "before", "promoted"),
    [
        pytest.param(behind("b", version=2) + behind("c"), task("a", "bc"), "b", id="the nearest when all are behind"),
        pytest.param(behind("b") + behind("c"), task("a", "", "bc"), "b", id="a warm-up when there is nothing else"),
        pytest.param([], task("a", "bc"), "b", id="some replica when nobody reports anything"),
    ],
)
def test_which_replica_is_promoted_when_the_active_dies_and_none_is_in_step(
    replicas: list[Replica], before: AssignedTask, promoted: str
) -> None:
    assert one([B, C], before, replicas, standbys=2).active == promoted


def test_a_draining_node_gives_its_role_at_once_and_its_replica_when_another_has_it() -> None:
    draining = Member("a", draining=True)
    first = one([draining, B, C], task("a", "b"), ready("a", "b"))
    assert first == task("b", "a", "c")
    assert one([draining, B, C], first, ready("a", "b") + behind("c")) == first
    assert one([draining, B, C], first, ready("a", "b", "c")) == task("b", "c")


def test_the_actives_of_a_node_that_dies_are_not_all_promoted_on_one_other() -> None:
    tasks = [f"0_{partition}" for partition in range(24)]
    before = assign([A, B, C, D], tasks, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    standbys = {each.standbys[0] for each in before.values() if each.active == "a"}
    assert standbys == {"b", "c", "d"}


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        pytest.param(task("a", "b"), behind("b"), task("b", "a"), id="the replica that is left, even when behind"),
        pytest.param(task("a", "d"), [], task("b", "a"), id="the last that had it: another begins at once"),
    ],
)
def test_a_node_that_is_away_keeps_its_place(
    before: AssignedTask, replicas: list[Replica], after: AssignedTask
) -> None:
    assert one([B, C], before, replicas, away=[A]) == after


def test_a_replica_that_was_not_assigned_serves_when_all_assigned_ones_are_away() -> None:
    assert one([B, C], task("a"), ready("c"), standbys=0, away=[A]) == task("c", "a")


def seen(node_id: str, machine: str, zone: str | None = None) -> AgedHeartbeat:
    beat: Heartbeat = heartbeat(node_id, endpoint=NodeEndpoint(host=machine, port=7101), zone=zone)
    return AgedHeartbeat(beat, 0)


def zones(*nodes: AgedHeartbeat) -> list[str]:
    return [member.zone for member in members_of(nodes, "l1")]


def test_a_machine_is_a_zone_where_no_zones_are_named_or_only_one() -> None:
    assert zones(seen("a", "h1"), seen("b", "h1"), seen("c", "h2")) == ["h1", "h1", "h2"]
    assert zones(seen("a", "h1", "z"), seen("b", "h1", "z"), seen("c", "h2", "z")) == ["h1", "h1", "h2"]


@given(machines=st.integers(2, 4), processes=st.integers(1, 4), tasks=st.integers(1, 40))
def test_with_nodes_on_several_machines_no_task_has_both_its_replicas_on_one(
    machines: int, processes: int, tasks: int
) -> None:
    nodes = [seen(f"h{machine}-{number}", f"h{machine}") for machine in range(machines) for number in range(processes)]
    names = [f"0_{number}" for number in range(tasks)]
    found = assign(members_of(nodes, "l1"), names, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    for task in found.values():
        assert len({holder.partition("-")[0] for holder in task.holders}) == 2


ASSIGNED = st.fixed_dictionaries({task: st.sets(st.sampled_from("abc"), max_size=2) for task in TASKS})
REPORTS = st.dictionaries(
    st.sampled_from("abc"),
    st.fixed_dictionaries(
        {
            "version": st.sampled_from([None, 1, 8, 9]),
            "behind": st.none() | st.sampled_from(["0_0", "0_1", "0_2"]),
            "held": st.none() | st.lists(st.sampled_from(TASKS), unique=True),
            "late": st.integers(0, 2),
            "is_member": st.booleans(),
        }
    ),
)


@given(turns=st.lists(st.tuples(st.none() | ASSIGNED, REPORTS), max_size=6))
def test_replicas_taken_in_one_after_another_are_those_taken_in_at_once(
    turns: list[tuple[dict[str, set[str]] | None, dict[str, dict[str, Any]]]],
) -> None:
    kept, assignments = Holdings(3), [assignment_of({}, 0)]
    before: dict[str, set[tuple[str, bool, bool]]] = {}
    for given_now, reports in turns:
        if given_now is not None:
            assignments.append(assignment_of(given_now, len(assignments)))
            kept.follow(assignments[-1])
        nodes = [report_of(node_id, assignments, **report) for node_id, report in reports.items()]
        members = {node_id for node_id, report in reports.items() if report["is_member"]}
        changed = kept.look(nodes, members, "l1", 4)
        new = Holdings(3)
        for assignment in assignments[1:]:
            new.follow(assignment)
        assert new.look(nodes, members, "l1", 4) == {task for task in TASKS if new.get(task, ())}
        kinds = {}
        for task in TASKS:
            assert set(kept.get(task, ())) == set(new.get(task, ()))
            kinds[task] = {(each.node_id, each.caught_up, each.version is None) for each in new.get(task, ())}
        assert changed == {task for task in TASKS if kinds[task] != before.get(task, set())}
        before = kinds


def assignment_of(tasks: dict[str, set[str]], epoch: int) -> Assignment:
    """An assignment without actives, which do not matter here."""
    assigned = {task: AssignedTask(active=None, standbys=tuple(sorted(nodes))) for task, nodes in tasks.items()}
    return Assignment(
        application_id="flights", term=1, epoch=epoch, written_by="a", lineage="l1", partitions=4, tasks=assigned
    )


def report_of(
    node_id: str,
    assignments: list[Assignment],
    *,
    version: int | None,
    behind: str | None,
    held: list[str] | None,
    late: int,
    **_: bool,
) -> AgedHeartbeat:
    """The heartbeat of a node that is up to two assignments late, and may be behind with one task."""
    term, epoch = assignments[max(0, len(assignments) - 1 - late)].order
    exceptions = {} if behind is None else {behind: Applied(version=1)}
    return AgedHeartbeat(
        heartbeat(
            node_id,
            partitions=4,
            end_version=9,
            applied=Applied(version=version),
            exceptions=exceptions,
            held=held,
            term=term if epoch else 0,
            epoch=epoch,
        ),
        0,
    )


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
def test_the_order_of_members_tasks_and_replicas_changes_nothing(cluster: Cluster, gone: int, seed: Random) -> None:
    cluster.die(sorted(cluster.members)[gone % len(cluster.members)])
    cluster.join("n7")
    found, held = cluster.next(), cluster.held()
    members, tasks = list(cluster.members.values()), list(cluster.tasks)
    seed.shuffle(members)
    seed.shuffle(tasks)
    for replicas in held.values():
        seed.shuffle(replicas)
    again = assign(
        members,
        tasks,
        dict(reversed(cluster.assignment.items())),
        held,
        num_standby_replicas=cluster.standbys,
        max_warmup_replicas=cluster.warmups,
        application_id=APPLICATION,
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
        """One of the live members."""
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
        """Nodes give up tasks slowly: they may still report what the assignment before gave them."""
        for task in self.cluster.tasks[::3]:
            for node in list(self.cluster.members)[:2]:
                self.cluster.data[node].setdefault(task, END)

    @rule(weights=WEIGHTS)
    def weigh(self, weights: Weights) -> None:
        self.cluster.weigh(weights)

    @rule()
    def turn(self) -> None:
        self.cluster.turn()

    @rule()
    def come_to_rest(self) -> None:
        if self.cluster.members:
            self.cluster.settle()
            check_rest(self.cluster)
            self.cluster.begin_exchange()

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


async def settled(world: World, placement: Leadership, *, nodes: str = "abc") -> Assignment:
    """The first assignment, of as many nodes as are named."""
    return await world.first(placement, [beat(node_id) for node_id in nodes])


def named(assignment: Assignment) -> set[str]:
    """The nodes that have a place in an assignment."""
    return {node_id for task in assignment.tasks.values() for node_id in task.holders}


async def test_a_node_that_died_keeps_its_place_and_no_role_until_the_delay_is_over() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    died_ms = world.clock.monotonic_ms()
    away = await turns_until_written(world, placement, [beat("a", at=first.order)])
    assert world.clock.monotonic_ms() == died_ms, "roles move at once"
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in away.tasks.values())
    assert set(away.members) == {"a"}, "a node that starts now must not ask it"
    gone = await turns_until_written(world, placement, [beat("a", at=away.order)])
    assert world.clock.monotonic_ms() - died_ms == DELAY_MS
    assert named(gone) == {"a"}


async def test_a_node_that_comes_back_in_time_is_waited_for_anew_when_it_dies_again() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    away = await turns_until_written(world, placement, [beat("a", at=first.order)])
    world.clock.advance(DELAY_MS - BEAT_MS)
    back = await turns_until_written(world, placement, [beat("a", at=away.order), beat("b", version=None)])
    assert set(back.members) == {"a", "b"}
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in back.tasks.values())
    world.clock.advance(BEAT_MS)
    again = await turns_until_written(world, placement, [beat("a", at=back.order)])
    assert "b" in named(again)


async def test_a_node_that_is_leaving_has_no_role_and_keeps_its_tasks_while_it_says_so() -> None:
    world = World()
    placement = world.placement()  # no delay
    first = await settled(world, placement, nodes="ab")
    away = await turns_until_written(world, placement, [beat("a", at=first.order), beat("b", leaving=True)])
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in away.tasks.values())
    gone = await turns_until_written(world, placement, [beat("a", at=away.order)])
    assert named(gone) == {"a"}


async def test_a_node_that_was_drained_keeps_no_place_also_when_another_assigns_by_then() -> None:
    world = World()
    placement, other = (world.placement(node_id, rebalance_delay_ms=DELAY_MS) for node_id in "ac")
    first = await settled(world, placement)
    nodes = [beat("a", at=first.order), beat("b", at=first.order, state="draining"), beat("c", at=first.order)]
    draining = await turns_until_written(world, placement, nodes)
    assert draining.draining == ["b"]
    assert "b" in named(draining)
    world.known["c"] = draining
    await placement.give_up()
    gone = await turns_until_written(
        world, other, [beat("a", at=draining.order), beat("c", at=draining.order)], node="c"
    )
    assert "b" not in named(gone)


async def test_a_new_leader_waits_as_long_as_it_has_seen_the_node_away() -> None:
    world = World()
    holder, other = (world.placement(node_id, rebalance_delay_ms=DELAY_MS) for node_id in "ac")
    first = await settled(world, holder)
    world.known["c"] = first
    nodes = [beat("a", at=first.order), beat("c", at=first.order)]
    away = await turns_until_written(world, holder, nodes)
    assert "b" in named(away)
    world.known["c"] = away
    died_ms = world.clock.monotonic_ms()
    nodes = [beat("a", at=away.order), beat("c", at=away.order)]
    assert await world.turn(other, nodes, node="c") is None
    world.clock.advance(DELAY_MS // 2)
    await holder.give_up()
    late = world.placement("c", rebalance_delay_ms=DELAY_MS)  # had it started now, it would wait for longer
    assert await world.turn(late, nodes, node="c") is None
    await late.give_up()
    gone = await turns_until_written(world, other, nodes, node="c")
    assert "b" not in named(gone)
    assert world.clock.monotonic_ms() - died_ms == DELAY_MS
