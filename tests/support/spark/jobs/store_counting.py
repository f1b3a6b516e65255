"""The counting query with its checkpoint in a store of Hadoop's; then what Spark's own reader finds in it.

It runs `--first` batches, says `written`, waits for the file `--go`, runs the rest of `--batches`, says `all written`,
waits for `--read`, and says `rows` with the JSON of what the state reader returns there: `[partition, word, count,
total]` each. It reads a copy, because ABFS lists a folder of Azurite twice, and Spark's reader stumbles over that.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.counting_query import SCHEMA, build, rows
from tests.support.spark.formats import StateFormat
from tests.support.spark.process import say
from tests.support.spark.queries import (
    InputFolder,
    QueryOptions,
    read_folder,
    settings,
    state_stores_unloaded,
    wait_until,
)
from tests.support.spark.session import spark_session

OPTIONS = QueryOptions(partitions=2, min_deltas_for_snapshot=2, maintenance_interval_ms=200)


def main() -> None:
    arguments = _arguments()
    state_format = StateFormat(**json.loads(arguments.format))
    feed = InputFolder(arguments.folder / "input")
    with spark_session(arguments.folder, extra=json.loads(arguments.conf)) as spark:
        _run(spark, arguments, state_format, feed, arguments.first)
        say("written")
        wait_until(arguments.go.exists, what="the word to go on", limit_s=200)
        _run(spark, arguments, state_format, feed, arguments.batches)
        say("all written")
        wait_until(arguments.read.exists, what="the copy", limit_s=200)
        with settings(spark, state_format.conf()):
            reader = spark.read.format("statestore").option("batchId", arguments.batches - 1)
            found = reader.load(str(arguments.read)).select("partition_id", "key.*", "value.*").collect()
        say(f"rows {json.dumps([list(row) for row in found])}")


def _run(
    spark: SparkSession, arguments: argparse.Namespace, state_format: StateFormat, feed: InputFolder, batches: int
) -> None:
    for batch in range(feed.count, batches):
        feed.add(rows(batch))
    with state_stores_unloaded(spark), settings(spark, {**state_format.conf(), **OPTIONS.conf()}):
        writer = build(read_folder(spark, feed, SCHEMA)).writeStream.format("noop").outputMode("update")
        writer.option("checkpointLocation", arguments.checkpoint).trigger(availableNow=True).start().awaitTermination()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="a URL that the session can write to")
    parser.add_argument("--folder", type=Path, required=True, help="for the session's own files")
    parser.add_argument("--format", required=True, help="a state format's fields as JSON")
    parser.add_argument("--conf", required=True, help="settings of the session as JSON")
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--read", type=Path, required=True, help="a copy of the checkpoint, once it is whole")
    parser.add_argument("--go", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
