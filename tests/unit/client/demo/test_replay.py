"""How far a checkpoint's log says that the demo's query reads, and how many flights a write has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.spark.offset_logs import write_batch

from understudy.demo.flights import LAND_EVERY_MS, Flight, busy_flights, flights_file, load_flights, planned
from understudy_aligned.inputs.records import Cursor
from understudy_aligned.offset import OffsetError


@pytest.mark.full
def test_nearly_no_write_has_more_flights_than_a_busy_one() -> None:
    times_s = [flight.event_time for flight in load_flights(flights_file())]
    for speed_up in (60, 3600, 100_000):
        slice_s = max(60, int(speed_up * LAND_EVERY_MS / 1000))
        counts = dict.fromkeys((time_s // slice_s for time_s in times_s), 0)
        for time_s in times_s:
            counts[time_s // slice_s] += 1
        assert sum(count > busy_flights(speed_up) for count in counts.values()) <= len(counts) / 1000


def test_what_is_planned_is_what_the_newest_logged_batch_ends_with(tmp_path: Path) -> None:
    assert planned(tmp_path) is None
    write_batch(tmp_path, 9, {0: Cursor("60000-7", 5, 60_000)})
    assert planned(tmp_path) == 8
    write_batch(tmp_path, 10, {0: Cursor("60000-7", 5, 60_000), 1: Cursor("120000-9", 4, 120_000)}, committed=False)
    assert planned(tmp_path) == 10


def test_a_checkpoint_of_another_source_is_reported(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {})
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(OffsetError, match="an offset of a file source"):
        planned(tmp_path)


FIRST_DEPARTURE = 1_357_034_400 + 15 * 60
"""2013-01-01T10:15:00Z: 05:15 in New York."""


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load_flights(flights_file())


@pytest.mark.full
def test_every_flight_and_every_null_of_the_table_is_there(flights: list[Flight]) -> None:
    assert len(flights) == 336_776
    assert sum(flight.dep_time is None for flight in flights) == 8255
    assert sum(flight.tailnum is None for flight in flights) == 2512
    assert sum(flight.dep_delay is None for flight in flights) == 8255
    assert {flight.origin for flight in flights} == {"EWR", "JFK", "LGA"}


def test_flights_are_in_order_of_event_time_and_those_of_one_minute_in_the_tables_order(flights: list[Flight]) -> None:
    times = [flight.event_time for flight in flights]
    assert times == sorted(times)
    assert times[0] == FIRST_DEPARTURE
    # The departures of six o'clock: lines 6, 8, 9 and 10 of the table, and line 843.
    numbers = [flight.flight for flight in flights if flight.event_time == FIRST_DEPARTURE + 45 * 60]
    assert numbers[:4] == [461, 507, 5708, 79]
    assert numbers[-1] == 125
