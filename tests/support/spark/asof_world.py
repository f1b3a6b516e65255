"""Flights and weather in Redis streams, their as-of join in plain Python, and runs of `docs/examples/asof_join.py`.

A partition's log holds its records in order of time; only when they arrive may differ. So what the join of the logs
must be is known, in any order of arrival.
"""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pyarrow.parquet as pq
import redis
from docs.examples.asof_join import join_weather, read_topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until
from tests.support.spark.session import spark_session
from tests.support.spark.weather import AIRPORTS, Weather, load_weather

from understudy.demo.flights import Flight, flights_file, load_flights, utc_text
from understudy.demo.job import state_conf

HOUR_S = 3600
WEEK_S = 7 * 24 * HOUR_S
FIRST_S = 1_356_998_400
"""2013-01-01T00:00:00Z."""

FlightId = tuple[str, int, str]
"""Carrier, number, event time: no two of the 336,776 flights have the same."""

InputState = tuple[str | None, float | None, float | None, float | None]
"""The weather of a flight: its time, temperature, wind and sight."""

NOTHING: InputState = (None, None, None, None)

SESSION_CONF = {
    **state_conf("rocksdb"),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataProgressEventInterval": "100",
}


@contextmanager
def asof_session(folder: Path) -> Iterator[SparkSession]:
    """A session whose workers are this Python and know the example, which is a module here."""
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with mock.patch.dict(os.environ, environment), spark_session(folder, extra=SESSION_CONF) as spark:
        yield spark


@dataclass(frozen=True, slots=True)
class Records:
    """What is put into the two topics, each in order of time."""

    flights: Sequence[Flight]
    weather: Sequence[Weather]

    def between(self, start_s: int, end_s: int) -> Records:
        """Those of a stretch of time; the end is not in it."""
        return Records(
            [flight for flight in self.flights if start_s <= flight.event_time < end_s],
            [weather for weather in self.weather if start_s <= weather.event_time < end_s],
        )

    def rounds(self, step_s: int) -> list[Records]:
        """All records, by stretches of time."""
        last_s = self.weather[-1].event_time + 1
        return [self.between(start, end) for start, end in pairwise([*range(FIRST_S, last_s, step_s), last_s])]

    def closed(self) -> Records:
        """The records plus one weather record per airport after its last flight, which shows that none is missing."""
        end_s = max(flight.event_time for flight in self.flights) + HOUR_S
        last = [Weather(end_s, origin, *[None] * (len(Weather._fields) - 2)) for origin in AIRPORTS]
        return Records(self.flights, [*(weather for weather in self.weather if weather.event_time < end_s), *last])


@cache
def all_records() -> Records:
    return Records(load_flights(flights_file()), load_weather())


def flight_id(flight: Flight) -> FlightId:
    return flight.carrier, flight.flight, utc_text(flight.event_time)


def as_of_join(records: Records) -> dict[FlightId, InputState]:
    """The oracle: of each flight, the latest weather of its airport that is not after it."""
    times: dict[str, list[int]] = defaultdict(list)
    seen: dict[str, list[InputState]] = defaultdict(lambda: [NOTHING])
    for weather in records.weather:
        times[weather.origin].append(weather.event_time)
        seen[weather.origin].append((utc_text(weather.event_time), weather.temp, weather.wind_speed, weather.visib))
    return {
        flight_id(flight): seen[flight.origin][bisect_right(times[flight.origin], flight.event_time)]
        for flight in records.flights
    }


def streams(url: str) -> dict[str, str]:
    """Options for the streams that `add` fills, whether they are there yet or not."""
    return {"redis": url, "partitions": str(len(AIRPORTS))}


def add(url: str, topic: str, records: Sequence[Flight] | Sequence[Weather]) -> None:
    """Append to the topic's streams, one for each airport."""
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        for start in range(0, len(records), 5000):
            with client.pipeline(transaction=False) as pipeline:
                for record in records[start : start + 5000]:
                    stream = f"{topic}:{AIRPORTS.index(record.origin)}"
                    pipeline.xadd(stream, {"key": record.origin, "value": record.json_line()})
                pipeline.execute()


class Sent(NamedTuple):
    flights: int
    weather: int


NOTHING_SENT = Sent(0, 0)


def arrive_late(
    url: str, rounds: Sequence[Records], are_seen: Callable[[Sent, Sent], bool], sent: Sent = NOTHING_SENT
) -> Sent:
    """Send in each round its flights, and its weather only when the flights are seen.

    `are_seen` gets what was there before the flights, and with them. `sent` is what is there already.
    """
    for records in rounds:
        add(url, "flights", records.flights)
        before, sent = sent, sent._replace(flights=sent.flights + len(records.flights))
        wait_until(partial(are_seen, before, sent), what="flights that the query has seen", limit_s=300)
        add(url, "weather", records.weather)
        sent = sent._replace(weather=sent.weather + len(records.weather))
    return sent


@dataclass(frozen=True, slots=True)
class Joined:
    """What a run has put out so far, over all of its batches."""

    rows: Mapping[FlightId, InputState]
    duplicates: int
    """Rows of a flight that was put out before."""

    batches: int

    def differences(self, other: Mapping[FlightId, InputState]) -> int:
        """Flights that have other weather there, or are missing on one side."""
        return sum(self.rows.get(flight) != other.get(flight) for flight in self.rows.keys() | other.keys())

    def violations(self, oracle: Mapping[FlightId, InputState]) -> int:
        """Flights that were joined with weather other than the oracle's."""
        return sum(seen != oracle[flight] for flight, seen in self.rows.items())


def fetched(query: StreamingQuery) -> int:
    """Records that are in batches or ready for one, since the checkpoint began. Fails when the query has failed."""
    failure = query.exception()
    assert failure is None, failure
    progress = query.lastProgress
    if progress is None:
        return 0
    source = json.loads(progress.json)["sources"][0]
    end, metrics = source["endOffset"] or source["startOffset"] or {"at": {}}, source["latestOffset"] or {}
    taken = sum(ordinal for cursors in end["at"].values() for _, ordinal, _ in cursors.values())
    return int(taken) + int(metrics.get("input-buffer-records", 0))


@dataclass(frozen=True, slots=True)
class AsofRun:
    """Where a run of the example keeps its checkpoint, and its output: one file for each batch."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def output_file(self, batch_id: int) -> Path:
        return self.folder / "output" / f"{batch_id}.parquet"

    def start(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        *,
        available_now: bool = False,
        written: Callable[[int], None] = lambda batch_id: None,
    ) -> StreamingQuery:
        """The example, into files. A batch that runs again replaces its file; `written` is called before its commit."""

        def keep(frame: DataFrame, batch_id: int) -> None:
            draft = self.output_file(batch_id).with_suffix(".draft")
            pq.write_table(frame.toArrow(), draft)
            draft.rename(self.output_file(batch_id))
            written(batch_id)

        self.output_file(0).parent.mkdir(parents=True, exist_ok=True)
        writer = join_weather(read_topics(spark, options)).writeStream.foreachBatch(keep).outputMode("append")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        return writer.start()

    def rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in self._output_files())

    def joined(self) -> Joined:
        rows: dict[FlightId, InputState] = {}
        count: Counter[FlightId] = Counter()
        files = self._output_files()
        for path in files:
            for row in pq.read_table(path).to_pylist():
                flight = (row["carrier"], row["flight"], row["event_time"])
                rows[flight] = (row["weather_time"], row["temp"], row["wind_speed"], row["visib"])
                count[flight] += 1
        return Joined(rows, sum(count.values()) - len(count), len(files))

    def _output_files(self) -> list[Path]:
        return sorted((self.folder / "output").glob("*.parquet"))
