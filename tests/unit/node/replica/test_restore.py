"""Restoring a snapshot of the HDFS-backed provider: one version of the file, whole, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.engine_stores import hdfs_snapshot

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.checkpoint.snapshots import StateFile
from understudy_node.engine.base import Base
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.restore import ChosenSnapshot, restore
from understudy_shared.base.errors import CorruptFileError, VanishedError

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


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
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
