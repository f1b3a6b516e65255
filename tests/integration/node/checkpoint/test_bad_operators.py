"""Operators that this release does not answer for are refused by name, and do not keep others from being served."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import (
    Build,
    InputFolder,
    QueryOptions,
    read_folder,
    settings,
    state_stores_unloaded,
)

ROWS = [{"word": f"word-{n}", "at": f"2024-03-01T00:00:0{n}Z"} for n in range(9)]


FORMAT = "spark.sql.streaming.join.stateFormatVersion"


def say_another_format(checkpoint: Path) -> None:
    """Every format of joins that this Spark writes is served. So let the log say one of a later Spark."""
    for log in (checkpoint / "offsets").glob("[0-9]*"):
        text = log.read_text()
        assert f'"{FORMAT}":"3"' in text
        log.write_text(text.replace(f'"{FORMAT}":"3"', f'"{FORMAT}":"9"'))


def joined(source: DataFrame) -> DataFrame:
    left, right = (source.withWatermark("at", "1 hour").alias(side) for side in ("left", "right"))
    return left.join(right, F.expr("left.word = right.word AND left.at = right.at"))


def counted_joined(source: DataFrame) -> DataFrame:
    return joined(source).select("left.word", "left.at").groupBy(F.window("at", "1 hour"), "word").count()


def run(
    spark: SparkSession,
    checkpoint: Path,
    build: Build,
    state_format: StateFormat,
    *,
    output_mode: str = "update",
    conf: dict[str, str] | None = None,
) -> None:
    """Two batches."""
    feed = InputFolder(Path(f"{checkpoint}.input"))
    feed.add(ROWS)
    feed.add(ROWS)
    options = QueryOptions(partitions=2, extra_conf=conf or {})
    with settings(spark, {**state_format.conf(), **options.conf()}), state_stores_unloaded(spark):
        writer = build(read_folder(spark, feed, "word string, at timestamp")).writeStream.format("noop")
        writer = writer.outputMode(output_mode).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def test_a_node_that_starts_in_the_first_batch_of_a_query_of_spark_3_waits_for_its_schema(tmp_path: Path) -> None:
    """Spark 3 writes no metadata, and the schema after the folders."""
    conf = {"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2"}
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", conf=conf).create()
    shutil.rmtree(checkpoint.path / "state/0/_metadata")
    schema = (checkpoint.path / "state/0/0/_metadata/schema").read_bytes()
    shutil.rmtree(checkpoint.path / "state/0/0/_metadata")
    checkpoint.write_state(1)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        assert "no batch has been committed" in served.not_ready()
        checkpoint.write("state/0/0/_metadata/schema", schema)
        checkpoint.commit(1)
        served.wait_for_version(1, partitions=2)
        assert served.look_up([WORDS[0]]).body["value"] == {"count": 1, "total": 1_000_000}


def test_an_aggregation_is_served_beside_an_operator_that_is_not(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, checkpoint, counted_joined, ROCKSDB_CHANGELOG_V2, output_mode="append", conf={FORMAT: "3"})
    say_another_format(checkpoint)
    hour = {"start": "2024-03-01T00:00:00Z", "end": "2024-03-01T01:00:00Z"}
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(2)
        answers = served.look_up_all([[hour, row["word"]] for row in ROWS])
        assert [answer["value"] for answer in answers] == [{"count": 4}] * len(ROWS)
        listed = served.get("/v1/stores").body
        assert "symmetricHashJoin" in str(listed["not_served"])
        reply = served.look_up(["word-1"], store="op1")
        assert (reply.status, reply.problem) == (404, "unknown-store")
        assert "symmetricHashJoin" in reply.text
