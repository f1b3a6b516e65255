"""The replay over a real server: flights once each and in order, and again after they were lost.

The clock is moved by hand, and a checkpoint's logs are written in place of a query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.clock import ManualClock
from tests.support.spark.offset_logs import write_batch
from tests.support.spark.queries import wait_until

from understudy.demo.flights import TOPIC, Flight, FlightStreams, Replay, entry_id, partition_of
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.redis_streams import RedisConfig, RedisInput
from understudy_shared.base.errors import SettingsError

PARTITIONS = 2
PER_MINUTE = 20
SPEED_UP = 120
LIMIT_S = 30
ORIGINS = ("EWR", "JFK", "LGA")

Entry = tuple[str, bytes, bytes]
"""ID, key, value."""


class HurriedClock(ManualClock):
    """Each look at it finds it half a minute later."""

    def monotonic_ms(self) -> float:
        self.advance(30_000)
        return super().monotonic_ms()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def streams(server: RedisServer) -> Iterator[FlightStreams]:
    with closing(FlightStreams(server.url, partitions=PARTITIONS)) as opened:
        yield opened


def flights_of(minutes: int) -> list[Flight]:
    """Some flights every minute, from all airports in turn."""
    return [
        Flight(60 * minute, "UA", PER_MINUTE * (minute - 1) + at, None, ORIGINS[at % 3], "IAH", None, None, None)
        for minute in range(1, minutes + 1)
        for at in range(PER_MINUTE)
    ]


def entries(server: RedisServer, partition: int) -> list[Entry]:
    found = server.command("XRANGE", f"flights:{partition}", "-", "+")
    assert isinstance(found, list)
    return [(entry.decode(), *_key_and_value(fields)) for entry, fields in found]


def places(server: RedisServer) -> list[int]:
    """Where in the table the flights are that lie in the streams."""
    found = [entry for partition in range(PARTITIONS) for entry in entries(server, partition)]
    return sorted(int(entry.partition("-")[2]) for entry, _, _ in found)


def cursors_at(flights: list[Flight], end: int) -> dict[int, Cursor]:
    """Where a query stands that has read the first flights of the table."""
    found: dict[int, Cursor] = {}
    for place, flight in enumerate(flights[:end]):
        partition = partition_of(flight.origin, PARTITIONS)
        ordinal = found[partition].ordinal + 1 if partition in found else 1
        found[partition] = Cursor(entry_id(flight, place), ordinal, flight.event_time * 1000)
    return found


@contextmanager
def running(replay: Replay) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=replay.run)
    thread.start()
    try:
        yield thread
    finally:
        replay.stop()
        thread.join(20)


def land_all(streams: FlightStreams, flights: list[Flight], checkpoint: Path) -> Replay:
    """A replay that landed everything and was stopped before anything was read."""
    replay = Replay(flights, streams, checkpoint, speed_up=SPEED_UP, clock=HurriedClock())
    assert replay.prepare()
    with running(replay):
        wait_until(lambda: replay.landed == len(flights), what="all flights", limit_s=LIMIT_S)
    return replay


def test_an_entry_is_a_flight_and_the_flights_of_an_airport_are_in_one_stream(
    server: RedisServer, streams: FlightStreams
) -> None:
    flights = flights_of(3)
    streams.land(flights, 0, len(flights))
    for partition in range(PARTITIONS):
        expected = [
            (entry_id(flight, place), flight.origin.encode(), flight.json_line().strip())
            for place, flight in enumerate(flights)
            if partition_of(flight.origin, PARTITIONS) == partition
        ]
        assert entries(server, partition) == expected
        assert expected


def test_a_replay_that_is_started_again_goes_on_behind_the_last_flight(
    server: RedisServer, streams: FlightStreams, tmp_path: Path
) -> None:
    flights = flights_of(6)
    land_all(streams, flights[:70], tmp_path)
    write_batch(tmp_path, 0, {}, committed=False)
    again = Replay(flights, streams, tmp_path, speed_up=2 * SPEED_UP, clock=HurriedClock())
    assert again.prepare()
    assert again.landed == 70
    with running(again) as thread:
        wait_until(lambda: not thread.is_alive(), what="the end of the replay", limit_s=LIMIT_S)
    assert places(server) == list(range(len(flights)))


@pytest.mark.parametrize("deleted", [["flights:0", "flights:1"], ["flights:0"]], ids=["emptied", "one"])
def test_after_streams_were_lost_a_query_that_is_started_again_misses_nothing_and_reads_nothing_twice(
    server: RedisServer, streams: FlightStreams, tmp_path: Path, deleted: list[str]
) -> None:
    flights = flights_of(6)
    read, planned = cursors_at(flights, 31), cursors_at(flights, 55)
    streams.land(flights, 0, 70)
    write_batch(tmp_path, 4, read)
    write_batch(tmp_path, 5, planned, committed=False)
    server.command("DEL", *deleted)
    replay = Replay(flights, streams, tmp_path, speed_up=SPEED_UP, clock=HurriedClock())
    assert replay.prepare()
    assert replay.landed >= 55, "the planned batch is read before the replay runs"
    reader = RedisInput(RedisConfig(server.url, (TOPIC,), PARTITIONS))
    with closing(reader), running(replay):
        reader.seek({TopicPartition(TOPIC, at): cursor for at, cursor in read.items()}, timeout_ms=5000)
        wait_until(lambda: replay.landed == len(flights), what="all flights", limit_s=LIMIT_S)
        fetched = reader.fetch({TopicPartition(TOPIC, at): 1000 for at in read}, timeout_ms=5000)
    found = [offset for chunk in fetched.chunks for offset in chunk.rows["offset"].to_pylist()]
    assert sorted(int(offset.partition("-")[2]) for offset in found) == list(range(31, len(flights)))
    last = cursors_at(flights, len(flights))
    assert {chunk.partition.partition: chunk.rows["ordinal"][-1].as_py() + 1 for chunk in fetched.chunks} == {
        partition: cursor.ordinal for partition, cursor in last.items()
    }


def test_a_url_that_names_no_redis_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="not the URL of a Redis"):
        FlightStreams("http://127.0.0.1", partitions=1)


def _key_and_value(fields: dict[bytes, bytes] | list[bytes]) -> tuple[bytes, bytes]:
    """Key and value of an entry, in any form that the client gives the fields."""
    named = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    return named[b"key"], named[b"value"]
