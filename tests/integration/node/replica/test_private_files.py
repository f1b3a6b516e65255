"""State on a service's own disk is for its user only, and the checkpoint's files keep the mode that Spark gave them."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.cluster.served_node import Served
from tests.support.matrix import in_full
from tests.support.spark.counting_query import run_counting
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import wait_until

SERVE = """
import sys
from understudy_node.fleet.starting import serve
serve({"checkpoint": sys.argv[1], "data_dir": sys.argv[2], "port": 0, "overlay_max_bytes": 0},
     started=lambda node: print(node.host.port, flush=True))
"""


def stats_below(folder: Path) -> dict[Path, os.stat_result]:
    """What is below a folder that is written to: what was removed meanwhile is left out."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat()
    return found


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a file, and no link to one of Spark's."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "state_format",
    in_full((HDFS_V1, ROCKSDB_CHANGELOG_V2), if_in=("hdfs-v1",), names=("hdfs-v1", "rocksdb-changelog-v2")),
)
def test_whatever_a_node_writes_is_for_its_user_only(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    """The umask is the usual one. Tables that are links are Spark's own files: the folders around keep others out."""
    checkpoint, data = tmp_path / "checkpoint", tmp_path / "new" / "data"
    run_counting(spark, checkpoint, state_format, 3)
    of_spark = {path: mode(path) for path in checkpoint.rglob("*")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(checkpoint), str(data)], stdout=subprocess.PIPE, text=True, umask=0o022
    )
    try:
        assert process.stdout is not None
        served = Served(int(process.stdout.readline()))
        wait_until(lambda: served.not_ready() == "", what="the node to be ready")
        wait_until(lambda: any(path.name != "lock" for path in data.rglob("*.*")), what="a base, or a spill")
        written = {data: data.stat(), **stats_below(data)}
        folders = {path: stat.S_IMODE(found.st_mode) for path, found in written.items() if stat.S_ISDIR(found.st_mode)}
        assert {path: oct(bits) for path, bits in folders.items() if bits != 0o700} == {}
        own = {path: found.st_mode for path, found in written.items() if is_own_file(found)}
        assert own
        assert {path: oct(bits) for path, bits in own.items() if bits & 0o077} == {}
        assert {path: mode(path) for path in of_spark} == of_spark
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_what_was_left_open_is_closed_and_an_operators_folder_is_left_alone(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    for partition in (0, 1):
        checkpoint.write(checkpoint.snapshot_path(1, partition), checkpoint.snapshot(1, partition))
    data = tmp_path / "data"
    left_open = data / "checkpoint" / "an-earlier-life"
    left_open.mkdir(parents=True)
    for path in (data, data / "checkpoint", left_open):
        path.chmod(0o755)
    with followed_node(checkpoint.path, data) as node:
        wait_to_hold(node, "0_0", "0_1")
        assert mode(data) == 0o755
        assert mode(data / "checkpoint") == 0o700
