"""The last hour in memory: what was noted comes back, in order and bounded; what was not is null."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import finished, snapshot_of, stores_named, tables_with, worlds
from tests.support.router.tables import beat, task

from understudy_router.admin.history import (
    FRESHNESS,
    LAG,
    MAX_SERIES,
    POINTS,
    READS,
    STEP_MS,
    History,
    Key,
    Number,
    Point,
    points_of,
    thinned,
    worst,
)
from understudy_router.admin.reads_served import Rates
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.messages import Applied, Freshness

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


def test_there_are_never_more_series_than_there_may_be_and_those_given_first_have_room() -> None:
    history = History(max_series=3)
    points = {Key(LAG, "s", number): Point(number, None) for number in range(5)}
    history.note(0, points)
    assert len(history) == 3
    assert Key(LAG, "s", 2) in history
    assert Key(LAG, "s", 3) not in history
    history.note(POINTS * STEP_MS + STEP_MS, {Key(LAG, "other"): Point(1, 1)})
    assert len(history) == 1


def test_a_point_takes_sixteen_bytes_and_all_of_them_twelve_megabytes() -> None:
    history = History()
    history.note(0, {Key(LAG, "s", number): Point(0, 0) for number in range(MAX_SERIES + 10)})
    size = sum(sys.getsizeof(ring._values) for ring in history._rings.values())
    assert size / MAX_SERIES / POINTS < 17
    assert size < 12.5e6


def test_one_point_is_due_in_each_step() -> None:
    history = History()
    assert history.is_due(5)
    history.note(5, {WHOLE: Point(1, 1)})
    assert not history.is_due(STEP_MS - 1)
    assert history.is_due(STEP_MS)
    history.note(STEP_MS, {WHOLE: Point(2, 2)})
    history.note(STEP_MS + 1, {WHOLE: Point(3, 3)})
    assert history.series(WHOLE, STEP_MS, 1)[0][-2:] == [1, 3]


def test_points_that_are_drawn_together_are_as_bad_as_their_worst_and_unknown_when_one_is() -> None:
    assert thinned([1, 5, 2, None, 0, 0], 3) == [5, None, 0]
    assert thinned([1, 2], 60) == [1, 2]
    assert thinned([], 60) == []
    assert worst([]) is None


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


def test_freshness_is_the_median_of_halves_and_the_worst_of_tails_of_the_nodes_that_say_it() -> None:
    said = [beat("a", freshness=Freshness(p50_ms=8, p99_ms=20)), beat("b", freshness=Freshness(p50_ms=2, p99_ms=90))]
    tables = tables_with({"0_0": task("a", "b", "c")}, *said, beat("c", applied=Applied(version=7)))
    stores = stores_named({"one": 0}, partitions=1)
    assert snapshot_of(tables, stores).freshness == (8, 90)
    assert snapshot_of(Tables(), stores).freshness == (None, None)
