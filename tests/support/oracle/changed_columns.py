"""A checkpoint of `transformWithState` in Avro whose columns have changed, with what Spark's own reader says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.support.oracle.custom_state import VariableSource, read_variables
from tests.support.oracle.kinds import PARTITIONS, KindsCheckpoint, KindStore
from tests.support.spark.changing_state import (
    ADDED_VARIABLE,
    CHANGING_SCHEMA,
    CHANGING_VARIABLES,
    after,
    before,
    changing_batches,
)
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, run_query

CHANGED_FORMAT = replace(ROCKSDB_CHANGELOG_V2, encoding="avro")
OPERATOR = "transformWithStateInPySparkExec"
SOURCES = [VariableSource(0, name, kind, name) for name, kind in CHANGING_VARIABLES.items()]
ADDED = VariableSource(0, ADDED_VARIABLE, "value", ADDED_VARIABLE)


def write_changed_checkpoint(spark: SparkSession, folder: Path) -> KindsCheckpoint:
    """Run the query over a batch, then with other columns over another, and ask Spark for the last version."""
    checkpoint = folder / "checkpoint"
    first, second = changing_batches()
    run_changing(spark, checkpoint, before, [first])
    run_changing(spark, checkpoint, after, [first, second])
    kept = read_variables(spark, checkpoint, [*SOURCES, ADDED], [1])
    stores = {source.name: KindStore(source.name, OPERATOR, source.kind, versions) for source, versions in kept.items()}
    return KindsCheckpoint(checkpoint, CHANGED_FORMAT, (2,), stores)


def run_changing(
    spark: SparkSession,
    checkpoint: Path,
    build: Callable[[DataFrame], DataFrame],
    batches: list[list[dict[str, object]]],
    state_format: StateFormat = CHANGED_FORMAT,
) -> None:
    run_query(
        spark,
        name="changing",
        schema=CHANGING_SCHEMA,
        batches=batches,
        build=build,
        checkpoint=checkpoint,
        state_format=state_format,
        options=QueryOptions(partitions=PARTITIONS, output_mode="append"),
    )
