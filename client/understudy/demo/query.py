"""The demo's query, which is one to copy: per tail number, how often and when last it flew, and its departure delays.

It has one aggregation, in update mode: Spark's checks are on. Its sink discards the output, as readers look up the
state. By the alias `announce` names the store.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from understudy.demo.flights import FLIGHTS_SCHEMA
from understudy.demo.replay import TOPIC, busy_flights
from understudy.demo.settings import DemoSettings, Provider

WRITES_PER_BATCH = 4
"""Busy writes of the replay in one micro-batch when the query is behind."""

_STREAMING = "spark.sql.streaming"
_STATE = "org.apache.spark.sql.execution.streaming.state"


def state_conf(provider: Provider) -> Mapping[str, str]:
    """Spark settings of the state stores. With RocksDB: changelogs, and unique ids for the files of each attempt."""
    if provider == "hdfs":
        return {f"{_STREAMING}.stateStore.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"}
    return {
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
    """Read the stream of flights, merged by event time over all airports."""
    source = spark.readStream.format("understudy").option("topics", TOPIC).option("redis", settings.input_url)
    source = source.option("partitions", settings.input_partitions).option("merge", "global")
    source = source.option("max_poll_records", WRITES_PER_BATCH * busy_flights(settings.speed_up))
    source = source.option("checkpoint", str(settings.checkpoint.absolute()))
    flight = F.from_json(F.col("value").cast("string"), FLIGHTS_SCHEMA).alias("flight")
    return source.load().select(flight).select("flight.*")


def per_aircraft(flights: DataFrame) -> DataFrame:
    """Group by tail number. Flights without one form a group, too."""
    groups = flights.groupBy("tailnum").agg(
        F.count("*").alias("flights"),
        F.max("event_time").alias("last_seen"),
        F.sum("dep_delay").alias("dep_delay_total"),
        F.avg("dep_delay").alias("dep_delay_mean"),
        F.max("dep_delay").alias("dep_delay_max"),
    )
    return groups.alias("aircraft")
