"""Hazards for sessions, joins and lists: retention, rewinds, and a driver that is killed before its commit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.node.checkpoint.test_hazard_new_history import KEPT, rewind
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_kinds import (
    SCHEMA,
    assert_all_right,
    builder,
    checkpoint_state,
    kinds_watched,
    options,
    rows,
)
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.process import SparkJob, spark_job
from tests.support.spark.queries import InputFolder, committed_batches, run_query, stream_feeder, wait_until

DEAD_BATCH = 3
ASLEEP_AT = 3


def first_life(batch: int) -> int:
    return 1


def second_from(first: int, batch: int) -> int:
    """The life of a batch where those from `first` on were run again."""
    return 1 if batch < first else 2


def run(spark: SparkSession, checkpoint: Path, state_format: StateFormat, lives: Sequence[int]) -> None:
    """Run the query up to so many batches, each of its life."""
    run_query(
        spark,
        name="kinds",
        schema=SCHEMA,
        batches=[rows(batch, life=life) for batch, life in enumerate(lives)],
        build=builder(state_format),
        checkpoint=checkpoint,
        state_format=state_format,
        options=options(state_format),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "state_format",
    [ROCKSDB_CHANGELOG_V2, HDFS_V1.with_default_manager()],
    ids=lambda f: f.id,
)
def test_a_rewound_checkpoint_of_sessions_joins_and_lists_is_dropped_and_read_anew(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, checkpoint, state_format, [1] * 5)
    with served_node(checkpoint, tmp_path / "data") as served:
        assert_all_right(served, state_format, 5, first_life)
        rewind(checkpoint)
        served.wait_for_event("rewound")
        assert_all_right(served, state_format, KEPT, first_life)
        life_of = partial(second_from, KEPT)
        with kinds_watched(served, life_of):
            run(spark, checkpoint, state_format, [1] * KEPT + [2] * 2)
            assert_all_right(served, state_format, 5, life_of)


@pytest.mark.full
@pytest.mark.parametrize("state_format", [ROCKSDB_CHANGELOG_V2, HDFS_V1, ROCKSDB_CHANGELOG_V1], ids=lambda f: f.id)
def test_a_node_that_slept_through_the_retention_has_sessions_joins_and_lists_from_a_snapshot_again(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    files = PausableFiles(checkpoint)
    short = options(state_format, min_batches_to_retain=2, min_deltas_for_snapshot=2, maintenance_interval_ms=50)
    with stream_feeder(
        spark,
        name="kinds",
        schema=SCHEMA,
        build=builder(state_format),
        checkpoint=checkpoint,
        state_format=state_format,
        options=short,
    ) as feeder:
        for batch in range(ASLEEP_AT):
            feeder.add(rows(batch))
        with served_node(checkpoint, tmp_path / "data", files=files, end_expiry_ms=100) as served:
            assert_all_right(served, state_format, ASLEEP_AT, first_life)
            with kinds_watched(served, first_life, loses_watermarks=True):
                files.pause()
                try:

                    def purged() -> bool:
                        feeder.add(rows(committed_batches(checkpoint)[-1] + 1))
                        is_gone = not checkpoint_state(checkpoint, ASLEEP_AT + 1)
                        return is_gone and committed_batches(checkpoint)[0] > ASLEEP_AT

                    wait_until(purged, what="Spark's clean-up")
                finally:
                    files.resume()
                assert_all_right(served, state_format, committed_batches(checkpoint)[-1] + 1, first_life)
            feeder.add(rows(committed_batches(checkpoint)[-1] + 1))
            assert_all_right(served, state_format, committed_batches(checkpoint)[-1] + 1, first_life)


@pytest.mark.full
@pytest.mark.parametrize(
    "state_format",
    [ROCKSDB_CHANGELOG_V2, HDFS_V1.with_default_manager()],
    ids=lambda f: f.id,
)
def test_no_reader_sees_sessions_rows_or_values_of_an_attempt_that_was_killed_before_its_commit(
    tmp_path: Path, state_format: StateFormat
) -> None:
    """A node follows all along, one is started while the dead attempt lies there, one after the batch was run again."""
    checkpoint = tmp_path / "checkpoint"
    feed = InputFolder(Path(f"{checkpoint}.input"))
    for batch in range(DEAD_BATCH + 2):
        feed.add(rows(batch, life=0))  # the job adds its own
    life_of = partial(second_from, DEAD_BATCH)
    with ExitStack() as stack:

        def follow(name: str) -> None:
            served = stack.enter_context(served_node(checkpoint, tmp_path / name))
            stack.enter_context(kinds_watched(served, life_of))
            followers.append(served)

        followers: list[ServedNode] = []
        with _job(tmp_path, checkpoint, state_format, life=1, hold=DEAD_BATCH) as job:
            job.wait_until(lambda: 0 in committed_batches(checkpoint), what="the first commit")
            follow("before")
            job.wait_for_line(f"state of batch {DEAD_BATCH} written")
            job.kill()
        assert committed_batches(checkpoint) == tuple(range(DEAD_BATCH))
        dead = checkpoint_state(checkpoint, DEAD_BATCH + 1)
        assert len(dead) > 2
        shutil.copytree(checkpoint, tmp_path / "as-left")
        follow("between")
        for served in followers:
            assert_all_right(served, state_format, DEAD_BATCH, first_life)
        with _job(tmp_path, checkpoint, state_format, life=2, hold=None) as job:
            job.wait_for_line("finished")
        follow("after")
        for served in followers:
            assert_all_right(served, state_format, DEAD_BATCH + 2, life_of)
        now = checkpoint_state(checkpoint, DEAD_BATCH + 1)
        assert any(now[name] != data for name, data in dead.items()) or len(now) > len(dead), "nothing was run again"


def _job(
    folder: Path, checkpoint: Path, state_format: StateFormat, *, life: int, hold: int | None
) -> AbstractContextManager[SparkJob]:
    arguments = [str(checkpoint), "--folder", str(folder / f"spark-{life}"), "--format"]
    arguments += [json.dumps(asdict(state_format)), "--life", str(life)]
    arguments += [] if hold is None else ["--hold", str(hold)]
    return spark_job("kinds_until_killed.py", arguments, folder / f"job-{life}")
