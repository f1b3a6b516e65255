"""Hazard: an operator repartitions the state offline, and every key may be in another partition from one version on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.counting_query import assert_as_spark_reads, rows, run_counting, watched
from tests.support.served_node import served_node
from tests.support.spark_formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark_queries import InputFolder, QueryOptions, committed_batches, settings


@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V1], ids=lambda f: f.id)
def test_a_repartitioned_checkpoint_is_served_in_the_old_layout_until_the_new_one_is_ready(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 3)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(3, partitions=3)
        with watched(served):
            with settings(spark, state_format.conf()):
                spark._streamingCheckpointManager.repartition(str(checkpoint), 5)
            print(committed_batches(checkpoint), sorted(p.name for p in (checkpoint / "state/0/0").iterdir()))
            served.wait_for_version(4, partitions=5)
            assert_as_spark_reads(served, spark, checkpoint)
