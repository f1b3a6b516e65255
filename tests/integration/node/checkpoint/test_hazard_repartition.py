"""Hazard: an operator repartitions the state offline, and every key may be in another partition from one version on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import WORDS, assert_as_spark_reads, run_counting, watched
from tests.support.spark.formats import (
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)
from tests.support.spark.queries import QueryOptions, committed_batches, settings


def repartition(spark: SparkSession, checkpoint: Path, state_format: StateFormat, partitions: int) -> None:
    """Spark's own offline repartition: a batch without input that writes all state anew."""
    with settings(spark, state_format.conf()):
        spark._streamingCheckpointManager.repartition(str(checkpoint), partitions)


def full(state_format: StateFormat, partitions: int) -> object:
    return pytest.param(state_format, partitions, marks=pytest.mark.full, id=f"{state_format.id}-{partitions}")


@pytest.mark.parametrize(
    ("state_format", "partitions"),
    [
        pytest.param(ROCKSDB_CHANGELOG_V1, 5, id="rocksdb-changelog-v1-5"),
        full(ROCKSDB_CHANGELOG_V1, 2),
        full(ROCKSDB_V1, 5),
        full(ROCKSDB_V2, 2),
        full(ROCKSDB_CHANGELOG_V2, 5),
    ],
)
def test_a_repartitioned_checkpoint_is_served_in_its_old_layout_until_the_new_one_is_ready(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat, partitions: int
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 3)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(3, partitions=3)
        with watched(served, inputless=frozenset({4})):
            repartition(spark, checkpoint, state_format, partitions)
            served.wait_for_version(4, partitions=partitions)
            # The restarted query goes on in the new layout, whatever its settings say.
            run_counting(spark, checkpoint, state_format, 5, options=QueryOptions(partitions=3))
            assert_as_spark_reads(served, spark, checkpoint)
            refused = served.look_up([WORDS[0]], bounds="version=3&wait_ms=20000")
            assert (refused.status, refused.problem) == (410, "version-gone")
            assert refused.body["retained_versions"] == [4, 6]
            assert "another number of partitions" in refused.text
            assert "minBatchesToRetain" not in refused.text
        assert committed_batches(checkpoint)[-1] == 5
        assert len(served.partitions()) == partitions
        assert served.changes() == ["layout", "layout"]


@pytest.mark.full
def test_a_node_that_starts_after_a_repartition_uses_no_local_base_of_the_old_layout(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, data_dir = tmp_path / "checkpoint", tmp_path / "data"
    run_counting(spark, checkpoint, ROCKSDB_V1, 3)
    with served_node(checkpoint, data_dir) as served:
        served.wait_for_version(3, partitions=3)
    repartition(spark, checkpoint, ROCKSDB_V1, 5)
    with served_node(checkpoint, data_dir) as served:
        served.wait_for_version(4, partitions=5)
        assert_as_spark_reads(served, spark, checkpoint)
