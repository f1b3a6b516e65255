"""The last hour in memory: what was noted comes back, in order and bounded; what was not is null."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import finished, snapshot_of, stores_named, tables_with, worlds
from tests.support.router.tables import beat, task

from understudy_router.admin.rates import Rates
from understudy_router.admin.sampling import points_of
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.tables import Tables
from understudy_shared.page.series import FRESHNESS, LAG, READS, STEP_MS, History, Key, Number, Point, worst

WHOLE = Key(LAG)
numbers = st.none() | st.integers(0, 2**40)


@given(st.lists(st.tuples(st.integers(1, 400), numbers, numbers), max_size=60), st.integers(1, 60))
def test_a_series_gives_back_what_was_noted_in_its_last_minutes(
    notes: list[tuple[int, Number, Number]], minutes: int
) -> None:
    history, step, noted = History(), 1000, dict[int, Point]()
    for gap, first, second in notes:
        step += gap
        noted[step] = Point(first, second)
        history.note(step * STEP_MS + 7, {WHOLE: noted[step]})
    lag, time_lag = history.series(WHOLE, step * STEP_MS + 9999, minutes)
    expected = [noted.get(step - back, Point(None, None)) for back in reversed(range(minutes * 6))]
    assert lag == [point.first for point in expected]
    assert time_lag == [point.second for point in expected]


@given(worlds())
def test_the_points_of_a_snapshot_are_those_of_its_worst_live_replicas(world: tuple[Tables, Stores, float]) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    points = finished(points_of(snapshot, Rates(per_s=3.0)))
    assert points[Key(FRESHNESS)] == snapshot.freshness
    assert points[Key(READS)].first == 3.0
    index = snapshot.index
    for route in index.routes:
        lags: list[int | None] = []
        for partition in range(route.partitions):
            place = index.tasks_of_store(route)[partition]
            mine = [
                snapshot.facts(replica).offset_lag
                for replica in index.holders(place)
                if index.role[replica] != 2 and snapshot.facts(replica).standing.is_live
            ]
            assert points[Key(LAG, route.name, partition)].first == worst(mine)
            lags += mine
        assert points[Key(LAG, route.name)].first == worst(lags)


def test_partitions_have_series_as_far_as_there_is_room_and_the_whole_and_the_stores_always() -> None:
    stores = stores_named({"one": 0}, partitions=1000)
    tables = tables_with({f"0_{partition}": task("a") for partition in range(1000)}, beat("a"), partitions=1000)
    points = finished(points_of(snapshot_of(tables, stores), Rates(), max_series=10))
    assert list(points)[:4] == [Key(LAG), Key(FRESHNESS), Key(READS), Key(LAG, "one")]
    assert len(points) < 1000
