"""How far a restore is: what a task says is the sum of its stores, and unknown sizes are not 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, heartbeat, wait_to_hold

from understudy_node.replica.restore import CHOOSING, FETCHING, OPENING, REPLAYING, RestoreProgress, of_all
from understudy_node.replica.task import TaskReplica
from understudy_shared.base.words import ReplicaState
from understudy_shared.bus.messages import Restore


def progress(stage: str, done_bytes: int = 0, total_bytes: int | None = None) -> RestoreProgress:
    made = RestoreProgress()
    made.stage, made.done_bytes, made.total_bytes = stage, done_bytes, total_bytes
    return made


@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        ([(progress(CHOOSING), False)], Restore(stage=CHOOSING, done_bytes=0, total_bytes=None)),
        ([(progress(FETCHING, 3, 9), False)], Restore(stage=FETCHING, done_bytes=3, total_bytes=9)),
        (
            [(progress(OPENING, 9, 9), True), (progress(FETCHING, 1, 4), False)],
            Restore(stage=FETCHING, done_bytes=10, total_bytes=13),
        ),
        (
            [(progress(OPENING, 9, 9), True), (progress(CHOOSING), False)],
            Restore(stage=CHOOSING, done_bytes=9, total_bytes=None),
        ),
        ([(progress(OPENING, 9, 9), True)], Restore(stage=REPLAYING, done_bytes=9, total_bytes=9)),
        ([(progress(CHOOSING), True)], Restore(stage=REPLAYING, done_bytes=0, total_bytes=0)),
    ],
)
def test_a_task_is_at_the_stage_of_its_first_store_that_is_not_open(
    stores: list[tuple[RestoreProgress, bool]], expected: Restore
) -> None:
    assert of_all(stores) == expected


def test_a_heartbeat_says_how_far_a_restore_is_and_nothing_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    snapshot = checkpoint.write(checkpoint.snapshot_path(1, 0), checkpoint.snapshot(1, 0))
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        said = heartbeat(node)
        assert [applied.restore for applied in (said.applied, *said.exceptions.values())] == [None]
        assert node.generation is not None
        replica = node.generation.held["0_0"]
        monkeypatch.setattr(TaskReplica, "state", ReplicaState.RESTORING)
        restore = replica.restore
        assert restore is not None
        assert (restore.stage, restore.done_bytes, restore.total_bytes) == (
            REPLAYING, snapshot.stat().st_size, snapshot.stat().st_size,
        )  # fmt: skip
        assert node.measures.restored_bytes == snapshot.stat().st_size
