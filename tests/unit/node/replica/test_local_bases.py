"""Which local copies may be used again after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_node.checkpoint.files import FileStat
from understudy_node.replica.local_bases import BaseRecord, LocalBases, usable_again
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage, TaskId

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
    ("target", "committed_at_ns", "source", "usable"),
    [
        pytest.param(10, 1_000, SOURCE, True, id="nothing changed"),
        pytest.param(50, 1_000, None, True, id="Spark purged the snapshot, the commit still vouches"),
        pytest.param(9, 1_000, SOURCE, False, id="the history ends before it"),
        pytest.param(10, 1_001, SOURCE, False, id="the version was committed anew"),
        pytest.param(10, None, SOURCE, False, id="the commit is purged, nothing vouches"),
        pytest.param(10, 1_000, FileStat(7, 8, 10), False, id="the snapshot was rewritten"),
    ],
)
def test_a_local_base_is_used_again_only_while_the_commit_log_vouches_for_it(
    target: int, committed_at_ns: int | None, source: FileStat | None, usable: bool
) -> None:
    assert usable_again(RECORD, target=target, committed_at_ns=committed_at_ns, source=source) is usable


def test_a_base_whose_purged_commit_was_never_known_is_not_used_again() -> None:
    unknown = RECORD.model_copy(update={"committed_at_ns": None})
    assert not usable_again(unknown, target=10, committed_at_ns=None, source=SOURCE)


def test_a_directory_without_its_record_was_never_finished(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    unfinished = bases.new_directory(tmp_path / "store", 10)
    assert list(bases.whole(tmp_path / "store")) == []
    bases.finish(unfinished, RECORD)
    assert [base.directory for base in bases.whole(tmp_path / "store")] == [unfinished]


def test_the_newest_whole_base_comes_first_and_a_broken_record_is_no_base(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    store = tmp_path / "store"
    for version in (5, 20, 10):
        bases.finish(bases.new_directory(store, version), RECORD.model_copy(update={"version": version}))
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


def test_what_earlier_lives_of_an_application_left_is_removed(tmp_path: Path) -> None:
    bases = LocalBases(tmp_path)
    application_id = ApplicationId("flights")
    old, new = (
        bases.store_directory(TaskId(application_id, 0, 0), Lineage(lineage), "default") for lineage in ("old", "new")
    )
    for store in (old, new):
        bases.new_directory(store, 1)
    bases.keep_lineage(application_id, Lineage("new"))
    assert not old.exists()
    assert new.exists()
