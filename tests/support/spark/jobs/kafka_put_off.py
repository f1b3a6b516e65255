"""Runs one query with Spark's own Kafka source and with ours, whose batches have ten records at least and at most.

Prints the sizes of the batches of three runs as JSON: live, with the trigger Once, and with AvailableNow.

Arguments: a folder, the jars of Spark's Kafka source separated by commas, and the servers and each source's topic as
JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.kafka.clients import produce
from tests.support.spark.queries import committed_batches, wait_until
from tests.support.spark.session import spark_session

from understudy_aligned.inputs.records import TopicPartition

BOUNDS = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
LIMIT_S = 120


def run(spark: SparkSession, name: str, servers: str, topic: str, checkpoint: Path) -> Mapping[str, list[int]]:
    """The sizes of the batches of each run."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **BOUNDS}

    def put(count: int) -> None:
        produce(servers, TopicPartition(topic, 0), [b"v"] * count)

    @contextmanager
    def started(**trigger: bool) -> Iterator[tuple[StreamingQuery, list[int]]]:
        sizes: list[int] = []

        def keep(batch: DataFrame, _: int) -> None:
            sizes.append(batch.count())

        writer = spark.readStream.format(name).options(**options).load().writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query, sizes
        finally:
            query.stop()

    put(3)
    with started() as (query, live):
        wait_until(lambda: query.exception() is not None or live == [3], what="the first batch", limit_s=LIMIT_S)
        put(4)
        wait_until(lambda: waits_with_four(query, topic), what="a batch that is put off", limit_s=LIMIT_S)
        put(6)
        wait_until(lambda: committed_batches(checkpoint) == (0, 1), what="the second batch", limit_s=LIMIT_S)
    put(2)
    with started(once=True) as (query, once):
        query.awaitTermination()
    put(12)
    with started(availableNow=True) as (query, available_now):
        query.awaitTermination()
    return {"live": live, "once": once, "availableNow": available_now}


def waits_with_four(query: StreamingQuery, topic: str) -> bool:
    """Whether the source has seen seven records, and the query has three."""
    failure = query.exception()
    assert failure is None, failure
    progress = query.lastProgress
    seen = json.loads(progress.json)["sources"][0]["latestOffset"] if progress is not None else None
    if not seen:
        return False
    is_put_off = seen.get("waits-for-records", {}).get("records") == 4
    return bool(is_put_off or seen.get(topic) == {"0": 7})


def main(folder: Path, jars: str, given: Mapping[str, str]) -> None:
    """Run both."""
    extra = {"spark.jars": jars, "spark.sql.streaming.noDataProgressEventInterval": "100"}
    with spark_session(folder / "spark", extra=extra) as spark:
        found = {
            name: run(spark, name, given["kafka.bootstrap.servers"], given[name], folder / name)
            for name in ("kafka", "understudy")
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
