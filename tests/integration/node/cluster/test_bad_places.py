"""Ports and data directories that cannot be used: said at the start, or survived until they can be used again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.small_disk import fill, mounted
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.startup_refusals import refusal_to_serve
from tests.support.spark.counting_query import WORDS, watched
from tests.support.spark.queries import wait_until


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    made = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3)
    for partition in range(made.partitions):
        made.write(made.snapshot_path(3, partition), made.snapshot(3, partition))
    return made


def degraded(served: ServedNode) -> str:
    return str(served.get("/readyz").body["degraded"] or "")


def test_a_data_directory_belongs_to_one_node_at_a_time(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with served_node(checkpoint.path, data_dir) as served:
        served.wait_for_version(3)
        error = refusal_to_serve(checkpoint.path, data_dir)
        assert "in use by another node" in error.what
        assert error.where == str(data_dir)
        assert "--data-dir" in error.fix
        assert served.look_up([WORDS[0]]).status == 200
    with served_node(checkpoint.path, data_dir) as served:
        served.wait_for_version(3)


def test_a_data_directory_that_may_not_be_written_is_refused(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        error = refusal_to_serve(checkpoint.path, disk / "data")
    assert "data directory cannot be used" in error.what
    assert error.where == str(disk / "data")
    assert "--data-dir" in error.fix


def test_a_restore_onto_a_full_disk_says_where_and_goes_on_when_there_is_space(
    checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        ballast: list[Path] = []
        with served_node(checkpoint.path, disk / "data") as served:
            served.wait_for_version(3)
        for base in (disk / "data").glob("*/*/*/*/*/base.json"):
            shutil.rmtree(base.parent)  # both are to be restored again, and nothing is left that a start could remove
        ballast.append(fill(disk))
        with served_node(checkpoint.path, disk / "data") as served:
            wait_until(lambda: len(served.partitions()) == 2, what="the first poll")
            wait_until(lambda: all(part["error"] for part in served.partitions()), what="the errors")
            for part in served.partitions():
                assert "The disk is full" in str(part["error"])
                assert str(disk / "data") in str(part["error"])
                assert "Free space there" in str(part["error"])
            reply = served.look_up([WORDS[0]])
            assert (reply.status, reply.problem) == (502, "store-error")
            assert "The disk is full" in reply.text
            assert served.get("/livez").status == 200
            assert "The disk is full" in degraded(served)
            ballast[0].unlink()
            served.wait_for_version(3)
            assert {part["error"] for part in served.partitions()} == {None}
            wait_until(lambda: not degraded(served), what="the end of the cause")


def test_a_spill_onto_a_full_disk_holds_up_no_version_and_is_made_when_there_is_space(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", spark.ROCKSDB).create().add(1)
    with (
        mounted(tmp_path / "disk", "size=512k") as disk,
        served_node(checkpoint.path, disk / "data", overlay_max_bytes=1) as served,
    ):
        served.wait_for_version(1)
        wait_until(lambda: all(part["overlay_bytes"] == 0 for part in served.partitions()), what="the first spill")
        ballast = fill(disk)
        with watched(served):
            checkpoint.add(2)
            served.wait_for_version(2)
            wait_until(lambda: "The disk is full" in str(served.partitions()), what="the error")
            checkpoint.add(3)
            served.wait_for_version(3)
            assert "replicas cannot write their local copies" in degraded(served)
            assert 'understudy_node_degraded{cause="local-disk"} 1.0' in served.text("/metrics")
            (indicator,) = (
                each for each in json.loads(served.text("/admin/v1/health"))["indicators"] if each["name"] == "degraded"
            )
            assert (indicator["state"], indicator["affected"]) == ("attention", ["local-disk"])
            ballast.unlink()
            wait_until(lambda: all(part["overlay_bytes"] == 0 for part in served.partitions()), what="the spill")
            assert served.shows(3)
            wait_until(lambda: not degraded(served), what="the end of the cause")
        assert {part["error"] for part in served.partitions()} == {None}


def test_a_data_directory_that_goes_away_stops_no_following_and_the_next_snapshot_is_kept_again(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    data = tmp_path / "data"
    with served_node(checkpoint.path, data, overlay_max_bytes=1) as served, watched(served):
        served.wait_for_version(1)
        wait_until(lambda: all(part["overlay_bytes"] == 0 for part in served.partitions()), what="the first spill")
        data.rename(tmp_path / "elsewhere")
        data.write_text("in the way")
        checkpoint.add(2)
        served.wait_for_version(2)
        wait_until(lambda: str(data) in str([part["error"] for part in served.partitions()]), what="the error")
        data.unlink()
        checkpoint.write_state(3)
        for partition in range(checkpoint.partitions):
            checkpoint.write(checkpoint.snapshot_path(3, partition), checkpoint.snapshot(3, partition))
        checkpoint.commit(3)
        served.wait_for_version(3)
        wait_until(lambda: all(part["overlay_bytes"] == 0 for part in served.partitions()), what="the new base")
        assert {part["error"] for part in served.partitions()} == {None}
