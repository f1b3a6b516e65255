"""Hazards: the checkpoint gets another history while a node follows it, by being made anew or by being cut back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import assert_as_spark_reads, run_counting, watched
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    StateFormat,
)

KEPT = 3
"""Versions that a rewind keeps."""


def some_formats(first: StateFormat, *others: StateFormat) -> pytest.MarkDecorator:
    cases = [pytest.param(first, id=first.id)]
    cases += [pytest.param(each, id=each.id, marks=pytest.mark.full) for each in others]
    return pytest.mark.parametrize("state_format", cases)


def remove_checkpoint(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.rmtree(f"{checkpoint}.input")


def rewind(checkpoint: Path) -> None:
    """What an operator does to have batches run again: their entries of all logs go, and their input is another."""
    for log in ("commits", "offsets", "sources/0"):
        for entry in (checkpoint / log).iterdir():
            batch = entry.name.removeprefix(".").split(".")[0]
            if batch.isdigit() and int(batch) >= KEPT:
                entry.unlink()
    for entry in Path(f"{checkpoint}.input").glob("*.json"):
        if int(entry.stem) >= KEPT:
            entry.unlink()


@some_formats(ROCKSDB_CHANGELOG_V1, HDFS_V1, ROCKSDB_V1, ROCKSDB_CHANGELOG_V2)
def test_answers_of_a_checkpoint_that_was_made_anew_are_of_its_new_life_only(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 4)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(4)
        seen = served.look_up(["word-3"]).body["position"]
        assert served.look_up(["word-3"], bounds=f"min_position={seen}").status == 200
        with watched(served) as watch:
            remove_checkpoint(checkpoint)
            run_counting(spark, checkpoint, state_format, 2, life=2)
            served.wait_for_event("re-created")
            assert_as_spark_reads(served, spark, checkpoint)
        assert len(watch.lineages) == 2
        refused = served.look_up(["word-3"], bounds=f"min_position={seen}")
        assert (refused.status, refused.problem) == (409, "lineage-changed")
        assert "Drop the position" in refused.text
        # The same number of versions later it is still another history.
        run_counting(spark, checkpoint, state_format, 4, life=2)
        assert_as_spark_reads(served, spark, checkpoint)
        assert served.look_up(["word-3"], bounds=f"min_position={seen}").status == 409


@some_formats(
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_CHANGELOG_V1.with_default_manager(),
    ROCKSDB_V1.with_default_manager(),
    HDFS_V1.with_default_manager(),
)
def test_a_rewound_checkpoint_is_dropped_and_read_anew(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 5)
    with served_node(checkpoint, tmp_path / "data") as served:
        served.wait_for_version(5)
        seen = served.look_up(["word-3"]).body["position"]
        with watched(served, rewound=True):
            rewind(checkpoint)
            served.wait_for_event("rewound")
            served.wait_for_version(KEPT)
            too_new = served.look_up(["word-3"], bounds=f"min_position={seen}&wait_ms=0")
            assert (too_new.status, too_new.problem) == (409, "lineage-changed")
            run_counting(spark, checkpoint, state_format, 5, life=2)
            assert_as_spark_reads(served, spark, checkpoint)
        refused = served.look_up(["word-3"], bounds=f"min_position={seen}")
        assert (refused.status, refused.problem) == (409, "lineage-changed"), "the same version, committed again"
        assert served.events().count("rewound") == 1


@some_formats(ROCKSDB_CHANGELOG_V2, HDFS_V1.with_default_manager())
@pytest.mark.parametrize(
    "batches",
    [pytest.param(5, id="as-far-as-before", marks=pytest.mark.full), pytest.param(7, id="further-than-before")],
)
def test_a_rewind_that_nobody_saw_happen_is_noticed_by_the_last_commit(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat, batches: int
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 5)
    files = PausableFiles(checkpoint)
    with served_node(checkpoint, tmp_path / "data", files=files) as served:
        served.wait_for_version(5)
        seen = served.look_up(["word-3"]).body["position"]
        files.pause()
        try:
            rewind(checkpoint)
            run_counting(spark, checkpoint, state_format, batches, life=2)
        finally:
            files.resume()
        served.wait_for_event("rewound")
        assert_as_spark_reads(served, spark, checkpoint)
        if batches == 5:
            assert served.look_up(["word-3"], bounds=f"min_position={seen}").problem == "lineage-changed"
