"""What changed between two looks is told once, with its cause, and taken back once: drains, stores, Redis, commits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import snapshot_of, stores_named, tables_with
from tests.support.router.tables import assigned, beat, task

from understudy_router.admin.indicators import attention
from understudy_router.admin.sampling import _ENDINGS, EVENTS, MAX_SHOWN, EventLog, Known, Line, changes
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.readiness import Cause
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.http.health import Indicator

ONE = stores_named({"one": 0}, partitions=1)
QUIET = attention("The query has not committed for 9000 ms", cause="it usually commits every 1000 ms")
REFUSED = {Cause.WRITES_REFUSED: "Redis refuses what a write"}


class Looks:
    """Looks at tables, one after another."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.known = Known()
        self.now_ms = 0.0
        self._sequence = 1

    def hears(self, node_id: str, **fields: Any) -> None:
        self._sequence += 1
        heartbeat: Heartbeat = beat(node_id, sequence=self._sequence, **fields)
        assert self.tables.heard(heartbeat, age_ms=0, now_ms=self.now_ms)

    def look(self, quiet: Indicator | None = None, **about: Any) -> list[Line]:
        return self.of(snapshot_of(self.tables, ONE, now_ms=self.now_ms, **about), quiet)

    def of(self, snapshot: Snapshot, quiet: Indicator | None = None) -> list[Line]:
        self.known, lines = changes(self.known, snapshot, quiet)
        return lines


@pytest.fixture
def two() -> Looks:
    """Two nodes with one task, which were looked at once."""
    looks = Looks(tables_with({"0_0": task("a", "b")}, beat("a"), beat("b")))
    assert looks.look() == []
    return looks


def test_a_drain_is_told_when_it_begins_when_nothing_is_left_and_when_it_is_taken_back(two: Looks) -> None:
    two.hears("b", state="draining")
    assert two.look() == [("drain", "b: somebody asked for it; other nodes take over what it has")]
    assert two.look() == []
    two.tables.assigned(assigned({"0_0": task("a")}, order=(1, 2)), 0)
    assert two.look() == [("drained", "b: nothing is left there, it may be stopped")]
    assert two.look() == []
    two.hears("b")
    assert two.look() == [("drain-undone", "b: somebody took the drain back")]
    assert two.look() == []


def test_an_end_that_nobody_confirms_is_told_with_who_cannot_read_the_checkpoint(two: Looks) -> None:
    for node_id in ("a", "b"):
        two.hears(node_id, end_age_ms=None, degraded=["checkpoint-unreadable"])
    assert two.look(QUIET) == [
        ("lag-unknown", "no node confirms the end of the commit log: a, b cannot read the checkpoint")
    ]
    two.hears("a")
    assert two.look() == [_ENDINGS["lag-unknown"]]


PRESENT = st.fixed_dictionaries(
    {
        "bus_lost_why": st.none() | st.just("away"),
        "unheard": st.none() | st.just("2 of 3"),
        "causes": st.just({}) | st.just(REFUSED),
    }
)
STEPS = st.lists(
    st.tuples(
        PRESENT,
        st.none() | st.just(QUIET),
        st.sampled_from(["serving", "draining"]),
        st.sampled_from([0, None]),
        st.sampled_from(["i1", "i2"]),
        st.integers(7, 9),
    ),
    max_size=12,
)


@given(STEPS)
def test_whatever_happens_each_condition_begins_and_ends_in_turn(steps: list[tuple[Any, ...]]) -> None:
    looks = Looks(tables_with({"0_0": task("a", "b")}, beat("a"), beat("b")))
    log = EventLog()
    told: list[str] = []
    for about, quiet, state, end_age_ms, incarnation, version in steps:
        looks.now_ms += 1
        looks.hears("a", end_age_ms=end_age_ms, state=state, incarnation=incarnation, end_version=version)
        looks.hears("b", end_age_ms=end_age_ms)
        snapshot = snapshot_of(looks.tables, ONE, now_ms=looks.now_ms, **about)
        lines = looks.of(snapshot, quiet)
        told += [kind for kind, _ in lines]
        assert all(kind in EVENTS and detail for kind, detail in lines)
        assert looks.of(snapshot, quiet) == [], "it is told once"
        happened = log.see(snapshot, quiet)
        assert len(happened) <= MAX_SHOWN
        numbers = [each["id"] for each in happened]
        assert numbers == sorted(numbers, reverse=True)
    for began, (ended, _) in {**_ENDINGS, "drain": ("drain-undone", "")}.items():
        turns = [kind for kind in told if kind in {began, ended}]
        assert turns == [began, ended] * (len(turns) // 2) + [began] * (len(turns) % 2)
