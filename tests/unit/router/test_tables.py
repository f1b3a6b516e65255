"""What a router knows of its nodes, whatever arrives in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus_talk import heartbeat
from tests.support.router_tables import NOW_MS, TASK, assigned, said, tables_of

from understudy_router.candidates import Candidate, candidates_of
from understudy_router.tables import Tables
from understudy_shared.messages import Applied, Farewell

EXPIRY_MS = 3000


def replicas(tables: Tables, now_ms: float = NOW_MS) -> dict[str, Candidate]:
    return {each.node_id: each for each in candidates_of(tables, 0, 0, now_ms)}


@given(st.permutations(range(5)))
def test_heartbeats_of_one_process_end_in_the_newest_whatever_their_order(order: list[int]) -> None:
    tables = Tables()
    for sequence in order:
        said(tables, "a", sequence, sequence=sequence)
    assert tables.nodes["a"].heartbeat.applied.version == 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1))
def test_the_assignment_that_is_followed_never_goes_back(orders: list[tuple[int, int]]) -> None:
    tables = Tables()
    for order in orders:
        before = tables.assignment
        taken = tables.assigned(assigned("a", order=order))
        assert taken is (before is None or order > before.order)
    assert tables.assignment is not None
    assert tables.assignment.order == max(orders)


def test_a_silent_node_leaves_the_tables_within_three_of_its_heartbeats_and_people_are_told_why() -> None:
    tables = tables_of(assigned("a", ["b"]), a=10, b=10)
    tables.expire(NOW_MS + EXPIRY_MS)
    assert set(tables.nodes) == {"a", "b"}
    said(tables, "b", 10, sequence=2, age_ms=-EXPIRY_MS)
    tables.expire(NOW_MS + EXPIRY_MS + 1)
    assert set(tables.nodes) == {"b"}
    assert "silent" in tables.dead["a"].why
    assert not replicas(tables)["a"].is_live


def test_nobody_dies_of_silence_while_the_bus_is_away_but_lag_becomes_unknown() -> None:
    tables = tables_of(assigned("a"), a=10)
    tables.bus_lost(NOW_MS, "gone")
    later_ms = NOW_MS + 60_000
    tables.expire(later_ms)
    replica = replicas(tables, later_ms)["a"]
    assert replica.is_live
    assert replica.version == 10
    assert replica.offset_lag is None
    assert replica.time_lag_ms is None


def test_a_farewell_ends_a_node_at_once_and_one_of_an_earlier_process_does_not() -> None:
    tables = tables_of(assigned("a"), a=10)
    tables.left(Farewell(application_id="flights", node_id="a", incarnation="another"))
    assert "a" in tables.nodes
    tables.left(Farewell(application_id="flights", node_id="a", incarnation="i1"))
    assert "a" not in tables.nodes


def test_a_heartbeat_that_is_older_than_an_expiry_is_no_sign_of_life() -> None:
    tables = Tables()
    assert not said(tables, "a", 10, age_ms=EXPIRY_MS + 1)
    assert tables.nodes == {}


def test_lag_is_judged_against_the_highest_end_that_anybody_reported() -> None:
    tables = tables_of(assigned("a", ["b"]))
    said(tables, "a", 10, end_version=10)
    said(tables, "b", 12, end_version=14)
    assert {node: each.offset_lag for node, each in replicas(tables).items()} == {"a": 4, "b": 2}


def test_a_newer_end_in_the_reply_of_a_hop_counts_at_once() -> None:
    tables = tables_of(assigned("a"), a=10)
    tables.hop_answered("a", NOW_MS, 1, 1, 13)
    assert replicas(tables)["a"].offset_lag == 3


def test_an_end_of_another_history_does_not_count() -> None:
    tables = tables_of(assigned("a", ["b"]), a=10)
    said(tables, "b", 99, end_version=99, lineage="another")
    assert tables.end_version == 10
    assert not replicas(tables)["b"].has_lineage


def test_lag_is_unknown_when_nobody_has_confirmed_the_end() -> None:
    tables = tables_of(assigned("a"))
    said(tables, "a", 10, end_age_ms=None)
    assert replicas(tables)["a"].offset_lag is None


def test_a_confirmation_of_the_end_counts_until_it_is_too_old() -> None:
    tables = Tables(end_expiry_ms=10_000)
    tables.assigned(assigned("a"))
    said(tables, "a", 10, end_age_ms=9_000)
    assert tables.end_confirmed(NOW_MS + 1_000)
    assert not tables.end_confirmed(NOW_MS + 1_001)


def test_a_node_that_failed_is_suspect_until_it_says_something_or_answers() -> None:
    tables = tables_of(assigned("a"), a=10)
    tables.hop_failed("a", NOW_MS + 1, "refused")
    assert replicas(tables)["a"].suspect
    tables.heard(heartbeat("a", sequence=5, heartbeat_ms=1000), age_ms=0, now_ms=NOW_MS + 1)
    assert replicas(tables)["a"].suspect, "said before the failure, as far as is known"
    tables.heard(heartbeat("a", sequence=6, heartbeat_ms=1000), age_ms=0, now_ms=NOW_MS + 2)
    assert not replicas(tables)["a"].suspect
    tables.hop_failed("a", NOW_MS + 3, "refused")
    tables.hop_answered("a", NOW_MS + 4, 1, 1, 10)
    assert not replicas(tables)["a"].suspect


def test_what_a_node_does_not_hold_yet_has_no_version() -> None:
    tables = tables_of(assigned("a", order=(1, 1)))
    tables.assigned(assigned("a", ["b"], order=(1, 2)))
    said(tables, "b", 10, epoch=1)  # it follows the assignment before, which gave it nothing
    assert replicas(tables)["b"].version is None
    said(tables, "b", 10, epoch=2, sequence=2)
    assert replicas(tables)["b"].version == 10


def test_an_exception_in_a_heartbeat_stands_for_its_task_alone() -> None:
    tables = tables_of(assigned("a"))
    said(tables, "a", 10, exceptions={TASK: Applied(version=4, time_lag_ms=900, state="RESTORING")})
    replica = replicas(tables)["a"]
    assert (replica.version, replica.offset_lag, replica.state) == (4, 6, "RESTORING")


def test_every_change_that_may_alter_a_choice_is_seen_in_the_version_of_the_tables() -> None:
    tables = tables_of(assigned("a"), a=10)
    seen = {tables.version}
    for change in (
        lambda: said(tables, "a", 11, sequence=2),
        lambda: tables.assigned(assigned("a", order=(1, 2))),
        lambda: tables.hop_failed("a", NOW_MS, "refused"),
        lambda: tables.hop_answered("a", NOW_MS, 1, 2, 99),
        lambda: tables.bus_lost(NOW_MS, "gone"),
        lambda: tables.bus_back(NOW_MS),
        lambda: tables.expire(NOW_MS + 60_000),
    ):
        change()
        assert tables.version not in seen
        seen.add(tables.version)
