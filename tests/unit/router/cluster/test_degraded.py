"""What a router reports as degraded although lookups work: every present cause, each once."""

from __future__ import annotations

from tests.support.router.tables import END_EXPIRY_MS, beat, tables_of, task

from understudy_router.cluster.degraded import Cause, causes_of
from understudy_router.cluster.tables import Tables


def causes(tables: Tables, *, now_ms: float = 0, **why: str | None) -> dict[str, str]:
    reasons = {"bus_lost_why": None, "unheard": None, "no_catalogue_why": None, **why}
    return {str(cause): text for cause, text in causes_of(tables, now_ms=now_ms, **reasons).items()}


def test_when_all_is_well_nothing_is_said() -> None:
    assert causes(tables_of(task("a"), beat("a"))) == {}
    assert causes(tables_of(task("a"))) == {}, "no node, no lag: not ready says why"


def test_lag_that_no_node_knows_is_said_and_that_of_one_is_not() -> None:
    tables = tables_of(task("a", "b"), beat("a", end_age_ms=None), beat("b"))
    assert causes(tables) == {}
    assert list(causes(tables, now_ms=END_EXPIRY_MS + 1)) == [Cause.LAG_UNKNOWN]


def test_nodes_whose_writes_are_refused_are_named_and_many_are_counted() -> None:
    nodes = [beat(node_id, degraded=["bus-writes-refused", "later"]) for node_id in "abcde"]
    found = causes(tables_of(task("a"), *nodes, beat("f")))
    assert found == {
        "bus-writes-refused": "the bus refuses what a, b, c and 2 more write: nothing is reassigned by them"
    }


def test_a_bus_that_is_away_is_said_once_whatever_follows_from_it() -> None:
    away = "the bus is away: connection refused"
    found = causes(tables_of(task("a"), beat("a")), bus_lost_why=away, unheard="1 of 1 nodes", no_catalogue_why=away)
    assert found == {"bus-away": away}


def test_several_causes_are_all_said() -> None:
    tables = tables_of(task("a"), beat("a", end_age_ms=None))
    assert list(causes(tables, unheard="1 of 1 nodes", no_catalogue_why="it is not on the bus")) == [
        "nodes-unheard",
        "lag-unknown",
        "no-catalogue",
    ]
