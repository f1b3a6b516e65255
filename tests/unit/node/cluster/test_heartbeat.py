"""A heartbeat says how the node is, in a size that does not grow with the tasks in step; unknown stays unknown."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, heartbeat, held, wait_to_hold
from tests.support.spark.queries import wait_until

from understudy_node.node import Node
from understudy_shared.bus.messages import Heartbeat, QueryProgress


def test_tasks_in_step_are_reported_as_one_and_the_others_by_name(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", "0_2", "0_3", version=1)
        damaged = checkpoint.path / checkpoint.changelog_path(2, 2)
        checkpoint.write_state(2)
        damaged.write_bytes(b"cut")
        checkpoint.commit(2)
        wait_until(lambda: held(node)["0_2"].error is not None, what="the damage to be met")
        wait_until(lambda: heartbeat(node).applied.version == 2, what="the others at version 2")
        beat = heartbeat(node)
        assert (beat.applied.version, beat.applied.state, beat.applied.error) == (2, "RUNNING", None)
        assert list(beat.exceptions) == ["0_2"]
        assert beat.exceptions["0_2"].version == 1
        assert "changelog" in str(beat.exceptions["0_2"].error) or "2.delta" in str(beat.exceptions["0_2"].error)
        assert Heartbeat.decode(beat.encode(), application_id="checkpoint", where="here") == beat


def test_a_batch_that_has_begun_is_told_apart_from_a_query_that_begins_none(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        assert query(node).batch_ms is None
        checkpoint.write_state(2)
        wait_until(lambda: query(node).batch_ms is not None, what="the batch to be seen")
        assert query(node).since_commit_ms is None, "no commit arrived while it looked"
        checkpoint.commit(2)
        wait_until(lambda: query(node).since_commit_ms is not None, what="the commit to be seen")
        assert query(node).batch_ms is None


def query(node: Node) -> QueryProgress:
    """What a heartbeat of the node says of the query."""
    said = heartbeat(node).query
    assert said is not None
    return said
