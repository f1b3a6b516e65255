"""Which nodes a router refuses as forks, in whatever order it hears who names whom."""

from __future__ import annotations

from tests.support.router.tables import TASK, assigned, beat, happened, tables_of, task

FORKS = {"b": "version 3 was committed twice"}


def test_a_fork_is_refused_with_itsfirst_heartbeat_when_others_named_it_before() -> None:
    tables = tables_of(task("a"), beat("a", forks=FORKS))
    assert not tables.forks, "it is not heard yet"
    tables.heard(beat("b"), age_ms=0, now_ms=1)
    assert set(tables.forks) == {"b"}
    assert happened(tables)[-1] == "fork-found"


def test_an_assignment_decides_which_side_is_refused() -> None:
    tables = tables_of(task("c"), beat("a", sequence=5, forks=FORKS), beat("b"))
    assert set(tables.forks) == {"b"}
    tables.assigned(assigned({TASK: task("b")}, order=(1, 2)), 1)
    assert set(tables.forks) == {"a"}
