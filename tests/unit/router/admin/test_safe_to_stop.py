"""Whether a node may be stopped: held against what then happens when it is gone."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.router.snapshots import (
    NODES,
    finished,
    kill,
    snapshot_of,
    stores_named,
    tables_with,
    worlds,
)
from tests.support.router.tables import beat, task

from understudy_router.admin.facts import Standing
from understudy_router.admin.node_reports import node_document
from understudy_router.admin.safe_to_stop import Losses, losses_of, losses_of_all
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.tables import Tables
from understudy_router.routing.choose import choose
from understudy_shared.bus.messages import Applied
from understudy_shared.reads.bounds import NO_BOUND, Bound

ONE = stores_named({"one": 0}, partitions=1)
BOUNDS = st.sampled_from([NO_BOUND, NO_BOUND, Bound(max_lag=0), Bound(max_lag=2), Bound(max_staleness_ms=4000)])


def losses(snapshot: Snapshot, node_id: str, bound: Bound = NO_BOUND) -> Losses:
    return finished(losses_of(snapshot, node_id, lambda _: bound))


def answered(tables: Tables, stores: Stores, bound: Bound, now_ms: float) -> set[tuple[str, int]]:
    """The store partitions that are answered under a bound by what the router knows, but for nodes that go."""
    found = set()
    for route in stores.by_name.values():
        for partition in range(route.partitions):
            candidates = [
                each
                for each in candidates_of(tables, route.operator_id, partition, now_ms)
                if each.is_heard and not each.is_draining
            ]
            if choose(candidates, bound, key_hash=0, load={}).order:
                found.add((route.name, partition))
    return found


@given(worlds(), st.sampled_from(NODES), BOUNDS)
def test_what_a_node_that_is_safe_to_stop_answered_is_answered_when_it_is_gone(
    world: tuple[Tables, Stores, float], node_id: str, bound: Bound
) -> None:
    tables, stores, now_ms = world
    found = losses(snapshot_of(tables, stores, now_ms=now_ms), node_id, bound)
    if node_id not in tables.nodes:
        assert found.is_safe or node_id not in tables.dead
        return
    before, is_confirmed = answered(tables, stores, bound, now_ms), tables.end_confirmed(now_ms)
    tables._died(tables._mark_dead(node_id, now_ms, "left", "it was stopped"), now_ms)
    assume(tables.end_confirmed(now_ms) == is_confirmed)  # how much is known of the end is not what this is about
    after = answered(tables, stores, bound, now_ms)
    if found.is_safe:
        assert before <= after
    named = {(str(each["store"]), int(str(each["partition"]))) for each in found.bound.listed}
    assert not named & after or bound == NO_BOUND


@given(worlds(), st.sampled_from(NODES))
def test_the_partitions_that_would_lose_their_last_replica_have_no_caught_up_one_afterwards(
    world: tuple[Tables, Stores, float], node_id: str
) -> None:
    tables, stores, now_ms = world
    found = losses(snapshot_of(tables, stores, now_ms=now_ms), node_id)
    if node_id in tables.nodes:
        tables._died(tables._mark_dead(node_id, now_ms, "left", "it was stopped"), now_ms)
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    index = snapshot.index
    for lost in found.last_replica.listed:
        (route,) = (route for route in index.routes if route.name == lost["store"])
        place = index.tasks_of_store(route)[int(str(lost["partition"]))]
        standings = [snapshot.facts(replica).standing for replica in index.holders(place)]
        assert Standing.CAUGHT_UP not in standings


@given(worlds(), BOUNDS)
def test_looking_at_the_nodes_at_risk_alone_says_the_same_as_looking_at_all(
    world: tuple[Tables, Stores, float], bound: Bound
) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    quick = finished(losses_of_all(snapshot, lambda _: bound))
    for node_id in snapshot.nodes:
        exact = losses(snapshot, node_id, bound)
        assert (quick[node_id].is_safe, quick[node_id].why(node_id)) == (exact.is_safe, exact.why(node_id))


def test_a_standby_in_step_takes_the_active_role_over() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    found = losses(snapshot_of(tables, ONE), "a")
    assert (found.is_safe, found.active.listed) == (True, [{"store": "one", "partition": 0}])
    assert found.why("a") == "every partition stays within its bound; 1 store partition gets another active"
    assert losses(snapshot_of(tables, ONE), "b").active.count == 0


def test_the_last_replica_is_named_and_so_is_that_of_a_node_whose_other_restores_drains_hangs_or_died() -> None:
    alone = tables_with({"0_0": task("a")}, beat("a"))
    restoring = Applied(version=3, state="RESTORING")
    others = [beat("b", applied=restoring), beat("b", state="draining"), beat("b", lineage="l2")]
    worlds = [alone, *(tables_with({"0_0": task("a", "b")}, beat("a"), other) for other in others)]
    for tables in worlds:
        found = losses(snapshot_of(tables, ONE), "a")
        assert (found.is_safe, found.last_replica.listed) == (False, [{"store": "one", "partition": 0}])
        assert "last replica of 1 store partition" in found.why("a")
    suspect = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    suspect.hop_silent("b", 0, 200)
    assert not losses(snapshot_of(suspect, ONE), "a").is_safe
    dead = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    now_ms = kill(dead, "b", now_ms=0)
    assert not losses(snapshot_of(dead, ONE, now_ms=now_ms), "a").is_safe


def test_a_replica_outside_the_bound_of_the_store_is_no_replacement() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b", version=4))
    snapshot = snapshot_of(tables, ONE)
    assert losses(snapshot, "a").is_safe
    found = losses(snapshot, "a", Bound(max_lag=2))
    assert (found.is_safe, found.bound.listed) == (False, [{"store": "one", "partition": 0}])
    assert losses(snapshot, "b", Bound(max_lag=2)).is_safe


def test_a_node_that_holds_nothing_costs_nothing() -> None:
    tables = tables_with({"0_0": task("a")}, beat("a"), beat("idle"))
    found = losses(snapshot_of(tables, ONE), "idle")
    why = "every partition stays within its bound, and no active role moves"
    assert (found.is_safe, found.why("idle")) == (True, why)


def test_no_node_is_safe_to_stop_while_it_is_not_known_who_holds_what() -> None:
    no_assignment = Tables()
    no_assignment.heard(beat("a"), age_ms=0, now_ms=0)
    for snapshot in (
        snapshot_of(no_assignment, ONE),
        snapshot_of(tables_with({"0_0": task("a", "b")}, beat("a"), beat("b")), None),
    ):
        found = losses(snapshot, "a")
        assert not found.is_safe
        assert "does not know yet" in found.why("a")
        of_all = finished(losses_of_all(snapshot, lambda _: NO_BOUND))["a"]
        assert not of_all.is_safe
        assert node_document(snapshot, snapshot.nodes["a"], of_all)["safe_to_stop"]["safe"] is None
    no_assignment.heard(beat("a", sequence=2, state="starting", waits_for="a checkpoint"), age_ms=0, now_ms=1)
    assert losses(snapshot_of(no_assignment, ONE), "a").is_safe, "it has nothing"
