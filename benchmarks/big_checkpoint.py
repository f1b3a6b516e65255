"""A real checkpoint of many keys, written by Spark: one aggregation over a generated stream, a few batches.

Keys are 16-character strings (32 B rows), values six buffers (56 B rows); in RocksDB one version byte more each.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery

STATE = "org.apache.spark.sql.execution.streaming.state"
STORE = "spark.sql.streaming.stateStore"
PARTITIONS = 4
RAW_BYTES_PER_KEY = 88
WRITE_LIMIT_S = 900
QueryOf = Callable[[DataFrame, int], DataFrame]


@dataclass(frozen=True, slots=True)
class BigCheckpoint:
    """The checkpoint that was written. `key(n)` is the n-th of its keys, `value(n)` its value."""

    path: Path
    provider: str
    keys: int

    def key(self, number: int) -> str:
        return f"{number:016x}"

    def value(self, number: int) -> tuple[int, int, float, int, int, int]:
        """Count, sum, the average's sum and count, min, max. The last batch saw a thousandth of the keys again."""
        again = number < max(self.keys // 1000, 1)
        seen = [number, self.keys + number] if again else [number]
        return (len(seen), sum(seen), float(sum(seen)), len(seen), min(seen), max(seen))


def session(directory: Path) -> SparkSession:
    """Open a session with memory for ten million keys. Its workers run in this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("benchmarks")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", PARTITIONS)
        .config(f"{STORE}.maintenanceInterval", "1s")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(
    spark: SparkSession, path: Path, *, provider: str, keys: int, query_of: QueryOf | None = None
) -> BigCheckpoint:
    """Write `keys` keys in two batches, wait for their snapshot, then change a thousandth of them in a third.

    `query_of` makes another query than the aggregation from the numbers and the count of keys.
    """
    conf = {
        f"{STORE}.providerClass": f"{STATE}.{provider}StateStoreProvider",
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{STORE}.checkpointFormatVersion": "1" if provider == "HDFSBacked" else "2",
        f"{STORE}.minDeltasForSnapshot": "1",
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    for batch, rows in enumerate((keys // 2, keys // 2, max(keys // 1000, 1))):
        query = _start(spark, path, rows, total=keys, query_of=query_of or aggregated)
        _wait(lambda batch=batch: (path / "commits" / str(batch)).exists(), query)  # type: ignore[misc]
        if batch == 1:
            _wait(lambda: all(_has_snapshot(path / f"state/0/{partition}") for partition in range(PARTITIONS)), query)
        query.stop()
    return BigCheckpoint(path, provider, keys)


def _start(spark: SparkSession, path: Path, rows: int, *, total: int, query_of: QueryOf) -> StreamingQuery:
    """Start the query for one batch of `rows`: the next would be an hour later."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    writer = query_of(source, total).writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(path)).trigger(processingTime="1 hour").start()


def aggregated(source: DataFrame, total: int) -> DataFrame:
    """Aggregate to one row per key."""
    value = F.col("value")
    found = keyed(source, total).groupBy("key")
    return found.agg(F.count("*"), F.sum(value), F.avg(value), F.min(value), F.max(value))


def keyed(source: DataFrame, total: int) -> DataFrame:
    """Return numbers and their keys, which wrap around at `total`, so that a later batch changes existing keys."""
    key = F.lpad(F.lower(F.hex(F.col("value") % F.lit(total))), 16, "0").alias("key")
    return source.select(key, "value")


def _has_snapshot(directory: Path) -> bool:
    return any(path.suffix in {".zip", ".snapshot"} and path.name.startswith("2") for path in directory.glob("2*"))


def _wait(condition: Callable[[], bool], query: StreamingQuery) -> None:
    limit_s = time.monotonic() + WRITE_LIMIT_S
    while not condition():
        if not query.isActive or time.monotonic() > limit_s:
            raise RuntimeError(f"the query did not write what was waited for: {query.exception()}")
        time.sleep(0.05)
