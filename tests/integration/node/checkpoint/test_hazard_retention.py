"""Hazards: Spark removes files while a node follows, or reads them."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import (
    WORDS,
    assert_as_spark_reads,
    counting_feeder,
    rows,
    run_counting,
    watched,
    why_mixed,
)
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


DAMAGED = Path("state/0/1")


def snapshots(folder: Path) -> dict[int, Path]:
    """The zips of a partition by version."""
    return {int(path.name.split(".")[0].split("_")[0]): path for path in folder.glob("*.zip")}


def tables_of(snapshot: Path) -> set[Path]:
    with zipfile.ZipFile(snapshot) as archive:
        manifest = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
    return {snapshot.parent / "SSTs" / table["dfsSstFileName"] for table in manifest["sstFiles"]}


def newest_table(partition: Path) -> Path:
    """A table that only the newest snapshot names."""
    by_version = snapshots(partition)
    newest = by_version.pop(max(by_version))
    others = set().union(*(tables_of(path) for path in by_version.values()))
    return min(tables_of(newest) - others)


def newest_snapshot(partition: Path) -> Path:
    by_version = snapshots(partition)
    return by_version[max(by_version)]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble(path: Path) -> None:
    """The same size, and nothing in its place."""
    path.write_bytes(bytes(path.stat().st_size))


HARMS: tuple[Callable[[Path], None], ...] = (
    lambda partition: newest_table(partition).unlink(),
    lambda partition: cut(newest_table(partition)),
    lambda partition: garble(newest_table(partition)),
    lambda partition: cut(newest_snapshot(partition)),
    lambda partition: garble(newest_snapshot(partition)),
)


@pytest.mark.full
@pytest.mark.parametrize(
    "state_format",
    [
        pytest.param(ROCKSDB_CHANGELOG_V2, id=ROCKSDB_CHANGELOG_V2.id),
        pytest.param(ROCKSDB_CHANGELOG_V1, id=ROCKSDB_CHANGELOG_V1.id),
    ],
)
def test_with_changelogs_a_node_starts_from_the_snapshot_before(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options = QueryOptions(min_deltas_for_snapshot=2, maintenance_interval_ms=50)
    with counting_feeder(spark, checkpoint, state_format, options) as feeder:
        for batch in range(3):
            feeder.add(rows(batch))
        wait_until(lambda: len(snapshots(checkpoint / DAMAGED)) >= 1, what="a first snapshot")
        for batch in range(3, 6):
            feeder.add(rows(batch))
        wait_until(lambda: len(snapshots(checkpoint / DAMAGED)) >= 2, what="a second snapshot")
    words = (*WORDS, *(f"born-{born}" for born in range(6)))
    for number, harm in enumerate(HARMS):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(checkpoint, copy)
        harm(copy / DAMAGED)
        with served_node(copy, tmp_path / f"data-{number}") as served:
            # Spark's own reader would stumble over the snapshot too: the rule of counting tells what is right.
            served.wait_for_version(6)
            answers = served.look_up_all([[word] for word in words])
            assert all(answer["found"] for answer in answers)
            assert [why for answer in answers if (why := why_mixed(answer)) is not None] == []


def test_without_changelogs_the_version_before_is_served_and_the_file_is_named_until_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, ROCKSDB_V1, 3)
    table = newest_table(checkpoint / DAMAGED)
    kept = table.rename(tmp_path / table.name)
    with served_node(checkpoint, tmp_path / "data") as served:
        wait_until(
            lambda: {part["current_offset_position"] for part in served.partitions()} == {2, 3}, what="what there is"
        )
        wait_until(lambda: table.name in str([part["error"] for part in served.partitions()]), what="the error")
        error = next(str(part["error"]) for part in served.partitions() if part["error"])
        assert "lacks a file that it names" in error
        assert "next that Spark writes" in error
        answers = served.look_up_all([[word] for word in WORDS])
        assert {answer["version"] for answer in answers} == {2, 3}
        assert [why for answer in answers if (why := why_mixed(answer)) is not None] == []
        kept.rename(table)
        assert_as_spark_reads(served, spark, checkpoint)
        run_counting(spark, checkpoint, ROCKSDB_V1, 4)
        assert_as_spark_reads(served, spark, checkpoint)
