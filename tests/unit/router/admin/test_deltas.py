"""Deltas: applied to what a viewer has they give exactly what there is, of one tick or many; noise is not sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.router.snapshots import APPLIED, NODES, assignments, finished, snapshot_of, stores_named, tables_with
from tests.support.router.tables import assigned, beat, task
from tests.support.services.event_streams import applied

from understudy_router.admin import grid
from understudy_router.admin.grid import Now, settled_ms
from understudy_router.admin.indicators import health_of
from understudy_router.admin.overview import MAX_KEPT, Overview, overview_of
from understudy_router.admin.safe_to_stop import losses_of_all
from understudy_router.admin.snapshot import Observed, Snapshot
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.messages import Applied
from understudy_shared.reads.bounds import NO_BOUND

PARTITIONS = 3
STORES = stores_named({"one": 0, "two": 0, "three": 3}, partitions=PARTITIONS)


def overview(snapshot: Snapshot, before: Overview | None = None) -> Overview:
    seen = Observed(snapshot)
    seen = replace(seen, health=replace(finished(health_of(seen)), since_us={}))
    return finished(overview_of(seen, finished(losses_of_all(snapshot, lambda _: NO_BOUND)), {}, before))


def in_order(document: dict[str, Any]) -> dict[str, Any]:
    rows = sorted(document["grid"]["rows"], key=lambda row: (row["store"], row["partition"]))
    return {**document, "grid": {**document["grid"], "rows": rows}}


def whole(found: Overview) -> dict[str, Any]:
    return in_order(orjson.loads(found.whole()))


def delta(before: Overview, now: Overview) -> dict[str, Any]:
    return dict(orjson.loads(now.since(before.tick)))


changes = st.lists(
    st.one_of(
        assignments(partitions=PARTITIONS, operators=(0, 3)),
        st.tuples(st.sampled_from(NODES), APPLIED, st.integers(5, 9)),
        st.sampled_from(NODES),
        st.sampled_from([5000.0, 10.0]),
    ),
    min_size=1,
    max_size=8,
)


def snapshots_of(what: list[Any]) -> Iterator[Snapshot]:
    """A cluster to which these things happen."""
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"), partitions=PARTITIONS)
    snapshot, now_ms = snapshot_of(tables, STORES), 0.0
    yield snapshot
    for number, change in enumerate(what, 2):
        match change:
            case dict():
                tables.assigned(assigned(change, order=(1, number), partitions=PARTITIONS), now_ms)
            case (node_id, said, end):
                heartbeat = beat(node_id, sequence=number, applied=said, end_version=end, partitions=PARTITIONS)
                tables.heard(heartbeat, age_ms=0, now_ms=now_ms)
            case str():
                if change in tables.nodes:
                    tables._died(tables._mark_dead(change, now_ms, "died", "killed"), now_ms)
            case float():
                now_ms += change
        snapshot = snapshot_of(tables, STORES, now_ms=now_ms, tick=number, index=snapshot.index)
        yield snapshot


def history_of(what: list[Any]) -> list[Overview]:
    """The overviews of that cluster."""
    found: list[Overview] = []
    for snapshot in snapshots_of(what):
        found.append(overview(snapshot, found[-1] if found else None))
    return found


CAME_AND_WENT: list[Any] = [{}, {"0_2": task(None, warmups=("a", "b"))}]


@settings(max_examples=60)
@example(CAME_AND_WENT, 3, 1)
@given(changes, st.sampled_from([grid.MAX_REPLICAS, 3]), st.integers(1, 4))
def test_a_viewer_that_applies_every_delta_sees_what_one_that_just_came_sees(
    what: list[Any], max_replicas: int, rows: int
) -> None:
    kept = (grid.MAX_REPLICAS, grid.WORST_ROWS)
    grid.MAX_REPLICAS, grid.WORST_ROWS = max_replicas, rows
    try:
        overviews = history_of(what)
    finally:
        grid.MAX_REPLICAS, grid.WORST_ROWS = kept
    for place, first in enumerate(overviews):
        for now in overviews[place:]:
            assert now.tick == first.tick or first.tick in now.known
            assert in_order(applied(whole(first), delta(first, now))) == whole(now)


@given(changes)
def test_the_document_in_slices_is_the_document(what: list[Any]) -> None:
    for each in history_of(what):
        assert finished(each.documents()) == orjson.loads(each.whole())


def test_nothing_is_sent_while_only_the_ages_of_what_is_well_change() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    first = overview(snapshot_of(tables, STORES))
    later = overview(snapshot_of(tables, STORES, now_ms=900, tick=2), first)
    found = delta(first, later)
    assert (set(found["sections"]) & {"nodes", "stores", "health"}, found["grid_rows"]) == (set(), [])
    old = overview(snapshot_of(tables, STORES, now_ms=2500, tick=3), later)
    assert "nodes" in delta(later, old)["sections"]


def test_the_lag_that_a_replica_once_had_is_not_shown_for_longer_than_some_seconds() -> None:
    def lagging(time_lag_ms: int, now_ms: float, before: Overview | None) -> Overview:
        late = beat("a", applied=Applied(version=7, time_lag_ms=time_lag_ms))
        tables = tables_with({"0_0": task("a")}, late, now_ms=now_ms)
        return overview(snapshot_of(tables, STORES, now_ms=now_ms, tick=int(now_ms)), before)

    first = lagging(286, 1, None)
    soon = lagging(3, 1000, first)
    later = lagging(3, 6000, soon)
    assert [whole(each)["lag"]["worst_ms"] for each in (first, soon, later)] == [286, 286, 3]
    assert whole(later)["stores"][0]["worst_lag_ms"] == 3


@given(changes)
def test_a_grid_that_is_kept_is_the_one_that_would_be_made_row_by_row(what: list[Any]) -> None:
    before = grid.NO_GRID
    for snapshot in snapshots_of(what):
        at = Now(snapshot.tick, snapshot.about.now_ms)
        now = finished(grid.grid_of(snapshot, before, at))
        row_by_row = finished(grid.grid_of(snapshot, replace(before, basis=None), at))
        assert replace(now, basis=None) == replace(row_by_row, basis=None)
        before = now


def test_while_all_nodes_say_the_same_no_row_is_made_or_compared() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    snapshot = snapshot_of(tables, STORES)
    first = overview(snapshot)
    later = overview(snapshot_of(tables, STORES, now_ms=900, tick=2, index=snapshot.index), first)
    assert later.grid is first.grid
    tables.heard(beat("a", sequence=2, exceptions={"0_0": Applied(version=5)}), age_ms=0, now_ms=1000)
    third = overview(snapshot_of(tables, STORES, now_ms=1000, tick=3, index=snapshot.index), later)
    assert [(row["store"], row["partition"]) for row in delta(later, third)["grid_rows"]] == [("one", 0), ("two", 0)]
    again = overview(snapshot_of(tables, STORES, now_ms=1100, tick=4, index=snapshot.index), third)
    assert delta(third, again)["grid_rows"] == []


def test_ages_are_alike_while_fresh_then_a_second_each_then_ever_longer() -> None:
    assert [settled_ms(ms) for ms in (None, 0, 1999, 2000, 2999, 59_999)] == [None, 0, 0, 2, 2, 59]
    assert settled_ms(60_000) == settled_ms(119_999) != settled_ms(120_000)
    steps = [settled_ms(ms) for ms in range(0, 7_200_000, 500)]
    assert steps == sorted(step for step in steps if step is not None)


def test_the_changes_of_the_last_ticks_are_known_and_a_look_without_a_change_is_no_tick() -> None:
    first = found = overview(snapshot_of(tables_with({}, beat("a", end_version=1)), STORES))
    for end in range(2, MAX_KEPT + 10):
        snapshot = snapshot_of(tables_with({}, beat("a", end_version=end)), STORES, tick=end)
        found = overview(snapshot, found)
        again = overview(replace(snapshot, about=replace(snapshot.about, tick=end)), found)
        assert (again.tick, again.known) == (found.tick, found.known)
    assert found.known == tuple(range(found.tick - MAX_KEPT, found.tick))
    assert first.tick not in found.known


def test_in_a_large_cluster_the_grid_has_the_worst_partitions() -> None:
    tables: Tables = tables_with(
        {f"0_{partition}": task("a", "b") for partition in range(8)},
        beat("a", partitions=8),
        beat("b", partitions=8, exceptions={"0_5": Applied(version=1), "0_6": Applied(version=None)}),
        partitions=8,
    )
    stores = stores_named({"one": 0}, partitions=8)
    kept = (grid.MAX_REPLICAS, grid.WORST_ROWS)
    grid.MAX_REPLICAS, grid.WORST_ROWS = 10, 2
    try:
        found = orjson.loads(overview(snapshot_of(tables, stores)).whole())["grid"]
    finally:
        grid.MAX_REPLICAS, grid.WORST_ROWS = kept
    assert (found["order"], found["total"]) == ("worst", 8)
    assert [row["partition"] for row in found["rows"]] == [6, 5]
