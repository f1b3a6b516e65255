"""A node measures how late commits become visible, and not how old the versions are that a new replica replays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.checkpoint.bytes import commit
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.queries import wait_until

from understudy_node.replica.task import TaskReplica

OLD = 6
"""Versions to replay: fewer than a replica may lack that counts as caught up."""

GAP_S = 15


@pytest.fixture
def replayed(tmp_path: Path) -> Iterator[tuple[HandmadeCheckpoint, ServedNode]]:
    """A node that took over from another one, of a query that committed every quarter of a minute."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create()
    commit_of_old(checkpoint, 1)
    for partition in range(checkpoint.partitions):
        checkpoint.write(checkpoint.snapshot_path(1, partition), checkpoint.snapshot(1, partition))
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.node.assign({})
        wait_until(lambda: served.node.end.version == 1 and not replicas(served), what="a node that holds nothing")
        for version in range(2, OLD + 1):
            commit_of_old(checkpoint, version)
            wait_for_end(served, version)
        served.node.assign(None)
        served.wait_for_version(OLD)
        yield checkpoint, served


def commit_of_old(checkpoint: HandmadeCheckpoint, version: int) -> None:
    """Commit a version as if each but the last were GAP_S older than the next."""
    checkpoint.write_state(version)
    file = checkpoint.write("aside", commit(0))
    written_s = file.stat().st_mtime - (OLD - version) * GAP_S
    os.utime(file, (written_s, written_s))
    (checkpoint.path / "commits").mkdir(exist_ok=True)
    file.replace(checkpoint.path / f"commits/{version - 1}")


def wait_for_end(served: ServedNode, version: int) -> None:
    wait_until(lambda: served.node.end.version == version, what=f"the commit of version {version}")


def replicas(served: ServedNode) -> Sequence[TaskReplica]:
    generation = served.node.generation
    return [] if generation is None else generation.replicas


def measured(served: ServedNode) -> int:
    return sum(served.node.measures.visible.histogram.counts)


def test_versions_that_a_new_replica_replays_are_no_late_commits(
    replayed: tuple[HandmadeCheckpoint, ServedNode],
) -> None:
    _, served = replayed
    assert measured(served) == 0
    assert served.node.measures.visible.freshness(served.node.now_ms()) is None
