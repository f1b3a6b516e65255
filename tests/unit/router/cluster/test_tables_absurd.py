"""How a router treats impossible numbers, and nodes that do not exist."""

from __future__ import annotations

from tests.support.router.tables import HEARTBEAT_MS, TASK, assigned, beat, tables_of, task

from understudy_router.cluster.tables import Tables
from understudy_shared.base.plausible import CEILING, FIRST_SIGHT, MAX_JUMP
from understudy_shared.cluster.view import MAX_NODES, MIN_STRANGERS, QUIET_MS, limit_beside


def test_an_assignment_far_above_the_known_one_is_refused_and_the_next_one_taken() -> None:
    refused: list[str] = []
    tables = Tables(refuse=lambda kind, why: refused.append(kind))
    assert tables.assigned(assigned({TASK: task("a")}, order=(5, 7)), 0)
    for order in ((CEILING, CEILING), (FIRST_SIGHT, 8), (6, FIRST_SIGHT), (5 + MAX_JUMP + 1, 8)):
        assert not tables.assigned(assigned({TASK: task("b")}, order=order), 0)
    assert refused == ["assignment"] * 4
    assert tables.assigned(assigned({TASK: task("b")}, order=(6, 8)), 0)


def test_an_absurd_end_or_order_of_a_heartbeat_is_left_out_and_the_node_is_not() -> None:
    tables = tables_of(task("a", "b"), beat("a"))
    assert tables.end_version == 7
    assert tables.heard(beat("b", end_version=FIRST_SIGHT, term=FIRST_SIGHT, epoch=3), age_ms=0, now_ms=0)
    assert tables.end_version == 7
    kept = tables.nodes["b"].heartbeat
    assert (kept.term, kept.epoch, kept.end_age_ms) == (0, 0, None)
    assert not tables.hop_answered("a", 1, took_ms=1, term=FIRST_SIGHT, epoch=1, end_version=FIRST_SIGHT)
    assert tables.end_version == 7
    assert tables.hop_answered("a", 1, took_ms=1, term=1, epoch=2, end_version=8)
    assert tables.end_version == 8


def test_a_heartbeat_in_a_living_nodes_name_silences_it_no_longer_than_two_heartbeats() -> None:
    for forged in (2**48, 2**47, 1_000_000):
        tables = tables_of(task("a"), beat(sequence=5))
        tables.heard(beat(sequence=forged, version=3), age_ms=0, now_ms=1)
        for number in (1, 2):
            tables.heard(beat(sequence=5 + number), age_ms=0, now_ms=number * HEARTBEAT_MS)
        assert tables.nodes["a"].heartbeat.sequence == 7


def test_strangers_have_bounded_room_and_known_nodes_always_theirs() -> None:
    tables = tables_of(task("a", "b"), beat("a"))
    limit = limit_beside(2)
    for number in range(limit + 100):
        tables.heard(beat(f"forged-{number}", held=[]), age_ms=0, now_ms=1)
    assert len(tables.nodes) == limit == 2 + MIN_STRANGERS
    assert not tables.heard(beat("new"), age_ms=0, now_ms=2)
    assert tables.heard(beat("b"), age_ms=0, now_ms=2)
    assert {"a", "b"} <= tables.nodes.keys()
    assert not tables.heard(beat("new"), age_ms=0, now_ms=3)
    assert tables.heard(beat("new"), age_ms=0, now_ms=QUIET_MS + 200), "a silent node makes room"
    assert len(tables.nodes) == limit + 1


def test_before_an_assignment_thousands_of_nodes_are_admitted_and_known_ones_displace_the_newest() -> None:
    tables = Tables()
    for number in range(MAX_NODES + 100):
        tables.heard(beat(f"forged-{number}", held=[]), age_ms=0, now_ms=1)
    assert len(tables.nodes) == MAX_NODES
    tables.assigned(assigned({TASK: task("a")}), 1)
    assert tables.heard(beat("a"), age_ms=0, now_ms=2)
    assert len(tables.nodes) == MAX_NODES
    assert f"forged-{MAX_NODES - 1}" not in tables.nodes, "the newest stranger made room"


def test_a_node_that_no_assignment_names_sets_no_pace_and_dies_of_silence_alone() -> None:
    tables = tables_of(task("a"), beat("a"))
    tables.heard(beat("forged", heartbeat_ms=1), age_ms=0, now_ms=0)
    assert tables.heartbeat_ms(default_ms=7) == HEARTBEAT_MS
    tables.expire(4)
    assert "forged" not in tables.nodes
    assert "a" in tables.nodes
