"""Whether a node may be stopped: held against what then happens when it is gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

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
from understudy_router.admin.safe_to_stop import Losses, losses_of, losses_of_all, nodes_to_ask
from understudy_router.admin.snapshot import ClusterSnapshot
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.tables import Tables
from understudy_router.routing.choose import choose
from understudy_shared.bus.messages import Applied
from understudy_shared.reads.bounds import NO_BOUND, Bound

ONE = stores_named({"one": 0}, partitions=1)
BOUNDS = st.sampled_from([NO_BOUND, NO_BOUND, Bound(max_lag=0), Bound(max_lag=2), Bound(max_staleness_ms=4000)])


def losses(snapshot: ClusterSnapshot, node_id: str, bound: Bound = NO_BOUND) -> Losses:
    return finished(losses_of(snapshot, node_id, lambda _: bound))


def answered(
    tables: Tables, stores: CatalogueStores, bound: Bound, now_ms: float, *, by: Collection[str] = NODES
) -> set[tuple[str, int]]:
    """The store partitions that some nodes answer under a bound by what the router knows, but for nodes that go."""
    found = set()
    for route in stores.by_name.values():
        for partition in range(route.partitions):
            candidates = [
                each
                for each in candidates_of(tables, route.operator_id, partition, now_ms)
                if each.is_heard and not each.is_draining and each.node_id in by
            ]
            if choose(candidates, bound, key_hash=0, load={}).order:
                found.add((route.name, partition))
    return found


@given(worlds(), st.sampled_from(NODES), BOUNDS)
def test_what_a_node_that_is_safe_to_stop_answered_is_answered_when_it_is_gone(
    world: tuple[Tables, CatalogueStores, float], node_id: str, bound: Bound
) -> None:
    tables, stores, now_ms = world
    found = losses(snapshot_of(tables, stores, now_ms=now_ms), node_id, bound)
    if node_id not in tables.nodes:
        assert found.is_safe or found.may_live or node_id not in tables.dead
        return
    before, is_confirmed = answered(tables, stores, bound, now_ms), tables.end_confirmed(now_ms)
    tables._died(tables._mark_dead(node_id, now_ms, "left", "it was stopped"), now_ms)
    assume(tables.end_confirmed(now_ms) == is_confirmed)  # how much is known of the end is not what this is about
    after = answered(tables, stores, bound, now_ms)
    if found.is_safe:
        assert before <= after
    named = {(str(each["store"]), int(str(each["partition"]))) for each in found.bound.listed}
    assert not named & after or bound == NO_BOUND


@given(worlds(), st.sampled_from(NODES), st.sets(st.sampled_from(NODES)), st.booleans(), BOUNDS)
def test_a_node_is_safe_to_stop_only_if_nodes_that_answered_serve_within_the_bound_what_it_serves(
    world: tuple[Tables, CatalogueStores, float], node_id: str, answering: set[str], is_away: bool, bound: Bound
) -> None:
    tables, stores, now_ms = world
    now_ms += 1
    if is_away:
        tables.bus_lost(now_ms, "away")
        bound = replace(bound, require_active=True) if bound == NO_BOUND else bound
    for other in answering & tables.nodes.keys():
        known = tables.nodes[other].heartbeat
        tables.heard(known.model_copy(update={"sequence": known.sequence + 1}), age_ms=0, now_ms=now_ms)
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    found = finished(losses_of(snapshot, node_id, lambda _: bound, since_ms=now_ms))
    if found.is_safe and node_id in tables.nodes:
        others = answered(tables, stores, bound, now_ms, by=answering - {node_id})
        assert answered(tables, stores, bound, now_ms, by={node_id}) <= others
    orders = [(node.heartbeat.term, node.heartbeat.epoch) for node in tables.nodes.values()]
    assert not found.is_safe or max(orders, default=(0, 0)) <= tables.order, "who holds what is read later"


def test_a_replica_whose_node_did_not_answer_now_does_not_count_and_is_named() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    snapshot = snapshot_of(tables, ONE, now_ms=500)
    assert losses(snapshot, "a").is_safe
    assert finished(nodes_to_ask(snapshot, "a")) == {"b": snapshot.nodes["b"].endpoint}
    found = finished(losses_of(snapshot, "a", lambda _: NO_BOUND, since_ms=1))
    assert (found.is_safe, found.last_replica.count, found.unanswered) == (False, 1, ["b"])
    assert "(b did not answer)" in found.why("a")
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=500)
    assert finished(losses_of(snapshot_of(tables, ONE, now_ms=500), "a", lambda _: NO_BOUND, since_ms=1)).is_safe


def test_a_node_that_did_not_answer_when_asked_counts_in_no_report_though_it_was_heard_a_moment_ago() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    tables.did_not_answer("b", 1)
    snapshot = snapshot_of(tables, ONE, now_ms=2)
    assert not losses(snapshot, "a").is_safe
    assert snapshot.totals.thin == (0,)


def test_while_the_bus_is_away_no_other_becomes_active() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    tables.bus_lost(0, "away")
    snapshot = snapshot_of(tables, ONE)
    assert losses(snapshot, "a").is_safe
    assert "while Redis is away no other becomes active" in losses(snapshot, "a").why("a")
    found = losses(snapshot, "a", Bound(require_active=True))
    assert (found.is_safe, found.bound.count) == (False, 1)
    assert "bring Redis back first" in found.why("a")
    assert losses(snapshot, "b", Bound(require_active=True)).is_safe


def test_while_the_bus_is_away_a_node_that_this_router_does_not_reach_is_not_safe_to_stop() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    tables._died(tables._mark_dead("a", 1, "died", "it did not answer"), 1)
    assert losses(snapshot_of(tables, ONE), "a").is_safe, "Redis would know"
    tables.bus_lost(2, "away")
    snapshot = snapshot_of(tables, ONE)
    found = losses(snapshot, "a")
    assert (found.is_safe, "does not answer this router" in found.why("a")) == (False, True)
    assert finished(losses_of_all(snapshot, lambda _: NO_BOUND))["a"].why("a") == found.why("a")
    assert finished(nodes_to_ask(snapshot, "a")).keys() == {"a", "b"}, "it may answer now"
    tables.heard(beat("a", sequence=2), age_ms=0, now_ms=3)
    assert losses(snapshot_of(tables, ONE, now_ms=3), "a").is_safe


def test_a_node_that_left_before_the_bus_is_safe_to_stop_unless_it_answers_again() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    tables._died(tables._mark_dead("a", 1, "left", "it was stopped"), 1)
    tables.bus_lost(2, "away")
    snapshot = snapshot_of(tables, ONE)
    assert losses(snapshot, "a").is_safe
    assert finished(nodes_to_ask(snapshot, "a")).keys() == {"a", "b"}


def test_a_node_that_only_the_assignment_names_is_not_safe_to_stop_while_the_bus_is_away() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("b"))
    tables.bus_lost(2, "away")
    snapshot = snapshot_of(tables, ONE)
    assert "a" not in snapshot.nodes
    assert not losses(snapshot, "a").is_safe
    assert "b" in finished(nodes_to_ask(snapshot, "a"))


@given(worlds(), st.sampled_from(NODES))
def test_the_partitions_that_would_lose_their_last_replica_have_no_caught_up_one_afterwards(
    world: tuple[Tables, CatalogueStores, float], node_id: str
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
    world: tuple[Tables, CatalogueStores, float], bound: Bound
) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    quick = finished(losses_of_all(snapshot, lambda _: bound))
    for node_id in snapshot.nodes:
        exact = losses(snapshot, node_id, bound)
        assert (quick[node_id].is_safe, quick[node_id].why(node_id)) == (exact.is_safe, exact.why(node_id))


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
