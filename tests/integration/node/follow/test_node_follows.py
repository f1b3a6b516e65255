"""A node beside a running query: a damaged base, bounded memory, one shared cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import assert_as_spark_reads, counting_feeder, rows, run_counting
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions

from understudy_node.engine.view import StateView

SNAPSHOTS = QueryOptions(min_deltas_for_snapshot=2, maintenance_interval_ms=50)


@pytest.mark.parametrize(
    "state_format", [pytest.param(HDFS_V1, marks=pytest.mark.full), ROCKSDB_CHANGELOG_V2], ids=lambda given: given.id
)
def test_a_local_base_that_does_not_open_any_more_is_restored_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint, data = tmp_path / "counting", tmp_path / "data"
    with counting_feeder(spark, checkpoint, state_format, SNAPSHOTS) as feeder:
        for batch in range(5):
            feeder.add(rows(batch))
        with served_node(checkpoint, data) as served:
            served.wait_for_version(5)
        bases = [path.parent for path in data.rglob("base.json")]
        assert bases
        for path in (path for base in bases for path in base.iterdir() if path.name != "base.json"):
            path.unlink()
            path.write_bytes(b"cut by a reboot")
        with served_node(checkpoint, data) as served:
            served.wait_for_version(5)
            assert_as_spark_reads(served, spark, checkpoint)


def test_changes_above_the_budget_go_to_a_newer_snapshot_when_spark_writes_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "counting"
    with counting_feeder(spark, checkpoint, ROCKSDB_CHANGELOG_V2, SNAPSHOTS) as feeder:
        feeder.add(rows(0))
        with served_node(checkpoint, tmp_path / "data", overlay_max_bytes=1) as served:
            served.wait_for_version(1)
            first = max(store.base_version for store in _views(served))
            for batch in range(1, 30):
                feeder.add(rows(batch))
                served.wait_for_version(batch + 1)
                if all(store.base_version > first for store in _views(served)):
                    break
            assert all(store.base_version > first for store in _views(served))
            assert_as_spark_reads(served, spark, checkpoint)


def _views(served: ServedNode) -> list[StateView]:
    generation = served.node.generation
    assert generation is not None
    return [replica.view.stores["default"] for replica in generation.replicas if replica.view is not None]


@pytest.mark.parametrize("capacity_bytes", [0, 64 * 1024])
def test_all_stores_of_a_node_share_one_bounded_cache_and_the_metric_says_its_size(
    spark: SparkSession, tmp_path: Path, capacity_bytes: int
) -> None:
    checkpoint = tmp_path / "counting"
    run_counting(spark, checkpoint, ROCKSDB_CHANGELOG_V2, 5, options=SNAPSHOTS)
    with served_node(checkpoint, tmp_path / "data", statestore_cache_max_bytes=capacity_bytes) as served:
        served.wait_for_version(5)
        before_bytes = served.node.cache.used_bytes
        for store in _views(served):
            assert list(store.base.scan())  # every key changed since: lookups see the overlay
        used_bytes = served.node.cache.used_bytes
        # Without a cache nothing is kept but its own bookkeeping, which reading does not change.
        assert used_bytes == before_bytes < 1024 if capacity_bytes == 0 else 1024 < used_bytes <= capacity_bytes
        metrics = served.text("/metrics")
        assert f"understudy_cache_capacity_bytes {float(capacity_bytes)}" in metrics
        assert "understudy_cache_size_bytes " in metrics
