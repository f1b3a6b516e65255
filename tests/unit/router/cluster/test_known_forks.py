"""Which nodes a router refuses as forks, in whatever order it hears who names whom."""

from __future__ import annotations

from tests.support.router.tables import TASK, assigned, beat, farewell, happened, tables_of, task

FORKS = {"b": "version 3 was committed twice"}


def test_a_fork_is_refused_with_itsfirst_heartbeat_when_others_named_it_before() -> None:
    tables = tables_of(task("a"), beat("a", forks=FORKS))
    assert not tables.forks, "it is not heard yet"
    tables.heard(beat("b"), age_ms=0, now_ms=1)
    assert set(tables.forks) == {"b"}
    assert happened(tables)[-1] == "fork-found"


def test_a_node_that_is_named_is_judged_anew_with_each_of_its_heartbeats() -> None:
    tables = tables_of(task("a", "b"), beat("a", sequence=5, forks=FORKS), beat("b", sequence=1))
    assert set(tables.forks) == {"b"}, "its process is the younger one"
    tables.heard(beat("b", sequence=9), age_ms=0, now_ms=1)
    assert set(tables.forks) == {"a"}


def test_nobody_is_a_fork_once_those_that_said_so_are_gone() -> None:
    tables = tables_of(task("a", "b"), beat("a", sequence=5, forks=FORKS), beat("b"))
    tables.left(farewell("a"), 1)
    assert not tables.forks


def test_an_assignment_decides_which_side_is_refused() -> None:
    tables = tables_of(task("c"), beat("a", sequence=5, forks=FORKS), beat("b"))
    assert set(tables.forks) == {"b"}
    tables.assigned(assigned({TASK: task("b")}, order=(1, 2)), 1)
    assert set(tables.forks) == {"a"}
