"""What a router concludes of nodes that answer its hops, or do not."""

from __future__ import annotations

from tests.support.router.tables import (
    TASK,
    answered,
    assigned,
    beat,
    farewell,
    happened,
    tables_of,
    task,
)

from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.health import Health


def test_a_failed_request_is_forgiven_by_an_answer_and_not_by_a_heartbeat() -> None:
    """A node that only this router cannot reach goes on beating."""
    tables = tables_of(task("a"), beat(sequence=1))
    tables.hop_failed("a", 100, "connection refused")
    assert tables.heard(beat(sequence=2), age_ms=0, now_ms=130)
    (only,) = candidates_of(tables, 0, 0, 130)
    assert (only.health, only.health_why) == (Health.SUSPECT, "connection refused")
    answered(tables, "a", 150)
    assert candidates_of(tables, 0, 0, 150)[0].health is Health.OK
    assert happened(tables)[-2:] == ["suspect", "recovered"]


def test_silence_while_others_answer_is_reported_and_puts_a_node_last() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    before = tables.version
    tables.hop_silent("a", 300, 210)
    assert tables.version > before
    assert tables.events[-1].detail == "a: silent for 210 ms while others answered"
    assert candidates_of(tables, 0, 0, 300)[0].health is Health.SUSPECT


def test_an_answer_shows_when_its_node_follows_a_later_assignment() -> None:
    tables = tables_of(task("a"), beat())
    assert not answered(tables, "a", 0, 7)
    assert answered(tables, "a", 0, 7, order=(1, 2))
    assert answered(tables, "a", 0, 7, order=(2, 0))


def test_an_answer_without_news_keeps_the_choices_that_were_made() -> None:
    tables = tables_of(task("a"), beat())
    before = tables.version
    answered(tables, "a", 0, 7)
    assert tables.version == before
    for change in (
        lambda: answered(tables, "a", 0, 8),
        lambda: tables.hop_failed("a", 1, "timeout"),
        lambda: answered(tables, "a", 3, 8),
        lambda: tables.heard(beat(sequence=2), age_ms=0, now_ms=3),
        lambda: tables.assigned(assigned({TASK: task("b")}, order=(1, 2)), 4),
        lambda: tables.left(farewell(), 5),
    ):
        before = tables.version
        change()
        assert tables.version > before
