"""The replay's schedule, by properties, and how far a checkpoint's logs say that its query has read."""

from __future__ import annotations

import itertools
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.offset_logs import write_batch

from understudy_pipeline.aligned.offset import OffsetError
from understudy_pipeline.demo.committed import has_begun, planned_until, read_until
from understudy_pipeline.demo.flights import Flight, flights_file, load_flights
from understudy_pipeline.demo.schedule import pace_of, slices, slices_due
from understudy_pipeline.inputs.records import Cursor

times = st.lists(st.integers(0, 20_000), max_size=80).map(sorted)
TICKS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 8)), max_size=60)
"""Real time that passes, and slices that Spark reads meanwhile."""


@given(times, st.integers(1, 5000), st.integers(0, 80))
def test_slices_hold_every_flight_once_and_none_reaches_over_its_slice(
    times_s: list[int], slice_s: int, first: int
) -> None:
    found = list(slices(times_s, slice_s, first=first))
    assert [at for start, end in found for at in range(start, end)] == list(range(first, len(times_s)))
    for start, end in found:
        assert len({times_s[at] // slice_s for at in range(start, end)}) == 1
    for (_, end), (start, _) in itertools.pairwise(found):
        assert times_s[end - 1] // slice_s < times_s[start] // slice_s


@given(st.floats(60, 1e7))
def test_the_pace_is_the_speed_up_in_slices_of_whole_minutes_or_more(speed_up: float) -> None:
    pace = pace_of(speed_up)
    assert pace.slice_s >= 60
    assert pace.slice_s / (pace.interval_ms / 1000) == pytest.approx(speed_up)
    assert pace.interval_ms <= 1000


@given(TICKS, st.integers(1, 8))
def test_there_is_never_more_unread_than_allowed_and_never_more_landed_than_due(
    ticks: list[tuple[int, int]], max_unread: int
) -> None:
    now, next_ms, unread, landed = 0.0, 0.0, 0, 0
    for passed, read in ticks:
        now += passed
        unread = max(0, unread - read)
        due = slices_due(now_ms=now, next_ms=next_ms, interval_ms=500, unread=unread, max_unread=max_unread)
        assert due.next_ms >= next_ms, "the schedule went back"
        next_ms, unread, landed = due.next_ms, unread + due.slices, landed + due.slices
        assert unread <= max_unread
        assert landed <= 1 + now // 500


@given(st.lists(st.integers(0, 700), max_size=60))
def test_without_a_hold_up_what_is_landed_depends_on_the_time_alone(passed: list[int]) -> None:
    now, next_ms, landed = 0.0, 0.0, 0
    for step in [0, *passed]:
        now += step
        due = slices_due(now_ms=now, next_ms=next_ms, interval_ms=500, unread=0, max_unread=100)
        next_ms, landed = due.next_ms, landed + due.slices
    assert landed == 1 + now // 500


def test_a_held_up_replay_goes_on_at_once_and_without_a_burst() -> None:
    held = slices_due(now_ms=60_000, next_ms=0, interval_ms=500, unread=5, max_unread=5)
    assert held == (0, 60_000)
    freed = slices_due(now_ms=60_100, next_ms=held.next_ms, interval_ms=500, unread=0, max_unread=5)
    assert freed == (1, 60_500)


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load_flights(flights_file())


@pytest.mark.parametrize("speed_up", [60, 3600, 7200, 100_000, 10_000_000])
def test_nearly_no_slice_of_the_year_has_more_flights_than_a_busy_one(flights: list[Flight], speed_up: float) -> None:
    pace = pace_of(speed_up)
    found = [end - start for start, end in slices([flight.event_time for flight in flights], pace.slice_s)]
    assert sum(count > pace.busy_slice for count in found) <= len(found) / 1000
    assert pace.busy_slice <= max(25, 4 * ceil(sum(found) / len(found)))


def test_what_is_read_is_what_the_newest_committed_batch_ended_with(tmp_path: Path) -> None:
    first = {0: Cursor("60000-7", 5, 60_000)}
    second = {**first, 1: Cursor("120000-9", 4, 120_000)}
    third = {0: Cursor("180000-20", 9, 180_000), 1: Cursor("180000-21", 6, 180_000)}
    assert (has_begun(tmp_path), read_until(tmp_path), planned_until(tmp_path)) == (False, {}, {})
    write_batch(tmp_path, 9, first, committed=False)
    assert (has_begun(tmp_path), read_until(tmp_path), planned_until(tmp_path)) == (True, {}, first)
    write_batch(tmp_path, 9, first)
    write_batch(tmp_path, 10, second)
    write_batch(tmp_path, 11, third, committed=False)
    assert (read_until(tmp_path), planned_until(tmp_path)) == (second, third)


def test_what_spark_will_refuse_is_left_to_spark(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {}, committed=False)
    for damaged in ("v1\n{damaged", "v1\n{}\n{damaged", ""):
        (tmp_path / "offsets" / "0").write_text(damaged)
        assert planned_until(tmp_path) == {}


def test_a_checkpoint_of_another_source_is_reported(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {})
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(OffsetError, match="an offset of a file source"):
        read_until(tmp_path)
