"""Hazards: the driver is restarted, with the same settings or with others. What Spark lets change is followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import assert_as_spark_reads, run_counting, watched
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)
from tests.support.spark.queries import QueryOptions

PARTITION = Path("state/0/1")


def kinds_of(checkpoint: Path, version: int) -> set[str]:
    """Which kinds of state files one partition has of a version."""
    names = [path.name for path in (checkpoint / PARTITION).iterdir() if path.name[0].isdigit()]
    own = [name for name in names if name.split(".")[0].split("_")[0] == str(version) and not name.endswith(".crc")]
    return {name.rpartition(".")[2] for name in own}


@pytest.mark.parametrize(
    ("on", "off"),
    [
        pytest.param(ROCKSDB_CHANGELOG_V1, ROCKSDB_V1, id="v1", marks=pytest.mark.full),
        pytest.param(ROCKSDB_CHANGELOG_V2, ROCKSDB_V2, id="v2"),
    ],
)
def test_a_query_may_stop_writing_changelogs_and_begin_again(
    spark: SparkSession, tmp_path: Path, on: StateFormat, off: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, on, 2)
    with served_node(checkpoint, tmp_path / "data") as served, watched(served):
        for state_format, batches, kind in ((off, 4, "zip"), (on, 6, "changelog")):
            run_counting(spark, checkpoint, state_format, batches)
            assert kinds_of(checkpoint, batches) == {kind}, "the setting had no effect"
            assert_as_spark_reads(served, spark, checkpoint)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(HDFS_V1, ROCKSDB_CHANGELOG_V1, id="provider"),
        pytest.param(
            ROCKSDB_CHANGELOG_V1, replace(ROCKSDB_CHANGELOG_V1, codec="zstd"), id="codec", marks=pytest.mark.full
        ),
        pytest.param(HDFS_V1, replace(HDFS_V1, row_checksum=True), id="row-checksum", marks=pytest.mark.full),
        pytest.param(replace(ROCKSDB_V1, row_checksum=True), ROCKSDB_V1, id="checksum-off", marks=pytest.mark.full),
        pytest.param(ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, id="format-2", marks=pytest.mark.full),
    ],
)
def test_what_spark_keeps_from_the_first_start_has_no_effect_at_a_restart(
    spark: SparkSession, tmp_path: Path, before: StateFormat, after: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, before, 2)
    with served_node(checkpoint, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2, partitions=3)
        run_counting(spark, checkpoint, after, 4, options=QueryOptions(partitions=7))
        assert_as_spark_reads(served, spark, checkpoint)
        assert len(served.partitions()) == 3
        assert served.changes() == []
