"""Trends over batches, the pace of commits, rates of reads by router and by store, restores; and the last hour in
memory: what was noted comes back, in order and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import finished, snapshot_of, stores_named, tables_with, worlds
from tests.support.router.tables import beat, task

from understudy_router.admin.rates import (
    MIN_FAILED_CALLS,
    LagSample,
    Pace,
    Rates,
    ReadRates,
    StoreReadRates,
    StoreServed,
    trend_of,
)
from understudy_router.admin.sampling import points_of
from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.tables import Tables
from understudy_router.forwarding.answer_ages import ServedReads, StoreReads
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.http.problems import REFUSED_BY_BOUND
from understudy_shared.page.series import FRESHNESS, LAG, READS, STEP_MS, History, Key, Number, Point, worst
from understudy_shared.telemetry.metrics import RequestCounts


def seen(lags: Sequence[int | None], *, every_ms: float = 1000, batches: int = 1) -> list[LagSample]:
    return [LagSample(place * every_ms, 100 + place * batches, lag) for place, lag in enumerate(lags)]


@pytest.mark.parametrize(
    ("lags", "direction"),
    [
        ([0, 1, 0, 1, 0, 1, 0, 1], "steady"),
        ([5, 5, 5, 5], "steady"),
        ([0, 2, 4, 6, 8], "growing"),
        ([0, 0, 0, 0, 0, 8], "steady"),
        ([0, 0, 0, 0, 8, 6, 5, 3], "steady"),
        ([0, 9, 8, 8, 7, 7], "steady"),
        ([0, 2, 1, 3, 2, 4, 3, 5], "growing"),
        ([8, 6, 4, 2], "shrinking"),
        ([3, 2, 1, 0], "steady"),
        ([1, None, 1, 1], "unknown"),
        ([4, 2], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_trend_is_the_slope_over_several_batches_and_no_sawtooth_or_step(
    lags: list[int | None], direction: str
) -> None:
    assert trend_of(seen(lags)).direction == direction


def test_the_pace_is_the_time_between_commits_however_seldom_one_looks() -> None:
    pace = Pace()
    for look in range(5):
        pace.see(look * 10_000.0, "l1", 100 + look * 20)
    assert pace.usual_ms == 500
    assert pace.silent_ms(45_000) == 5000
    pace.see(50_000, "l1", 180)
    assert pace.silent_ms(50_000) == 10_000
    pace.see(60_000, "l2", 500)
    assert pace.usual_ms is None
    assert Pace().silent_ms(5) == 0


@dataclass
class Served:
    answers: int = 0
    errors: int = 0
    refused_by_bound: int = 0
    violations: int = 0
    staleness_ms: Any = field(default_factory=lambda: ReadCounts((10, 100), (3, 2, 1)))
    stores: dict[str, Any] = field(default_factory=dict)


@dataclass
class ReadCounts:
    bounds: Sequence[float]
    counts: Sequence[int]


def test_rates_are_those_of_the_last_minute_and_unknown_before_there_are_two_looks() -> None:
    served = Served()
    reads = ReadRates(cast(ServedReads, served), {}, RequestCounts())
    assert reads.see(0).per_s is None
    served.answers, served.errors, served.refused_by_bound = 900, 10, 100
    rates = reads.see(10_000)
    assert (rates.per_s, rates.errors_per_s, rates.within_bound_percent) == (90.0, 1.0, 90.0)
    assert rates.error_percent == 0.99
    for second in range(11, 200):
        rates = reads.see(second * 1000.0)
    assert (rates.per_s, rates.within_bound_percent, rates.error_percent) == (0.0, None, None)
    assert reads.staleness() == {"le_ms": [10, 100, None], "counts": [3, 2, 1]}


def test_the_share_of_other_reads_than_lookups_that_failed_is_known_by_kind_and_leaves_mistakes_out() -> None:
    requests = RequestCounts()
    reads = ReadRates(cast(ServedReads, Served()), {}, requests)

    def end(operation: str, outcome: str, times: int, store: str = "one") -> None:
        for _ in range(times):
            requests.of(operation, store).count(outcome)

    end("scan", "deadline", 100)
    assert reads.see(0).failed_requests == {}
    end("scan", "answered", 11)
    end("count", "answered", 1, store="two")
    end("scan", "overloaded", 2)
    end("history", "no-acceptable-replica", 1)
    end("windows", "internal", 1, store="two")
    for mistake in ("bad-bound", "rate-limited", "forbidden", "version-gone", "cancelled", REFUSED_BY_BOUND):
        end("scan", mistake, 50)
        end("watch", mistake, 50)
    end("snapshot", "overloaded", MIN_FAILED_CALLS - 1)
    end("export", "store-error", MIN_FAILED_CALLS)
    end("lookup", "deadline", 50)
    assert reads.see(10_000).failed_requests == {CallKind.SCAN: 25.0, CallKind.EXPORT: 100.0}
    for second in range(11, 200):
        failed = reads.see(second * 1000.0).failed_requests
    assert failed == {}


class Reads(StoreReads):
    def __init__(self, *, answers: int = 0, refused_by_bound: int = 0) -> None:
        super().__init__()
        self.answers, self.refused_by_bound = answers, refused_by_bound

    def read(self, *ages_ms: float) -> None:
        for age_ms in ages_ms:
            self.answers += 1
            self.staleness_ms.observe(age_ms)


def test_the_share_within_the_bound_counts_what_was_refused_by_it() -> None:
    reads, rates = Reads(), StoreReadRates()
    rates.see(0, {"one": reads})
    reads.read(3, 3, 20)
    reads.refused_by_bound = 1
    assert rates.see(1000, {"one": reads}) == {"one": StoreServed(75.0, 25)}


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
def test_the_points_of_a_snapshot_are_those_of_its_worst_live_replicas(
    world: tuple[Tables, CatalogueStores, float],
) -> None:
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
