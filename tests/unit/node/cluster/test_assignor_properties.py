"""How much the assignor moves when one thing happens to a cluster at rest, and how it spreads tasks over zones."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.assignor_model import APPLICATION, NODES, WHICH, Cluster, can_be_spread, check_rest, picked

from understudy_node.cluster.assignor import assign


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
