"""A node that comes back to its data directory: what is recent is opened again, what is not is restored, and what a
kill left half done is never believed. Spark writes the checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.integration.node.checkpoint.test_bad_state_files import assert_every_word_is_of
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.cluster.served_node import Served, ServedNode, served_node
from tests.support.matrix import in_full
from tests.support.spark.counting_query import (
    WORDS,
    assert_as_spark_reads,
    counting_feeder,
    rows,
    run_counting,
    why_mixed,
)
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, StreamFeeder, committed_batches, wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, FetchMethod, LocalFiles
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.replica.workers import FairQueue

SNAPSHOTS = QueryOptions(min_deltas_for_snapshot=2, maintenance_interval_ms=50)
SHORT = QueryOptions(min_batches_to_retain=2, min_deltas_for_snapshot=2, maintenance_interval_ms=50)
BATCHES = 5

FORMATS = pytest.mark.parametrize(
    "state_format",
    [
        pytest.param(HDFS_V1, id=HDFS_V1.id, marks=pytest.mark.full),
        pytest.param(ROCKSDB_CHANGELOG_V2, id=ROCKSDB_CHANGELOG_V2.id),
        pytest.param(ROCKSDB_CHANGELOG_V1, id=ROCKSDB_CHANGELOG_V1.id, marks=pytest.mark.full),
    ],
)


class NotedFiles(LocalFiles):
    """Storage that notes which state files are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._noting = threading.Lock()
        self._noted: set[str] = set()

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self._note(path)
        return super().read(path, max_bytes)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        self._note(path)
        return super().fetch(path, destination)

    def changelogs(self) -> set[int]:
        """The versions whose changelog was read."""
        return {version_of(name) for name in self._names() if name.endswith((".delta", ".changelog"))}

    def tables(self) -> set[str]:
        """Everything that only a restore reads."""
        return {name for name in self._names() if name.endswith((".snapshot", ".zip", ".sst"))}

    def _note(self, path: str) -> None:
        with self._noting:
            self._noted.add(path)

    def _names(self) -> set[str]:
        with self._noting:
            return {Path(path).name for path in self._noted if path.startswith("state/")}


def version_of(name: str) -> int:
    """The version of a state file, in either format: `7.changelog`, `7_<unique id>.zip`."""
    return int(name.partition(".")[0].partition("_")[0])


def base_versions(data_dir: Path) -> dict[str, int]:
    """The version of each whole base on local disk, by its task."""
    return {path.parent.parent.parent.name: int(path.parent.name.split("-")[0]) for path in data_dir.rglob("base.json")}


@FORMATS
def test_a_node_that_comes_back_soon_opens_its_local_bases_and_reads_only_the_changelogs_since(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint, data_dir = tmp_path / "checkpoint", tmp_path / "data"
    with counting_feeder(spark, checkpoint, state_format, SNAPSHOTS) as feeder:
        for batch in range(BATCHES):
            feeder.add(rows(batch))
        with served_node(checkpoint, data_dir) as served:
            served.wait_for_version(BATCHES)
            tasks = len(served.partitions())
        bases = base_versions(data_dir)
        assert len(bases) == tasks, "every task has a base to come back to"
        feeder.add(rows(BATCHES))
        files = NotedFiles(checkpoint)
        with served_node(checkpoint, data_dir, files=files) as served:
            assert_as_spark_reads(served, spark, checkpoint)
            assert base_versions(data_dir) == bases
            assert files.tables() == set(), "nothing is restored"
            assert min(files.changelogs()) > min(bases.values()), "nothing is read that the base has"
            assert BATCHES + 1 in files.changelogs()


def purge(feeder: StreamFeeder, bases: dict[str, int]) -> None:
    """Go on until Spark has removed the commits that could vouch for the bases, and the changelogs after them."""

    def purged() -> bool:
        feeder.add(rows(committed_batches(feeder.checkpoint)[-1] + 1))
        names = [path.name for path in feeder.checkpoint.glob("state/0/*/*") if path.name[0].isdigit()]
        newest_base = max(bases.values())
        return committed_batches(feeder.checkpoint)[0] > newest_base and min(map(version_of, names)) > newest_base + 1

    wait_until(purged, what="Spark's clean-up", limit_s=60)


@FORMATS
def test_a_node_that_comes_back_after_the_retention_restores_anew(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint, data_dir = tmp_path / "checkpoint", tmp_path / "data"
    with counting_feeder(spark, checkpoint, state_format, SHORT) as feeder:
        for batch in range(BATCHES):
            feeder.add(rows(batch))
        with served_node(checkpoint, data_dir) as served:
            served.wait_for_version(BATCHES)
        bases = base_versions(data_dir)
        purge(feeder, bases)
        files = NotedFiles(checkpoint)
        with served_node(checkpoint, data_dir, files=files) as served:
            assert_as_spark_reads(served, spark, checkpoint)
            assert files.tables(), "it was restored"
            now = base_versions(data_dir)
            assert now.keys() == bases.keys(), "one base for each task: the old ones are removed"
            assert min(now.values()) > max(bases.values())
            assert {part["error"] for part in served.partitions()} == {None}


RESTORER = """
import os, sys, threading
from pathlib import Path
from understudy_node.checkpoint.files import LocalFiles
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_node.replica import local_bases

checkpoint, data_dir, stop_at = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

def halt(*_, **__):
    os.write(1, b"halfway\\n")
    threading.Event().wait()

def then_halt(work):
    def halting(*given, **named):
        yield next(iter(work(*given, **named)))
        halt()
    return halting

if stop_at == "before the record":
    local_bases.LocalBases.finish = halt
elif stop_at == "in the record":
    def cut(bases, directory, record):
        (directory / ".base.json").write_text(record.model_dump_json()[:20])
        halt()
    local_bases.LocalBases.finish = cut
else:
    local_bases.build_arena = then_halt(local_bases.build_arena)
    fetch = LocalFiles.fetch
    def fetch_and_halt(files, path, destination):
        fetch(files, path, destination)
        halt()
    LocalFiles.fetch = fetch_and_halt

node = Node(
    NodeSettings(checkpoint=checkpoint, data_dir=data_dir, lag_refresh_ms=20),
    LocalFiles(checkpoint), host=HostInfo("127.0.0.1", 1), clock=SystemClock(),
)
node.start()
threading.Event().wait()
"""


IN_THE_CONTENT, IN_THE_RECORD, BEFORE_THE_RECORD = "in the content", "in the record", "before the record"
KILLS = [
    pytest.param(HDFS_V1, IN_THE_CONTENT, id="hdfs, in the content"),
    pytest.param(ROCKSDB_CHANGELOG_V2, IN_THE_CONTENT, id="rocksdb, in the content", marks=pytest.mark.full),
    pytest.param(ROCKSDB_CHANGELOG_V2, IN_THE_RECORD, id="rocksdb, in the record"),
    pytest.param(ROCKSDB_CHANGELOG_V2, BEFORE_THE_RECORD, id="rocksdb, before the record", marks=pytest.mark.full),
    pytest.param(HDFS_V1, IN_THE_RECORD, id="hdfs, in the record", marks=pytest.mark.full),
    pytest.param(HDFS_V1, BEFORE_THE_RECORD, id="hdfs, before the record", marks=pytest.mark.full),
]
"""Contents are made in a way of their own for each provider, records in one."""


@pytest.mark.parametrize(("state_format", "stop_at"), KILLS)
def test_a_kill_in_the_middle_of_a_restore_leaves_nothing_that_is_believed_later(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat, stop_at: str
) -> None:
    checkpoint, data_dir = tmp_path / "checkpoint", tmp_path / "data"
    run_counting(spark, checkpoint, state_format, BATCHES, options=SNAPSHOTS)
    command = [sys.executable, "-c", RESTORER, str(checkpoint), str(data_dir), stop_at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "halfway\n"
        finally:
            process.kill()
        assert process.wait(30) == -signal.SIGKILL
    left = [path for path in data_dir.rglob("*") if path.is_file() and path.name != "lock"]
    assert left, "something is left half done"
    assert base_versions(data_dir) == {}
    files = NotedFiles(checkpoint)
    with served_node(checkpoint, data_dir, files=files) as served:
        assert_as_spark_reads(served, spark, checkpoint)
        assert served.look_up([WORDS[0]]).status == 200
        assert len(base_versions(data_dir)) == len(served.partitions())
        directories = {path.parent for path in data_dir.rglob("base.json")}
        stale = [path for path in left if path.exists() and path.parent not in directories]
        assert stale == [], "what was half done is removed"


def harm(path: Path) -> None:
    """Flip a bit in each second byte."""
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data), 2):
        data[at] ^= 0x04
    path.write_bytes(data)


def told(served: ServedNode) -> int:
    """How many damaged copies its metrics count."""
    (line,) = [each for each in served.text("/metrics").splitlines() if each.startswith("understudy_local_copies_dam")]
    return int(float(line.split()[-1]))


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    made = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    for partition in range(made.partitions):
        made.write(made.snapshot_path(2, partition), made.snapshot(2, partition))
    return made


@pytest.mark.parametrize("name", ["arena.records", "arena.index", "arena.sums", "base.json"])
def test_a_local_copy_that_was_damaged_while_the_node_was_away_is_built_again(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, name: str
) -> None:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
    copies = list((tmp_path / "data").rglob(name))
    assert len(copies) == checkpoint.partitions
    for path in copies:
        harm(path)
    damaged = {path: path.read_bytes() for path in copies}
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
        assert_every_word_is_right_or_an_error(served)
        if name in {"arena.records", "arena.index"} and told(served):
            assert "local-damage" in served.events()
        wait_until(lambda: served.get("/readyz").body["degraded"] is None, what="copies that are built again")
        assert not [path for path in copies if path.exists() and path.read_bytes() == damaged[path]]
        assert_every_word_is_of(served, 2)
        served.wait_for_version(2)


def test_a_copy_that_is_cut_off_under_a_running_node_is_told_and_built_again(
    tmp_path: Path, checkpoint: HandmadeCheckpoint
) -> None:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
        for path in (tmp_path / "data").rglob("arena.records"):
            with path.open("r+b") as file:
                file.truncate(8)
        wait_until(lambda: told(served) == checkpoint.partitions, what="the count of the metrics")
        wait_until(lambda: "local-damage" in served.events(), what="the event")
        wait_until(lambda: served.get("/readyz").body["degraded"] is None, what="copies that are built again")
        assert_every_word_is_of(served, 2)


def test_a_copy_is_compared_and_sorted_by_steps_that_wait_for_tailing(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, worked = threading.local(), []
    take, work = FairQueue.take, ArenaBase.work_in_background

    def took(queue: FairQueue[Any]) -> Any:
        task = take(queue)
        taken.in_background = task is not None and queue._running[task].background
        return task

    def works(base: ArenaBase) -> None:
        worked.append(taken.in_background)
        work(base)

    monkeypatch.setattr(FairQueue, "take", took)
    monkeypatch.setattr(ArenaBase, "work_in_background", works)
    with served_node(checkpoint.path, tmp_path / "data"):
        orders = partial((tmp_path / "data").rglob, "arena.order")
        wait_until(lambda: len(list(orders())) == checkpoint.partitions, what="the order of the keys of each copy")
    assert set(worked) == {True}


def assert_every_word_is_right_or_an_error(served: ServedNode) -> None:
    for answer in served.look_up_all([[word] for word in WORDS]):
        is_error = str(answer.get("type", "")).endswith("store-error")
        assert is_error or (answer["found"] and why_mixed(answer) is None), answer


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
