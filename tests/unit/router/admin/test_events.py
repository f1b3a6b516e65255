"""Changes between two looks are told once, with their cause, and taken back once: drains, stores, Redis, commits. Those
between two catalogues are said by store and column, a line of each kind, however many there are.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.router.snapshots import snapshot_of, stores_named, tables_with
from tests.support.router.tables import APPLICATION, LINEAGE, assigned, beat, task

from understudy_router.admin.indicators import attention
from understudy_router.admin.sampling import (
    _ENDINGS,
    EVENTS,
    KINDS,
    MAX_SHOWN,
    EventLog,
    Known,
    Line,
    changes,
    schema_changes,
)
from understudy_router.admin.snapshot import ClusterSnapshot
from understudy_router.cluster.catalogue import CatalogueStores, stores_of
from understudy_router.cluster.readiness import Cause
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.messages import Catalogue, CatalogueStore, Heartbeat
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

    def of(self, snapshot: ClusterSnapshot, quiet: Indicator | None = None) -> list[Line]:
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


COUNT = {"name": "count", "type": "bigint", "nullable": False}
DELAY = {"name": "delay", "type": "double", "nullable": True}


def key(*columns: tuple[str, str]) -> str:
    fields = ",".join(f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}' for name, kind in columns)
    return f'{{"type":"struct","fields":[{fields}]}}'


def stored(name: str = "words", **fields: Any) -> CatalogueStore:
    columns = fields.pop("columns", (("word", "string"),))
    values: dict[str, Any] = {
        "operator_id": 0,
        "operator": "stateStoreSave",
        "key_schema": key(*columns),
        "key_names": [column for column, _ in columns],
        "partitions": 4,
        "value": [COUNT],
        **fields,
    }
    return CatalogueStore(store=name, **values)


def catalogue(
    digest: str, *stores: CatalogueStore, lineage: str = LINEAGE, not_served: list[dict[str, str | int]] | None = None
) -> CatalogueStores:
    made = Catalogue(
        application_id=APPLICATION, lineage=lineage, partitions=4, stores=list(stores), not_served=not_served or []
    )
    return stores_of(made, digest)


def said(before: CatalogueStores | None, after: CatalogueStores | None) -> list[tuple[str, str]]:
    return list(schema_changes(before, after))


def test_columns_that_came_went_or_have_another_type_are_named() -> None:
    before = catalogue("1", stored(value=[COUNT, DELAY]))
    assert said(before, catalogue("2", stored())) == [("schema-changed", "words: value column delay is gone")]
    assert said(catalogue("2", stored()), before) == [("schema-changed", "words: new value column delay, double")]
    other = {**DELAY, "type": "decimal(10,2)"}
    assert said(before, catalogue("2", stored(value=[COUNT, other]))) == [
        ("schema-changed", "words: value column delay is decimal(10,2), before double")
    ]
    assert said(before, catalogue("2", stored(value=[DELAY, COUNT]))) == [
        ("schema-changed", "words: value columns in another order")
    ]


STORES = st.lists(
    st.builds(
        stored,
        st.text("abc<>", min_size=1, max_size=200),
        value=st.lists(
            st.fixed_dictionaries({"name": st.text(max_size=200), "type": st.text(max_size=400)}), max_size=5
        ),
        partitions=st.integers(1, 9),
        operator_id=st.integers(0, 3),
    ),
    max_size=4,
    unique_by=lambda each: each.store,
)


@settings(max_examples=30)
@given(STORES, STORES)
def test_there_is_at_most_a_line_of_each_kind_and_each_is_short(
    before: list[CatalogueStore], after: list[CatalogueStore]
) -> None:
    old, new = catalogue("1", *before), catalogue("2", *after)
    lines = said(old, new)
    assert len({kind for kind, _ in lines} & set(KINDS)) == len(lines)
    assert all(len(detail) < 3000 for _, detail in lines)
    kinds = {kind for kind, _ in lines}
    assert ("store-added" in kinds) == bool(new.by_name.keys() - old.by_name.keys())
    assert ("store-removed" in kinds) == bool(old.by_name.keys() - new.by_name.keys())
    assert said(new, catalogue("2", *after)) == []
