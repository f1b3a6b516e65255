"""Trends over batches, the pace of commits, rates of reads, restores and events: from what was seen a moment ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import finished, snapshot_of, stores_named, tables_with
from tests.support.router.tables import beat, task

from understudy_router.admin.events import MAX_SHOWN, EventLog
from understudy_router.admin.node_reports import RestoreTracker
from understudy_router.admin.reads_served import ReadRates
from understudy_router.admin.trends import LagSample, Pace, Trends, trend_of
from understudy_router.cluster.tables import MAX_EVENTS
from understudy_router.forwarding.served import ServedReads
from understudy_shared.bus.messages import Applied, Restore

ONE = stores_named({"one": 0}, partitions=1)


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


def test_a_trend_says_when_a_lag_that_shrinks_will_be_gone() -> None:
    assert trend_of(seen([20, 18, 16, 14, 12])).eta_s == 6.0
    assert trend_of(seen([2, 4, 6, 8])).eta_s is None


def test_without_commits_a_trend_needs_half_a_minute() -> None:
    assert trend_of(seen([20, 15, 10, 5], batches=0)).direction == "unknown"
    assert trend_of(seen([20, 15, 10, 5], batches=0, every_ms=10_000)).direction == "shrinking"


@given(st.lists(st.integers(0, 50), min_size=4, max_size=30))
def test_the_time_until_a_lag_is_gone_is_known_only_while_it_shrinks(lags: list[int]) -> None:
    trend = trend_of(seen(lags))
    assert (trend.eta_s is not None) == (trend.direction == "shrinking")
    assert trend.eta_s is None or trend.eta_s > 0


def test_what_is_seen_is_kept_for_a_minute_and_dropped_when_the_history_is_cut_back() -> None:
    trends = Trends()
    for second in range(120):
        trends.see(second * 1000.0, second, [("one", second)])
    assert trends.of("one").direction == "growing"
    assert len(trends._seen["one"]) <= 64
    trends.see(121_000.0, 3, [("one", 0), ("two", 0)])
    assert trends.of("one").direction == "unknown"
    trends.see(122_000.0, 4, [("two", 0)])
    assert "one" not in trends._seen


@given(st.lists(st.sampled_from([None, 0, 3, 9]), max_size=100))
def test_the_trends_of_many_stores_come_in_slices_and_are_those_of_each(lags: list[int | None]) -> None:
    trends, names = Trends(), [f"store-{number}" for number in range(len(lags))]
    for look in range(4):
        changes = (None if lag is None else lag * look for lag in lags)
        trends.see(look * 1000.0, 10 * look, zip(names, changes, strict=True))
    steps = trends.of_all(names)
    assert len(list(steps)) == len(names)
    assert finished(trends.of_all(names)) == {name: trends.of(name) for name in names}


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
    reads = ReadRates(cast(ServedReads, served))
    assert reads.see(0).per_s is None
    served.answers, served.errors, served.refused_by_bound = 900, 10, 100
    rates = reads.see(10_000)
    assert (rates.per_s, rates.errors_per_s, rates.within_bound_percent) == (90.0, 1.0, 90.0)
    assert rates.error_percent == 0.99
    for second in range(11, 200):
        rates = reads.see(second * 1000.0)
    assert (rates.per_s, rates.within_bound_percent, rates.error_percent) == (0.0, None, None)
    assert reads.staleness() == {"le_ms": [10, 100, None], "counts": [3, 2, 1]}


def test_a_restore_has_a_stage_bytes_and_a_rate_and_unknown_what_its_node_does_not_say() -> None:
    restoring = RestoreTracker()

    def look(done: int, now_ms: float, sequence: int) -> dict[str, object]:
        applied = Applied(
            version=None, state="CREATED", restore=Restore(stage="files", done_bytes=done, total_bytes=400)
        )
        tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b", applied=applied), now_ms=now_ms)
        snapshot = snapshot_of(tables, ONE, now_ms=now_ms, tick=sequence)
        (found,) = finished(restoring.see(snapshot))
        number = snapshot.index.number_of["b"]
        assert snapshot.holders[number].facts.restored_percent == done / 4
        return found

    assert look(100, 0, 1)["bytes_per_s"] is None
    second = look(200, 2000, 2)
    assert (second["node_id"], second["task"], second["stores"]) == ("b", "0_0", ["one"])
    assert (second["stage"], second["done_bytes"], second["total_bytes"]) == ("files", 200, 400)
    assert second["bytes_per_s"] == 50
    assert look(10, 4000, 3)["bytes_per_s"] is None
    old = tables_with({"0_0": task("b")}, beat("b", applied=Applied(version=1, state="RESTORING")))
    (found,) = finished(restoring.see(snapshot_of(old, ONE)))
    assert (found["stage"], found["done_bytes"], found["bytes_per_s"]) == ("unknown", None, None)


def test_the_restores_of_a_large_cluster_are_looked_for_in_slices() -> None:
    count = 300
    stores = stores_named({"one": 0}, partitions=count)
    far = {f"0_{partition}": Applied(version=1) for partition in range(0, count, 2)}
    waiting = {f"0_{count - 1}": Applied(version=1, state="RESTORING")}
    tables = tables_with(
        {f"0_{partition}": task("a", "b") for partition in range(count)},
        beat("a", partitions=count, exceptions=far),
        beat("b", partitions=count, exceptions=waiting),
        partitions=count,
    )
    snapshot = snapshot_of(tables, stores)
    assert len(list(RestoreTracker().see(snapshot))) >= count
    (found,) = finished(RestoreTracker().see(snapshot))
    assert (found["node_id"], found["task"]) == ("b", f"0_{count - 1}")


def test_events_keep_their_numbers_and_times_and_the_newest_come_first() -> None:
    tables = tables_with({"0_0": task("a")}, beat("a"))
    log = EventLog()
    first = log.see(snapshot_of(tables, ONE, now_ms=0))
    assert [each["id"] for each in first] == list(range(len(first), 0, -1))
    tables.hop_failed("a", 10, "refused")
    second = log.see(snapshot_of(tables, ONE, now_ms=20))
    assert (second[0]["event"], second[0]["id"]) == ("suspect", len(first) + 1)
    assert second[1:] == first
    assert log.see(snapshot_of(tables, ONE, now_ms=30)) == second


def test_events_that_were_lost_leave_a_gap_in_the_numbers() -> None:
    tables = tables_with({"0_0": task("a")}, beat("a"))
    log = EventLog()
    last = log.see(snapshot_of(tables, ONE))[0]["id"]
    for number in range(MAX_EVENTS + 5):
        tables.bus_lost(number, "away")
        tables.bus_back(number)
    found = log.see(snapshot_of(tables, ONE, now_ms=5))
    assert len(found) == MAX_SHOWN
    assert isinstance(last, int)
    assert found[-1]["id"] == last + MAX_EVENTS + MAX_EVENTS - MAX_SHOWN + 1
