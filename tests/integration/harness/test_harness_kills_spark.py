"""The harness itself: it leaves a dead attempt's files behind, and Spark makes something else of the batch.

Every run sees that in test_uncommitted_attempts.py, of the format that it crashes in; here are the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.spark.crash import DEAD_BATCH, crash_before_commit
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


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V2, ROCKSDB_V2], ids=lambda f: f.id)
def test_in_format_2_the_dead_attempt_s_files_stay_as_orphans(tmp_path: Path, state_format: StateFormat) -> None:
    run = crash_before_commit(tmp_path, state_format.with_default_manager())
    dead = run.state_files(run.dead_version)
    run.finish()
    after = run.state_files(run.dead_version)
    assert len(after) == 2 * len(dead) > 0
    assert {name: after[name] for name in dead} == dead
