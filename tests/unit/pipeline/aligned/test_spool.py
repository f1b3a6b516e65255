"""The spool: a cache whose loss costs a second reading and nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.spark.scripted_input import ScriptedRecord, rows_of

from understudy_aligned.spool import Place, Spool, read_spool

FIRST = rows_of([ScriptedRecord(1, b"a"), ScriptedRecord(None, b"b")], 0)
SECOND = rows_of([ScriptedRecord(3, b"c")], 2)
OTHER = rows_of([ScriptedRecord(2, b"x")], 0)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool")
    yield made
    made.close()


def records_in(path: str, parts: Sequence[Sequence[Place]]) -> list[list[pa.RecordBatch]]:
    return [[piece.records for piece in part] for part in read_spool(path, parts)]


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.arrow"))


def test_each_part_of_a_batch_is_read_back_as_it_was_written(spool: Spool) -> None:
    written = spool.write([[FIRST, SECOND], [], [OTHER]])
    assert written is not None
    assert records_in(written.path, written.parts) == [[FIRST, SECOND], [], [OTHER]]


def test_small_record_batches_share_one_and_large_ones_do_not(tmp_path: Path) -> None:
    large = rows_of([ScriptedRecord(1, bytes(2 << 20))], 5)
    spool = Spool(tmp_path / "spool", joins=True)
    parts = [[FIRST, SECOND], [], [large], [OTHER], [FIRST]]
    written = spool.write(parts)
    assert written is not None
    assert [[place.batch for place in places] for places in written.parts] == [[0, 0], [], [1], [2], [2]]
    assert records_in(written.path, written.parts) == parts
    assert records_in(written.path, written.parts[3:]) == parts[3:]
    spool.close()


def test_there_is_one_batch_at_a_time_and_no_two_have_one_name(spool: Spool, tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        written = spool.write([[FIRST]])
        assert written is not None
        assert files(tmp_path) == [Path(written.path)]
        names.add(written.path)
    assert len(names) == 3


def test_a_batch_is_written_over_a_file_that_is_not_read_any_more(spool: Spool, tmp_path: Path) -> None:
    before = spool.write([[FIRST, SECOND]])
    assert before is not None
    inode = Path(before.path).stat().st_ino
    spool.reuse(before.path)
    with pytest.raises(OSError, match="No such file"):
        records_in(before.path, before.parts)[0]
    after = spool.write([[OTHER]])
    assert after is not None
    assert Path(after.path).stat().st_ino == inode
    assert records_in(after.path, after.parts)[0] == [OTHER]
    assert files(tmp_path) == [Path(after.path)]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_file_that_is_not_whole_is_not_taken_for_one(spool: Spool, kept: int) -> None:
    written = spool.write([[FIRST]])
    assert written is not None
    content = Path(written.path).read_bytes()
    Path(written.path).write_bytes(content[:kept])
    with pytest.raises((OSError, pa.ArrowException)):
        records_in(written.path, written.parts)[0]


def test_a_planner_that_starts_removes_what_dead_ones_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    living, dead = Spool(tmp_path), tmp_path / "planner-dead"
    assert living.write([[FIRST]]) is not None
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "7.arrow").write_bytes(b"x")
    third = Spool(tmp_path)
    assert third.write([[SECOND]]) is not None
    assert not dead.exists()
    assert len(files(tmp_path)) == 2
    living.close()
    third.close()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_reported_once_and_the_batch_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "spool"
    in_the_way.touch()
    spool = Spool(in_the_way)
    with caplog.at_level(logging.WARNING):
        assert [spool.write([[FIRST]]) for _ in range(3)] == [None] * 3
    assert [record.message for record in caplog.records if "read twice" in record.message] == [caplog.messages[0]]
    in_the_way.unlink()
    assert spool.write([[FIRST]]) is not None
    spool.close()


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "spool"
    root.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    spool = Spool(root)
    if root.stat().st_uid == 0:
        os.chown(root, 4_000_001, -1)
    assert spool.write([[FIRST]]) is None


def test_a_batch_that_is_written_beside_another_leaves_that_one_alone(spool: Spool, tmp_path: Path) -> None:
    first = spool.write([[FIRST]])
    assert first is not None
    second = spool.write_beside(first, [[SECOND]])
    assert files(tmp_path) == [Path(first.path), Path(second.path)]
    third = spool.write_beside(second, [[OTHER]])
    assert files(tmp_path) == [Path(second.path), Path(third.path)]
    assert records_in(second.path, second.parts)[0] == [SECOND]


def test_a_batch_that_cannot_be_written_beside_another_leaves_no_part_of_it(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = spool.write([[FIRST]])
    assert kept is not None

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", fail)
    with pytest.raises(OSError, match="No space left"):
        spool.write_beside(kept, [[SECOND]])
    assert files(tmp_path) == [Path(kept.path)]
