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

from understudy_router.admin import overview as module
from understudy_router.admin.indicators import health_of
from understudy_router.admin.overview import Overview, overview_of
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
@given(changes, st.sampled_from([module.MAX_REPLICAS, 3]), st.integers(1, 4))
def test_a_viewer_that_applies_every_delta_sees_what_one_that_just_came_sees(
    what: list[Any], max_replicas: int, rows: int
) -> None:
    kept = (module.MAX_REPLICAS, module.WORST_ROWS)
    module.MAX_REPLICAS, module.WORST_ROWS = max_replicas, rows
    try:
        overviews = history_of(what)
    finally:
        module.MAX_REPLICAS, module.WORST_ROWS = kept
    for place, first in enumerate(overviews):
        for now in overviews[place:]:
            assert now.tick == first.tick or first.tick in now.known
            assert in_order(applied(whole(first), delta(first, now))) == whole(now)


def test_nothing_is_sent_while_only_the_ages_of_what_is_well_change() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    first = overview(snapshot_of(tables, STORES))
    later = overview(snapshot_of(tables, STORES, now_ms=900, tick=2), first)
    found = delta(first, later)
    assert (set(found["sections"]) & {"nodes", "stores", "health"}, found["grid_rows"]) == (set(), [])
    old = overview(snapshot_of(tables, STORES, now_ms=2500, tick=3), later)
    assert "nodes" in delta(later, old)["sections"]


def test_in_a_large_cluster_the_grid_has_the_worst_partitions() -> None:
    tables: Tables = tables_with(
        {f"0_{partition}": task("a", "b") for partition in range(8)},
        beat("a", partitions=8),
        beat("b", partitions=8, exceptions={"0_5": Applied(version=1), "0_6": Applied(version=None)}),
        partitions=8,
    )
    stores = stores_named({"one": 0}, partitions=8)
    kept = (module.MAX_REPLICAS, module.WORST_ROWS)
    module.MAX_REPLICAS, module.WORST_ROWS = 10, 2
    try:
        found = orjson.loads(overview(snapshot_of(tables, stores)).whole())["grid"]
    finally:
        module.MAX_REPLICAS, module.WORST_ROWS = kept
    assert (found["order"], found["total"]) == ("worst", 8)
    assert [row["partition"] for row in found["rows"]] == [6, 5]
