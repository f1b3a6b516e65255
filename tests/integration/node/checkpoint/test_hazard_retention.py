"""Hazard: a node sleeps for longer than Spark retains: the files it would need next are gone when it wakes up."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import assert_as_spark_reads, counting_feeder, rows, watched
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    StateFormat,
)
from tests.support.spark.queries import QueryOptions, StreamFeeder, committed_batches, wait_until

SHORT = QueryOptions(min_batches_to_retain=2, min_deltas_for_snapshot=2, maintenance_interval_ms=50)
ASLEEP_AT = 3

FORMATS = pytest.mark.parametrize(
    "state_format",
    [
        pytest.param(ROCKSDB_CHANGELOG_V2, id=ROCKSDB_CHANGELOG_V2.id),
        *(
            pytest.param(each, id=each.id, marks=pytest.mark.full)
            for each in (HDFS_V1, ROCKSDB_V1, ROCKSDB_CHANGELOG_V1)
        ),
    ],
)


def feed_until_purged(feeder: StreamFeeder) -> None:
    """Go on until neither the commits nor the state files that a node at `ASLEEP_AT` needs next are there."""

    def purged() -> bool:
        feeder.add(rows(committed_batches(feeder.checkpoint)[-1] + 1))
        names = [path.name for path in (feeder.checkpoint / "state/0/1").iterdir()]
        oldest = min(int(name.split(".")[0].split("_")[0]) for name in names if name[0].isdigit())
        return committed_batches(feeder.checkpoint)[0] > ASLEEP_AT and oldest > ASLEEP_AT + 1

    wait_until(purged, what="Spark's clean-up")


@pytest.mark.full
@FORMATS
def test_a_node_that_wakes_up_after_the_retention_starts_from_a_snapshot_again(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    files = PausableFiles(checkpoint)
    with counting_feeder(spark, checkpoint, state_format, SHORT) as feeder:
        for batch in range(ASLEEP_AT):
            feeder.add(rows(batch))
        with served_node(checkpoint, tmp_path / "data", files=files, end_expiry_ms=100) as served:
            served.wait_for_version(ASLEEP_AT)
            with watched(served):
                files.pause()
                try:
                    feed_until_purged(feeder)
                    asleep = served.look_up(["word-1"])
                    assert (asleep.status, asleep.body["version"]) == (200, ASLEEP_AT)
                    lag = asleep.body["lag"]
                    assert isinstance(lag, dict)
                    assert (lag["offset_lag"], lag["time_lag_ms"]) == (None, None), "unknown is never 0"
                finally:
                    files.resume()
                assert_as_spark_reads(served, spark, checkpoint)
            feeder.add(rows(committed_batches(checkpoint)[-1] + 1))
            assert_as_spark_reads(served, spark, checkpoint)
            assert {part["error"] for part in served.partitions()} == {None}
