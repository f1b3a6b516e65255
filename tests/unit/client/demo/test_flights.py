"""The demo's input is the real table, whole, in order of event time, with its nulls."""

from __future__ import annotations

import pytest

from understudy.demo.flights import Flight, flights_file, load_flights

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
