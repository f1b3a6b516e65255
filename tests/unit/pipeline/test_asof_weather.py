"""The weather is the real table, whole, in order of event time, with its nulls."""

from __future__ import annotations

import pytest
from tests.support.spark.weather import Weather, load_weather

FIRST_HOUR = 1_357_020_000
"""2013-01-01T06:00:00Z: one o'clock in New York."""


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
