"""Operators that this release does not answer for are refused by name, and do not keep others from being served."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.cluster.served_node import served_node
from tests.support.services.startup_refusals import refusal_to_serve
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import (
    Build,
    InputFolder,
    QueryOptions,
    read_folder,
    settings,
    state_stores_unloaded,
)

from understudy_shared.errors import UnsupportedError

ROWS = [{"word": f"word-{n}", "at": f"2024-03-01T00:00:0{n}Z"} for n in range(9)]


def distinct(source: DataFrame) -> DataFrame:
    return source.dropDuplicates(["word"])


def sessions(source: DataFrame) -> DataFrame:
    return source.withWatermark("at", "1 hour").groupBy(F.session_window("at", "1 minute"), "word").count()


def counted_distinct(source: DataFrame) -> DataFrame:
    return source.dropDuplicates(["word"]).groupBy("word").count()


def run(spark: SparkSession, checkpoint: Path, build: Build, state_format: StateFormat) -> None:
    """Two batches, in update mode where Spark allows it."""
    feed = InputFolder(Path(f"{checkpoint}.input"))
    feed.add(ROWS)
    feed.add(ROWS)
    with settings(spark, {**state_format.conf(), **QueryOptions(partitions=2).conf()}), state_stores_unloaded(spark):
        writer = build(read_folder(spark, feed, "word string, at timestamp")).writeStream.format("noop")
        writer = writer.outputMode("append" if build is sessions else "update").trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        pytest.param(distinct, "dedupe: dropDuplicates", id="drop-duplicates"),
        pytest.param(sessions, "sessionWindowStateStoreSaveExec: session windows", id="session-window"),
    ],
)
def test_a_query_of_which_nothing_can_be_served_is_refused_by_its_operator(
    spark: SparkSession, tmp_path: Path, build: Build, operator: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, checkpoint, build, HDFS_V1)
    error = refusal_to_serve(checkpoint, tmp_path / "data")
    assert isinstance(error, UnsupportedError)
    assert operator in error.what
    assert error.where == f"{checkpoint}/state/0"
    assert "stateStoreSave = aggregations" in error.fix


def test_an_aggregation_is_served_beside_an_operator_that_is_not(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, checkpoint, counted_distinct, ROCKSDB_CHANGELOG_V2)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(2)
        answers = served.look_up_all([[row["word"]] for row in ROWS])
        assert [answer["value"] for answer in answers] == [{"count": 1}] * len(ROWS)
        listed = served.get("/v1/stores").body
        assert "dropDuplicates" in str(listed["not_served"])
        reply = served.look_up(["word-1"], store="op1")
        assert (reply.status, reply.problem) == (404, "unknown-store")
        assert "dropDuplicates" in reply.text


def counted_with_a_variant(source: DataFrame) -> DataFrame:
    """Two aggregations beside each other: what is in the state of the second, this release cannot read."""
    newest = F.last(F.parse_json(F.concat(F.lit('{"of": "'), "word", F.lit('"}'))))
    branches = (
        source.groupBy("word").agg(F.count("*").cast("string").alias("said")),
        source.groupBy("word").agg(F.to_json(newest).alias("said")),
    )
    return branches[0].unionAll(branches[1])


@pytest.mark.parametrize("state_format", [HDFS_V1, ROCKSDB_CHANGELOG_V2], ids=lambda given: given.id)
def test_a_store_with_a_column_that_cannot_be_read_is_listed_with_it_and_the_others_are_served(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    """Spark groups by no variant, so that a key cannot hold one."""
    checkpoint = tmp_path / "checkpoint"
    run(spark, checkpoint, counted_with_a_variant, state_format)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(2)
        listed = served.get("/v1/stores").body
        (refused,) = cast(list[dict[str, object]], listed["not_served"])
        good = {"op0", "op1"} - {str(refused["store"])}
        assert [part for part in ("value has a column", "variant") if part not in str(refused["reason"])] == []
        (store,) = good
        answers = served.look_up_all([[row["word"]] for row in ROWS], store=store)
        assert [answer["value"] for answer in answers] == [{"count": 2}] * len(ROWS)
        reply = served.look_up(["word-1"], store=str(refused["store"]))
        assert (reply.status, reply.problem) == (404, "unknown-store")
        assert "variant" in reply.text
        assert {task.partition("_")[0] for task in served.node.tasks()} == {store.removeprefix("op")}
