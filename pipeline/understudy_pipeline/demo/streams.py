"""Flights as entries of Redis Streams: idempotent writes, and trimming of entries that the query has read.

An airport's flights are in one stream. An entry's ID is `<event time in ms>-<place in the table>`. IDs ascend, so Redis
refuses an entry that it has already. A stream keeps its newest ID when entries are trimmed, so that ID says how far the
replay has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from zlib import crc32

import redis
from redis.exceptions import RedisError, ResponseError

from understudy_pipeline.demo.flights import Flight
from understudy_pipeline.inputs.records import Cursor
from understudy_shared.bus.redis_connection import bus_error, checked
from understudy_shared.bus.redis_pools import thread_pool

TOPIC = "flights"

DEADLINE_MS = 2000
"""Deadline of one call. A slice at the greatest speed has tens of thousands of flights."""

_ALREADY_WRITTEN = re.compile(r"The ID specified in XADD is equal or smaller")
_NO_STREAM = "no such key"


class FlightStreams:
    """The streams `flights:0` to `flights:{partitions - 1}`. Not thread-safe.

    Every method but `close` raises BusError if Redis does not answer or refuses a command.
    """

    def __init__(self, url: str, *, partitions: int) -> None:
        """Prepare without connecting. Raises SettingsError for a URL that is not a Redis URL."""
        self._url = url
        pool = checked(url, lambda: thread_pool(url, timeout_s=DEADLINE_MS / 1000))
        checked(url, lambda: pool.connection_class(**pool.connection_kwargs))
        self._client: redis.Redis = redis.Redis(connection_pool=pool)
        self._keys = [f"{TOPIC}:{partition}" for partition in range(partitions)]

    def landed(self) -> int:
        """Count the flights of the table that were written, including trimmed ones."""
        with self._translated("looking for flights"):
            return max(map(self._landed, self._keys))

    def restore(self, read: Mapping[int, Cursor]) -> bool:
        """Recreate missing streams as if their read entries had been trimmed. Returns whether any was missing.

        So after Redis was emptied the replay can continue, and the query's source finds no loss.
        """
        with self._translated("looking for flights"):
            gone = [partition for partition in read if self._landed(self._keys[partition]) <= place_of(read[partition])]
        with self._translated("restoring streams"), self._client.pipeline(transaction=True) as commands:
            for partition in gone:
                key, cursor = self._keys[partition], read[partition]
                commands.delete(key)
                commands.xadd(key, {"key": ""}, id=cursor.offset)
                commands.xtrim(key, maxlen=0, approximate=False)
                added = ("ENTRIESADDED", cursor.ordinal, "MAXDELETEDID", "0-0")
                commands.execute_command("XSETID", key, cursor.offset, *added)  # type: ignore[no-untyped-call]
            commands.execute()
        return bool(gone)

    def land(self, flights: Sequence[Flight], start: int, end: int) -> None:
        """Write the flights at `start` to `end - 1` of the table in one transaction. Existing entries stay."""
        with self._translated("writing flights"), self._client.pipeline(transaction=True) as commands:
            for place in range(start, end):
                flight = flights[place]
                key = self._keys[partition_of(flight.origin, len(self._keys))]
                entry = {"key": flight.origin, "value": flight.json_line().rstrip()}
                commands.xadd(key, entry, id=entry_id(flight, place))  # type: ignore[arg-type]  # its dict is invariant
            for reply in commands.execute(raise_on_error=False):
                if isinstance(reply, RedisError) and not _ALREADY_WRITTEN.search(str(reply)):
                    raise reply

    def trim(self, read: Mapping[int, Cursor]) -> int:
        """Remove the entries that were read. Returns how many are left."""
        with self._translated("trimming flights"), self._client.pipeline(transaction=False) as commands:
            for partition, cursor in read.items():
                commands.xtrim(self._keys[partition], minid=_following(cursor), approximate=False)
            for key in self._keys:
                commands.xlen(key)
            return sum(commands.execute()[-len(self._keys) :])

    def clear(self) -> None:
        """Remove the streams, and with them the progress of the replay."""
        with self._translated("removing flights of another run"):
            self._client.delete(*self._keys)

    def close(self) -> None:
        """Give the connection back."""
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
            raise bus_error(error, doing=doing, url=self._url, timeout_ms=DEADLINE_MS) from error


def partition_of(origin: str, partitions: int) -> int:
    """Return the number of the stream that has the flights of an airport."""
    return crc32(origin.encode()) % partitions


def entry_id(flight: Flight, place: int) -> str:
    """Return the entry ID of the flight at `place` in the table."""
    return f"{flight.event_time * 1000}-{place}"


def place_of(cursor: Cursor) -> int:
    """Return the place in the table of the last flight that was read."""
    return _place(cursor.offset)


def _place(entry: str) -> int:
    return int(entry.partition("-")[2])


def _following(cursor: Cursor) -> str:
    """Return the least possible ID behind the last entry that was read."""
    return f"{cursor.offset.partition('-')[0]}-{place_of(cursor) + 1}"
