"""The replay: pure schedule by properties, and the folder it fills, with a clock that is moved by hand."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark_queries import wait_until

from understudy_pipeline.demo.flights import Flight
from understudy_pipeline.demo.replay import MAX_UNREAD, Replay, landed_flights, unread_files
from understudy_pipeline.demo.schedule import Pace, files_due, pace_of, slices
from understudy_shared.clock import ManualClock

PACE = Pace(slice_s=60, interval_ms=500)
times = st.lists(st.integers(0, 20_000), max_size=80).map(sorted)
TICKS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 8)), max_size=60)
"""Real time that passes, and files that Spark reads meanwhile."""


class HurriedClock(ManualClock):
    """Each look at it finds it half a minute later."""

    def monotonic_ms(self) -> float:
        self.advance(30_000)
        return super().monotonic_ms()


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
        due = files_due(now_ms=now, next_ms=next_ms, interval_ms=500, unread=unread, max_unread=max_unread)
        assert due.next_ms >= next_ms, "the schedule went back"
        next_ms, unread, landed = due.next_ms, unread + due.files, landed + due.files
        assert unread <= max_unread
        assert landed <= 1 + now // 500


@given(st.lists(st.integers(0, 700), max_size=60))
def test_without_a_hold_up_what_is_landed_depends_on_the_time_alone(passed: list[int]) -> None:
    now, next_ms, landed = 0.0, 0.0, 0
    for step in [0, *passed]:
        now += step
        due = files_due(now_ms=now, next_ms=next_ms, interval_ms=500, unread=0, max_unread=100)
        next_ms, landed = due.next_ms, landed + due.files
    assert landed == 1 + now // 500


def test_a_held_up_replay_goes_on_at_once_and_without_a_burst() -> None:
    held = files_due(now_ms=60_000, next_ms=0, interval_ms=500, unread=5, max_unread=5)
    assert held == (0, 60_000)
    freed = files_due(now_ms=60_100, next_ms=held.next_ms, interval_ms=500, unread=0, max_unread=5)
    assert freed == (1, 60_500)


@contextmanager
def running(replay: Replay) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=replay.run)
    thread.start()
    try:
        yield thread
    finally:
        replay.stop()
        thread.join(10)


def test_a_spark_that_reads_nothing_is_not_drowned_and_one_that_reads_gets_everything_in_order(tmp_path: Path) -> None:
    clock, flights = ManualClock(), _flights(40)
    replay = Replay(flights, tmp_path, pace=PACE, clock=clock)
    read: list[Path] = []
    found: list[int] = []

    def move() -> bool:
        clock.advance(10_000)
        return len(unread_files(tmp_path)) == MAX_UNREAD

    with running(replay) as thread:
        wait_until(move, what="a full folder", limit_s=20)
        assert replay.landed == MAX_UNREAD

        def take() -> bool:
            clock.advance(10_000)
            for path in sorted(unread_files(tmp_path), key=lambda path: path.stat().st_mtime_ns):
                read.append(path)
                found.extend(orjson.loads(line)["flight"] for line in path.read_bytes().splitlines())
                path.unlink()
            return not thread.is_alive()

        wait_until(take, what="the end of the replay", limit_s=20)
        take()
    assert found == [flight.flight for flight in flights]
    assert sorted(read) == read


def test_files_never_share_a_modification_time_in_milliseconds(tmp_path: Path) -> None:
    assert Replay(_flights(10), tmp_path, pace=PACE, clock=HurriedClock()).run()
    stamps = [path.stat().st_mtime_ns // 1_000_000 for path in sorted(unread_files(tmp_path))]
    assert len(stamps) == 10
    assert all(earlier < later for earlier, later in itertools.pairwise(stamps))


@pytest.mark.parametrize("survives", ["the files", "the note", "both"])
def test_a_replay_that_is_started_again_goes_on_behind_the_last_flight(tmp_path: Path, survives: str) -> None:
    flights = _flights(10)
    assert Replay(flights[:4], tmp_path, pace=Pace(120, 500), clock=HurriedClock()).run()
    if survives == "the files":
        (tmp_path / ".replayed").unlink()
    if survives == "the note":
        for path in unread_files(tmp_path):
            path.unlink()
    before = set(unread_files(tmp_path))
    assert landed_flights(tmp_path) == 4
    again = Replay(flights, tmp_path, pace=PACE, clock=HurriedClock())
    assert again.run()
    lines = [line for path in sorted(set(unread_files(tmp_path)) - before) for line in path.read_bytes().splitlines()]
    assert [orjson.loads(line)["flight"] for line in lines] == [4, 5, 6, 7, 8, 9]


def test_a_stopped_replay_says_that_it_was_not_the_end(tmp_path: Path) -> None:
    replay = Replay(_flights(10), tmp_path, pace=PACE, clock=ManualClock())
    replay.stop()
    assert not replay.run()
    assert replay.landed == 1


def _flights(count: int) -> list[Flight]:
    """One a minute."""
    return [Flight(60 * at, "UA", at, None, "EWR", "IAH", None, None, None) for at in range(count)]
