"""Restores: one version of the snapshot, whole, or nothing; how far they are; and which local copies are used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.engine_stores import hdfs_snapshot
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, heartbeat, wait_to_hold

from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.checkpoint.snapshots import StateFile
from understudy_node.engine.base import Base
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.replica.local_bases import (
    CHOOSING,
    FETCHING,
    OPENING,
    REPLAYING,
    STATE_CLEANUP_DELAY_MS,
    BaseRecord,
    ChosenSnapshot,
    LocalBases,
    RestoreProgress,
    of_all,
    restore,
    usable_again,
)
from understudy_node.replica.task import TaskReplica
from understudy_shared.base.errors import CorruptFileError, SettingsError, UnderstudyError, VanishedError
from understudy_shared.base.words import ApplicationId, Lineage, ReplicaState, TaskId
from understudy_shared.bus.messages import Restore

NAME = "7.snapshot"
RECORDS = {b"%032d" % number: bytes(56) for number in range(40_000)}
CODECS: dict[str, Callable[[bytes], bytes]] = {"lz4": spark.lz4, "zstd": spark.zstd, "snappy": spark.snappy}


class Restoring:
    """A restore of one snapshot, step by step."""

    def __init__(self, folder: Path, content: bytes) -> None:
        self.path = folder / "checkpoint" / NAME
        self.path.parent.mkdir()
        self.path.write_bytes(content)
        self.data = folder / "data"
        snapshot = ChosenSnapshot(
            file=StateFile(7, None, "snapshot", NAME),
            directory=".",
            committed_at_ns=1,
            row_checksum=False,
            merge_operator_version=2,
        )
        self._disk = LocalBases(self.data)
        self.store = self.data / "application" / "lineage" / "0_0" / "default"
        self.steps = restore(snapshot, LocalFiles(self.path.parent), self._disk, self.store, BlockCache(0))

    def run(self) -> Base:
        """All steps that are left; the base that they open."""
        while True:
            try:
                next(self.steps)
            except StopIteration as end:
                self._disk.release()
                base: Base = end.value
                return base

    def files(self) -> list[str]:
        return [path.name for path in self.store.rglob("*") if path.is_file()]


@pytest.mark.parametrize("codec", CODECS)
def test_a_restored_snapshot_holds_its_records_and_keeps_no_compressed_copy(codec: str, tmp_path: Path) -> None:
    restoring = Restoring(tmp_path, CODECS[codec](hdfs_snapshot(RECORDS)))
    base = restoring.run()
    assert sorted(restoring.files()) == ["arena.index", "arena.records", "arena.sums", "base.json"]
    assert dict(base.scan()) == RECORDS
    assert restoring.path.stat().st_nlink == 1


def test_a_snapshot_that_spark_removes_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    restoring = Restoring(tmp_path, spark.lz4(hdfs_snapshot(RECORDS)))
    next(restoring.steps)
    restoring.path.unlink()
    assert restoring.run().count() == len(RECORDS)


def test_a_snapshot_that_is_rewritten_meanwhile_is_not_used(tmp_path: Path) -> None:
    restoring = Restoring(tmp_path, spark.lz4(hdfs_snapshot(RECORDS)))
    next(restoring.steps)
    again = restoring.path.with_name("again")
    again.write_bytes(spark.lz4(hdfs_snapshot({b"other": b"content"})))
    again.replace(restoring.path)
    with pytest.raises(VanishedError, match="rewritten while it was read"):
        restoring.run()
    assert restoring.files() == []


@pytest.mark.parametrize(("codec", "kept"), [("lz4", 0.0), ("zstd", 0.3), ("snappy", 0.999)])
def test_a_snapshot_that_ends_early_is_refused_by_its_name_and_leaves_no_files(
    codec: str, kept: float, tmp_path: Path
) -> None:
    whole = CODECS[codec](hdfs_snapshot(RECORDS))
    restoring = Restoring(tmp_path, whole[: int(len(whole) * kept) or 3])
    with pytest.raises(CorruptFileError) as refusal:
        restoring.run()
    assert NAME in refusal.value.where
    assert str(restoring.data) not in str(refusal.value)
    assert restoring.files() == []


def test_a_restore_that_is_given_up_leaves_no_files(tmp_path: Path) -> None:
    restoring = Restoring(tmp_path, spark.lz4(hdfs_snapshot(RECORDS)))
    for _ in range(3):
        next(restoring.steps)
    assert "arena.records" in restoring.files()
    restoring.steps.close()
    assert restoring.files() == []
    assert restoring.path.exists()


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


SOURCE = FileStat(mtime_ns=7, size=8, inode=9)
RECORD = BaseRecord(
    kind="zip",
    version=10,
    unique_id=None,
    committed_at_ns=1_000,
    source=(7, 8, 9),
    total_keys=3,
    row_checksum=False,
    merge_operator_version=2,
)


@pytest.mark.parametrize(
    ("target", "recorded_ns", "committed_at_ns", "source", "usable"),
    [
        pytest.param(10, 1_000, 1_000, SOURCE, True, id="nothing changed"),
        pytest.param(50, 1_000, 1_000, None, True, id="Spark purged the snapshot, the commit still vouches"),
        pytest.param(9, 1_000, 1_000, SOURCE, False, id="the history ends before it"),
        pytest.param(10, 1_000, 1_001, SOURCE, False, id="the version was committed anew"),
        pytest.param(10, 1_000, None, SOURCE, False, id="the commit is purged, nothing vouches"),
        pytest.param(10, None, None, SOURCE, False, id="the commit is purged and was never known"),
        pytest.param(10, 1_000, 1_000, FileStat(7, 8, 10), False, id="the snapshot was rewritten"),
    ],
)
def test_a_local_base_is_used_again_only_while_the_commit_log_vouches_for_it(
    target: int, recorded_ns: int | None, committed_at_ns: int | None, source: FileStat | None, usable: bool
) -> None:
    record = RECORD.model_copy(update={"committed_at_ns": recorded_ns})
    assert usable_again(record, target=target, committed_at_ns=committed_at_ns, source=source) is usable


def test_the_newest_whole_base_comes_first_and_without_its_whole_record_it_is_none(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    store = tmp_path / "store"
    for version in (5, 20, 10):
        bases.finish(bases.new_directory(store, version), RECORD.model_copy(update={"version": version}))
    bases.new_directory(store, 40)
    (bases.new_directory(store, 30) / "base.json").write_text('{"version": 30')
    assert [base.record.version for base in bases.whole(store)] == [20, 10, 5]


def test_a_data_directory_has_one_owner(tmp_path: Path) -> None:
    owner = LocalBases(tmp_path)
    with pytest.raises(UnderstudyError, match="in use by another node"):
        LocalBases(tmp_path)
    owner.release()
    LocalBases(tmp_path).release()


def test_a_directory_that_is_there_is_never_used_again_even_by_another_process_of_the_same_id(tmp_path: Path) -> None:
    store = tmp_path / "store"
    before = LocalBases(tmp_path)
    opened = before.new_directory(store, 10)
    before.release()
    after = LocalBases(tmp_path)
    assert after.new_directory(store, 10) != opened
    assert opened.is_dir()


def test_what_earlier_lives_of_an_application_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    application_id = ApplicationId("flights")
    old, new = (
        bases.store_directory(TaskId(application_id, 0, 0), Lineage(lineage), "default") for lineage in ("old", "new")
    )
    for store in (old, new):
        bases.new_directory(store, 1)
    foreign = [tmp_path / "flights" / name for name in ("metadata", "commits/0", "state/0/0/1.delta", "sources/0")]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    bases.keep_lineage(application_id, Lineage("new"))
    assert not old.exists()
    assert new.exists()
    assert all(file.exists() for file in foreign), "somebody keeps a checkpoint there"


def test_a_checkpoint_among_the_local_copies_is_refused_and_stays_whole(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "orders").create().add(1)
    before = sorted(tmp_path.rglob("*"))
    for data in (tmp_path, checkpoint.path, checkpoint.path / "state"):
        with pytest.raises(SettingsError, match="same folder as the checkpoint"), followed_node(checkpoint.path, data):
            pass
        assert sorted(tmp_path.rglob("*")) == before


def test_files_of_tasks_that_are_not_held_are_removed_after_a_while_unless_they_come_back(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    tasks = [TaskId(ApplicationId("flights"), 0, partition) for partition in range(3)]
    lineage, stores = Lineage("l"), [bases.store_directory(task, Lineage("l"), "default") for task in tasks]
    for store in stores:
        bases.new_directory(store, 1)

    def removed(*held: int, at_ms: float) -> list[str]:
        return bases.remove_unheld(tasks[0].application_id, lineage, [tasks[each] for each in held], now_ms=at_ms)

    assert removed(0, at_ms=0) == []
    assert removed(0, 2, at_ms=1) == []
    assert removed(0, at_ms=STATE_CLEANUP_DELAY_MS - 1) == [], "the last one was away for a moment"
    assert removed(0, at_ms=STATE_CLEANUP_DELAY_MS) == ["0_1"]
    assert [store.exists() for store in stores] == [True, False, True]
