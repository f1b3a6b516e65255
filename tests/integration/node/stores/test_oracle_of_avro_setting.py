"""With `encodingFormat` avro, Spark keeps the state of `transformWithState` in Avro, and that of no other operator.

The HDFS-backed provider writes rows whatever the setting says, and with RocksDB Spark refuses every other operator.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.oracle.custom_compared import assert_answered_by_a_node
from tests.support.oracle.kinds import KindsCheckpoint, write_kinds_checkpoint
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2
from tests.support.spark.kinds import BRANCHES, KINDS_SCHEMA, build_kinds, kinds_batches
from tests.support.spark.queries import QueryOptions, run_query

HDFS = replace(HDFS_V1, encoding="avro")
ROCKSDB = replace(ROCKSDB_CHANGELOG_V2, encoding="avro")
UNCHECKED = {"spark.sql.streaming.unsupportedOperationCheck": "false"}
"""Spark does not ask then whether an operator can be written so."""


def test_a_limit_on_the_hdfs_backed_provider_is_served_though_the_setting_says_avro(
    spark: SparkSession, tmp_path: Path
) -> None:
    oracle = write_kinds_checkpoint(spark, tmp_path, HDFS, operators=["globalLimit"])
    _assert_served(oracle, tmp_path / "data")


@pytest.mark.full
def test_every_operator_on_the_hdfs_backed_provider_is_served_though_the_setting_says_avro(
    spark: SparkSession, tmp_path: Path
) -> None:
    _assert_served(write_kinds_checkpoint(spark, tmp_path, HDFS, conf=UNCHECKED), tmp_path / "data")


@pytest.mark.parametrize("operator", ["stateStoreSave", *sorted(BRANCHES.keys() - {"globalLimit"})])
def test_spark_refuses_avro_of_other_operators_than_transform_with_state_on_rocksdb(
    operator: str, spark: SparkSession, tmp_path: Path
) -> None:
    """When this fails, a Spark writes what nobody has compared: `checkpoint/operators.py` refuses it until then."""
    with pytest.raises(AnalysisException, match="encoding format as avro is not supported"):
        _run(spark, tmp_path, operator)


def test_spark_cannot_run_a_limit_in_avro_on_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="StateSchemaProvider should always be defined"):
        _run(spark, tmp_path, "globalLimit")


def _run(spark: SparkSession, folder: Path, operator: str) -> None:
    run_query(
        spark,
        name="avro",
        schema=KINDS_SCHEMA,
        batches=kinds_batches(batches=1),
        build=_counted if operator == "stateStoreSave" else partial(build_kinds, operators=[operator]),
        checkpoint=folder / "checkpoint",
        state_format=ROCKSDB,
        options=QueryOptions(output_mode="update" if operator == "stateStoreSave" else "append"),
    )


def _counted(source: DataFrame) -> DataFrame:
    return source.groupBy("k").count()


def _assert_served(oracle: KindsCheckpoint, data: Path) -> None:
    """Every key at a node, by what Spark's reader says of it."""
    assert '"spark.sql.streaming.stateStore.encodingFormat":"avro"' in (oracle.path / "offsets" / "0").read_text()
    assert all(store.kept[oracle.last] for store in oracle.stores.values()), "a store keeps nothing"
    assert_answered_by_a_node(oracle, data)
