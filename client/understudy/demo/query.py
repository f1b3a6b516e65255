"""The demo's query: three views of the flights, kept by one streaming query in three state stores.

- `aircraft`: per tail number, how often and when last it flew, and its departure delays;
- `routes`: per carrier, origin and destination, how many flights and their arrival delays;
- `airport_hours`: per origin and hour of the schedule, with a watermark, so that hours that are over leave the state.

Write a query of your own with one aggregation, and leave Spark's check on: this has three to show three stores by one
process. A query has one output schema: the branches are cast to one, and go to a sink that discards it. Readers look up
the state. Each branch has the alias by which `announce` names its store.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from understudy.demo.flights import FLIGHTS_SCHEMA
from understudy.demo.replay import TOPIC, busy_flights
from understudy.demo.settings import DemoSettings, Provider

LATENESS = "1 hour"
"""Time for which an hour stays open behind the newest flight. Flights come in order, so nothing is late."""

WRITES_PER_BATCH = 4
"""Busy writes of the replay in one micro-batch when the query is behind."""

_STREAMING = "spark.sql.streaming"
_STATE = "org.apache.spark.sql.execution.streaming.state"


def state_conf(provider: Provider) -> Mapping[str, str]:
    """Spark settings of the state stores. With RocksDB: changelogs, and unique ids for the files of each attempt."""
    conf = {
        # Spark refuses several aggregations in one query unless its output mode is append. Its reason is that one might
        # feed another. These are separate branches, so the reason does not apply.
        f"{_STREAMING}.statefulOperator.checkCorrectness.enabled": "false",
    }
    if provider == "hdfs":
        return {**conf, f"{_STREAMING}.stateStore.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"}
    return {
        **conf,
        f"{_STREAMING}.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
        f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        f"{_STREAMING}.stateStore.checkpointFormatVersion": "2",
        # Hadoop's own manager forks a process a dozen times per batch on a local disk. This one is faster, but protects
        # less against two queries in one checkpoint. Format 2 keeps their files apart.
        f"{_STREAMING}.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def read_flights(spark: SparkSession, settings: DemoSettings) -> DataFrame:
    """Read the stream of flights, merged by event time over all airports, so that the watermark drops none of them."""
    source = spark.readStream.format("understudy").option("topics", TOPIC).option("redis", settings.input_url)
    source = source.option("partitions", settings.input_partitions).option("merge", "global")
    source = source.option("max_poll_records", WRITES_PER_BATCH * busy_flights(settings.speed_up))
    # Each branch reads the whole batch, on few cores: one task each.
    source = source.option("reader_tasks", 1).option("checkpoint", str(settings.checkpoint.absolute()))
    flight = F.from_json(F.col("value").cast("string"), FLIGHTS_SCHEMA).alias("flight")
    return source.load().select(flight).select("flight.*")


def build_query(flights: DataFrame) -> DataFrame:
    """Return the union of the three branches."""
    branches = [aircraft(flights), routes(flights), airport_hours(flights)]
    return reduce(DataFrame.unionAll, [_as_output(frame, keys) for frame, keys in branches])


def aircraft(flights: DataFrame) -> tuple[DataFrame, list[str]]:
    """Group by tail number. Flights without one form a group, too."""
    frame = flights.groupBy("tailnum").agg(
        F.count("*").alias("flights"),
        F.max("event_time").alias("last_seen"),
        F.sum("dep_delay").alias("dep_delay_total"),
        F.avg("dep_delay").alias("dep_delay_mean"),
        F.max("dep_delay").alias("dep_delay_max"),
    )
    return frame.alias("aircraft"), ["tailnum"]


def routes(flights: DataFrame) -> tuple[DataFrame, list[str]]:
    frame = flights.groupBy("carrier", "origin", "dest").agg(
        F.count("*").alias("flights"),
        F.avg("arr_delay").alias("arr_delay_mean"),
        F.max("arr_delay").alias("arr_delay_max"),
    )
    return frame.alias("routes"), ["carrier", "origin", "dest"]


def airport_hours(flights: DataFrame) -> tuple[DataFrame, list[str]]:
    timed = flights.withWatermark("event_time", LATENESS)
    frame = timed.groupBy(F.window("event_time", "1 hour"), "origin").agg(
        F.count("*").alias("flights"), F.avg("dep_delay").alias("dep_delay_mean")
    )
    return frame.alias("airport_hours"), ["window", "origin"]


def _as_output(frame: DataFrame, keys: list[str]) -> DataFrame:
    """Key and value as JSON text: the common schema of all branches."""
    values = [name for name in frame.columns if name not in keys]
    return frame.select(F.to_json(F.struct(*keys)).alias("key"), F.to_json(F.struct(*values)).alias("value"))
