"""A replica that cannot advance is not RUNNING, and probes, reports and metrics say so, until it goes on by itself."""

from __future__ import annotations

from pathlib import Path

from tests.integration.node.checkpoint.test_bad_state_files import DAMAGED
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until


def states(served: ServedNode) -> dict[object, object]:
    return {part["partition"]: part["state"] for part in served.partitions()}


def degraded(served: ServedNode) -> str:
    return str(served.get("/readyz").body["degraded"] or "")


def test_a_replica_before_a_damaged_changelog_is_restoring_and_readable_and_all_reports_say_that_it_stands(
    tmp_path: Path,
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", spark.ROCKSDB).create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
        assert set(states(served).values()) == {"RUNNING"}
        checkpoint.write_state(3)
        path = checkpoint.changelog_path(3, DAMAGED)
        checkpoint.write(path, b"")
        checkpoint.commit(3)
        wait_until(lambda: "cannot advance" in degraded(served), what="the word of the probe")
        assert served.not_ready() == "", "it answers who gave no bound"
        assert path in degraded(served)
        assert f"_{DAMAGED} is at version 2 of 3" in degraded(served)
        assert states(served) == {DAMAGED: "RESTORING", 1 - DAMAGED: "RUNNING"}
        metrics = served.text("/metrics")
        assert 'understudy_node_degraded{cause="replicas-stalled"} 1.0' in metrics
        assert "understudy_tasks_stalled 1.0" in metrics
        answers = served.look_up_all([[word] for word in WORDS])
        assert {(answer["partition"], answer["version"]) for answer in answers} == {(DAMAGED, 2), (1 - DAMAGED, 3)}
        assert all(answer["found"] for answer in answers)
        checkpoint.write(path, checkpoint.changes(3, DAMAGED))
        served.wait_for_version(3)
        wait_until(lambda: degraded(served) == "", what="nothing more to say")
        assert set(states(served).values()) == {"RUNNING"}
        assert "understudy_tasks_stalled 0.0" in served.text("/metrics")


def test_a_query_that_commits_nothing_and_a_ceiling_below_the_end_stall_no_replica(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", spark.ROCKSDB).create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
        served.node.hold_at(2)
        checkpoint.add(3)
        wait_until(lambda: served.node.end.version == 3 and served.node.end.confirmed_ms is not None, what="the end")
        (replica, *_) = served.node.generation.replicas if served.node.generation else ()
        for _ in range(3):
            replica.check_stall(0.0)  # as if many retries had passed
        assert degraded(served) == ""
        assert set(states(served).values()) == {"RUNNING"}
