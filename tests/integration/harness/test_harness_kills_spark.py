"""The harness itself: it leaves a dead attempt's files behind, and Spark makes something else of the batch.

Every run sees that in test_uncommitted_attempts.py, of the format that it crashes in; here are the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.oracle.spark_reader import read_state
from tests.support.spark.crash import DEAD_BATCH, OPERATOR_ID, crash_before_commit
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)
from tests.support.spark.queries import committed_batches

pytestmark = pytest.mark.full


@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V1, HDFS_V1, ROCKSDB_V1], ids=lambda f: f.id)
def test_in_format_1_the_next_attempt_writes_other_bytes_over_the_dead_one_s(
    tmp_path: Path, state_format: StateFormat
) -> None:
    run = crash_before_commit(tmp_path, state_format.with_default_manager())
    dead = run.state_files(run.dead_version)
    assert dead == run.state_files(run.dead_version, of=run.as_left) != {}
    run.finish()
    assert committed_batches(run.checkpoint) == tuple(range(DEAD_BATCH + 2))
    rerun = run.state_files(run.dead_version)
    assert rerun.keys() == dead.keys()
    assert all(rerun[name] != dead[name] for name in dead)


@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V2, ROCKSDB_V2], ids=lambda f: f.id)
def test_in_format_2_the_dead_attempt_s_files_stay_as_orphans(tmp_path: Path, state_format: StateFormat) -> None:
    run = crash_before_commit(tmp_path, state_format.with_default_manager())
    dead = run.state_files(run.dead_version)
    run.finish()
    after = run.state_files(run.dead_version)
    assert len(after) == 2 * len(dead) > 0
    assert {name: after[name] for name in dead} == dead


def test_a_dead_attempt_s_snapshot_is_what_spark_itself_reads_in_format_1_on_hdfs(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = crash_before_commit(tmp_path, HDFS_V1.with_default_manager(), with_snapshot=True)
    snapshots = {name: data for name, data in run.state_files(run.dead_version).items() if name.endswith(".snapshot")}
    deltas = {name: data for name, data in run.state_files(run.dead_version).items() if name.endswith(".delta")}
    run.finish()
    assert snapshots.items() <= run.state_files(run.dead_version).items()
    assert all(run.state_files(run.dead_version)[name] != data for name, data in deltas.items())
    salts = {row.value[2] for row in read_state(spark, run.checkpoint, OPERATOR_ID, DEAD_BATCH)}
    assert salts == {"first"}


def test_the_quick_checkpoint_manager_keeps_the_dead_attempt_s_delta_on_a_local_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = crash_before_commit(tmp_path, HDFS_V1)
    dead = run.state_files(run.dead_version)
    run.finish()
    assert run.state_files(run.dead_version) == dead
    assert {row.value[2] for row in read_state(spark, run.checkpoint, OPERATOR_ID, DEAD_BATCH)} == {"first"}
