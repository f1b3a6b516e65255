"""A Spark batch job over the state of a streaming query: all of it at one version, read by the executors in parallel.

UNDERSTUDY_URL=http://router-1:8080 spark-submit docs/examples/spark_snapshot.py

The snapshot is leased while the job runs, so that its tasks, and those that Spark starts again, read the same version,
however long it takes. Executors need this package, and the URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from understudy import Client

STORE, COLUMNS = "aircraft", "tailnum string, flights long, delay_sum long"


def rows_at(spark: SparkSession, url: str, snapshot: str, partitions: int) -> DataFrame:
    """Return the rows of the store at a snapshot: one task for each of its partitions."""

    def read(partition: int) -> Iterator[tuple[object, ...]]:
        with Client(url) as client:
            for row in client.store(STORE).scan(partition=partition, snapshot=snapshot):
                yield (row.key["tailnum"], row.value["flights"], row.value["delay_sum"])

    rows = spark.sparkContext.range(0, partitions, numSlices=partitions).flatMap(read)
    return spark.createDataFrame(rows, COLUMNS)


def report(spark: SparkSession, url: str) -> tuple[int, int]:
    """Return the version that was read, and the flights of all aircraft."""
    with Client(url) as client, client.snapshot([STORE], ttl=timedelta(minutes=5)) as held:
        partitions = client.store(STORE).info().partitions
        rows = rows_at(spark, url, held.token, partitions)
        flights: int = rows.agg(F.sum("flights")).first()[0]  # type: ignore[index]  # an aggregate has a row
        return held.version, flights


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    print(*report(session, os.environ["UNDERSTUDY_URL"]))
