"""Files that vanish between being listed and being read, as Spark's clean-up makes them: choose again, never half."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.storage_faults import VanishingFiles
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import WORDS, watched
from tests.support.spark.queries import wait_until


def with_snapshots(checkpoint: HandmadeCheckpoint, *versions: int) -> None:
    for version in versions:
        for partition in range(checkpoint.partitions):
            checkpoint.write(checkpoint.snapshot_path(version, partition), checkpoint.snapshot(version, partition))


def test_a_snapshot_that_vanishes_before_it_is_read_is_left_for_an_older_one(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3, 4, 5)
    with_snapshots(checkpoint, 2, 4)
    files = VanishingFiles(checkpoint.path, lambda path: path == "state/0/1/4.snapshot")
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served:
        served.wait_for_version(5)
        assert files.deleted == "state/0/1/4.snapshot"
        assert all(answer["version"] == 5 for answer in served.look_up_all([[word] for word in WORDS]))


def test_a_changelog_that_vanishes_before_it_is_read_is_left_for_a_newer_snapshot(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    files = VanishingFiles(checkpoint.path, lambda path: path == "state/0/1/3.delta")
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served, watched(served):
        served.wait_for_version(2)
        for version in (3, 4, 5):
            checkpoint.write_state(version)
        with_snapshots(checkpoint, 4)
        for version in (3, 4, 5):
            checkpoint.commit(version)
        served.wait_for_version(5)
        assert files.deleted == "state/0/1/3.delta"


def test_the_query_s_id_may_vanish_and_come_back_without_a_new_history(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    intact = (checkpoint.path / "metadata").read_bytes()
    with served_node(checkpoint.path, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2)
        (checkpoint.path / "metadata").unlink()
        wait_until(lambda: served.lag()["end_confirmed"] is False, what="doubt")
        checkpoint.add(3)
        checkpoint.write("metadata", intact)
        served.wait_for_version(3)
        assert not {"re-created", "rewound"} & set(served.events())
