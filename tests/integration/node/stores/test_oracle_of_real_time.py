"""State of queries in Real-Time Mode is answered as Spark's own state reader has it, while they run and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.cluster.served_node import served_node
from tests.support.oracle.custom_compared import assert_answered_by_a_node, assert_every_version_equal
from tests.support.oracle.custom_state import BATCHES, custom_options, read_custom_checkpoint
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import RETAINED, read_kinds_checkpoint
from tests.support.oracle.kinds_compared import assert_equal
from tests.support.oracle.record import record
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, ROCKSDB_V2, StateFormat
from tests.support.spark.kinds import KINDS_SCHEMA, WATERMARK_DELAY, kinds_batches, operators_by_name
from tests.support.spark.queries import QueryOptions, QueryRun, run_query
from tests.support.spark.real_time import REAL_TIME_CONF, real_time_feeder
from tests.support.spark.scala_job import IN_REAL_TIME, write_in_scala

from understudy_pipeline.announcing.query_plan import announced_stores
from understudy_pipeline.announcing.spark_query import SparkQuery


def _groups(source: DataFrame) -> DataFrame:
    functions = F.try_sum("n"), F.avg("d"), F.max("event"), F.collect_list("n"), F.count("*").alias("rows")
    return source.groupBy("k", "d").agg(*functions).alias("totals")


def _windows(source: DataFrame) -> DataFrame:
    timed = source.withWatermark("event", WATERMARK_DELAY)
    return timed.groupBy(F.window("event", "20 minutes"), "k").count()


def _set(source: DataFrame) -> DataFrame:
    return source.dropDuplicates(["k", "n", "d"])


def _expiring_set(source: DataFrame) -> DataFrame:
    named = source.withWatermark("event", WATERMARK_DELAY).withColumn("lately", F.date_format("event", "HH:mm"))
    return named.dropDuplicatesWithinWatermark(["k", "lately"])


STREAMLINE = "StatefulStreamlineAggregate"
QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "groups": (_groups, STREAMLINE),
    "windows": (_windows, STREAMLINE),
    "set": (_set, "dedupe"),
    "expiring-set": (_expiring_set, "dedupeWithinWatermark"),
}
RESULTS = {"groups": {"try_sum(n)", "avg(d)", "max(event)", "collect_list(n)", "rows"}, "windows": {"count"}}
OPTIONS = QueryOptions(
    # All stages run at once, and the session has two places: one partition of input, one of state.
    partitions=1,
    min_batches_to_retain=RETAINED,
    min_deltas_for_snapshot=2,
    maintenance_interval_ms=100,
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "state_format"),
    [
        pytest.param(name, each, id=f"{name}-{each.id}")
        for name in QUERIES
        for each in ((ROCKSDB_CHANGELOG_V2, ROCKSDB_V2, ROCKSDB_CHANGELOG_V1) if name == "groups" else (ROCKSDB_V2,))
    ],
)
def test_every_key_at_every_version_is_what_spark_reads_and_a_node_follows(
    spark: SparkSession, tmp_path: Path, name: str, state_format: StateFormat
) -> None:
    build, operator = QUERIES[name]
    checkpoint = tmp_path / "checkpoint"
    with (
        real_time_feeder(
            spark, schema=KINDS_SCHEMA, build=build, checkpoint=checkpoint, state_format=state_format, options=OPTIONS
        ) as feeder,
        served_node(checkpoint, tmp_path / "data") as served,
    ):
        for rows in kinds_batches(batches=3):
            last = feeder.add(rows)
            served.wait_for_version(last + 1)
        plan = SparkQuery(feeder.query).plan()
        feeder.query.stop()
        if operator == STREAMLINE:
            assert plan is not None
            (announced,) = announced_stores(plan, {})
            assert announced.name == ("totals" if name == "groups" else None)
            assert {column.name for column in announced.result} == RESULTS[name]
        run = QueryRun(checkpoint, state_format)
        oracle = read_kinds_checkpoint(spark, run, operators_by_name(checkpoint))
        (store,) = oracle.stores.values()
        assert store.operator == operator
        served.wait_for_version(oracle.last)
        kept = store.kept[oracle.last]
        assert len(kept) > 9
        for each, answer in zip(kept, served.look_up_all([each.key for each in kept]), strict=True):
            assert as_text({member: answer[member] for member in each.said}) == as_text(each.said)
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            assert_equal(reader, store, version)
    lines = [replace(line, variant="Real-Time Mode") for line in oracle.compared(pyspark.__version__)]
    record(f"{pyspark.__version__}-real-time-{name}-{state_format.id}", lines)


@pytest.mark.parametrize(
    "state_format", [ROCKSDB_CHANGELOG_V2, pytest.param(HDFS_V1, marks=pytest.mark.full)], ids=lambda each: each.id
)
def test_the_aggregation_of_real_time_mode_is_read_in_an_ordinary_query(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    """A setting that Spark has for tests: the operator is the same, and so are its rows."""
    run = run_query(
        spark,
        name="streamline",
        schema=KINDS_SCHEMA,
        batches=kinds_batches(batches=3),
        build=_groups,
        checkpoint=tmp_path / "checkpoint",
        state_format=state_format,
        options=replace(OPTIONS, partitions=2, extra_conf={"spark.sql.streaming.useStreamlineAggregator": "true"}),
    )
    oracle = read_kinds_checkpoint(spark, run, operators_by_name(run.checkpoint))
    (store,) = oracle.of(STREAMLINE)
    assert {each.partition for each in store.kept[oracle.last]} == {0, 1}
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            assert_equal(reader, store, version)
    record(f"{pyspark.__version__}-streamline-{state_format.id}", oracle.compared(pyspark.__version__))


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V2, ROCKSDB_V2], ids=lambda each: each.id)
def test_state_variables_of_a_query_in_scala_are_what_spark_reads(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    """Spark runs `transformWithState` in Scala in this mode, and not in Python."""
    options = custom_options(REAL_TIME_CONF)
    (checkpoint,) = write_in_scala(tmp_path, [state_format], options, batches=BATCHES, in_real_time=True)
    oracle = read_custom_checkpoint(spark, checkpoint, state_format, IN_REAL_TIME)
    kept = {name for name, store in oracle.stores.items() if all(store.kept[version] for version in oracle.versions)}
    assert kept >= {"weather", "seen", "trips", "fading", "places", "promises"}, "the others expire within a batch"
    assert_every_version_equal(oracle, tmp_path / "replicas")
    assert_answered_by_a_node(oracle, tmp_path / "data")
    lines = [replace(line, variant="Real-Time Mode") for line in oracle.compared(pyspark.__version__)]
    record(f"{pyspark.__version__}-real-time-scala-{state_format.id}", lines)
