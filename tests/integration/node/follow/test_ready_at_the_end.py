"""A node is ready when it has shown the end that it found at its start, and says why while it has not."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.storage_faults import HeldFile
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

SLOW = 1
"""The partition that takes its time."""


def with_snapshot_of_version_2(path: Path) -> HandmadeCheckpoint:
    """A history of three versions whose changelogs begin behind a snapshot."""
    checkpoint = HandmadeCheckpoint(path).create().add(1, 2, 3)
    for partition in range(2):
        checkpoint.write(checkpoint.snapshot_path(2, partition), checkpoint.snapshot(2, partition))
    return checkpoint


def wait_until_shown(served: ServedNode, partition: int, version: int) -> None:
    def shown() -> object:
        return {part["partition"]: part["current_offset_position"] for part in served.partitions()}.get(partition)

    wait_until(lambda: shown() == version, what=f"version {version}")


def test_a_node_that_shows_less_than_the_end_it_found_is_not_ready(tmp_path: Path) -> None:
    checkpoint = with_snapshot_of_version_2(tmp_path / "checkpoint")
    files = HeldFile(checkpoint.path, checkpoint.changelog_path(3, SLOW))
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served:
        try:
            wait_until_shown(served, SLOW, 2)
            wait_until_shown(served, 1 - SLOW, 3)
            assert served.not_ready() == f"checkpoint/0_{SLOW} is at version 2 of 3"
            checkpoint.add(4)
            wait_until_shown(served, 1 - SLOW, 4)
            assert served.not_ready().endswith("2 of 3"), "the end moves on, but not what it waits for"
        finally:
            files.released.set()
        wait_until(lambda: served.not_ready() == "", what="readiness")


def test_a_partition_that_cannot_reach_the_end_found_at_the_start_is_named_and_holds_the_others_up_no_longer(
    tmp_path: Path,
) -> None:
    checkpoint = with_snapshot_of_version_2(tmp_path / "checkpoint")
    damaged = checkpoint.changelog_path(3, SLOW)
    checkpoint.write(damaged, b"damaged")
    with served_node(checkpoint.path, tmp_path / "data") as served:
        wait_until(lambda: served.not_ready() == "", what="the verdict that it cannot advance")
        degraded = str(served.get("/readyz").body["degraded"])
        assert f"checkpoint/0_{SLOW} is at version 2 of 3" in degraded
        assert damaged in degraded
        versions = {answer["version"] for answer in served.look_up_all([[word] for word in WORDS])}
        assert versions == {2, 3}, "what it has is answered"
        checkpoint.write(damaged, checkpoint.changes(3, SLOW))
        wait_until(lambda: served.get("/readyz").body["degraded"] is None, what="its end")
