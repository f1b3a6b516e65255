"""The committed history: read when asked for, kept in bounds, and silent about what Spark purged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.spark.commits import InterruptedFiles, SparkCommits

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.follow.history import MAX_RECORDS, CommitHistory, CommitRecord
from understudy_shared.base.errors import CheckpointError, CorruptFileError


@pytest.fixture
def query(tmp_path: Path) -> SparkCommits:
    query = SparkCommits(tmp_path / "checkpoint")
    query.commit(3)
    return query


def record_of(history: CommitHistory, version: int) -> CommitRecord:
    record = history.record(version)
    assert record is not None
    return record


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_a_version_without_one_of_its_two_files_is_purged(query: SparkCommits, log: str) -> None:
    (query.root / log / "0").unlink()
    history = CommitHistory(LocalFiles(query.root))
    assert history.record(1) is None
    assert record_of(history, 2).version == 2


def test_the_newest_commit_without_offsets_was_not_purged_but_copied_in_the_wrong_order(query: SparkCommits) -> None:
    (query.root / "offsets/2").unlink()
    history = CommitHistory(LocalFiles(query.root))
    with pytest.raises(CheckpointError, match=r"commits/2 is the newest commit, and offsets/2 is missing") as refusal:
        history.record(3)
    assert "the folder `commits` first" in refusal.value.fix
    (query.root / "commits/2").unlink()  # neither is there: nothing says that this batch was committed
    assert history.record(3) is None


def test_what_was_read_before_the_purge_is_still_known(query: SparkCommits) -> None:
    history = CommitHistory(LocalFiles(query.root))
    before = record_of(history, 1)
    query.purge(keep=1)
    assert history.record(1) is before
    assert history.record(2) is None


def test_a_version_whose_storage_fails_is_not_taken_for_purged(query: SparkCommits) -> None:
    path = query.root / "commits/1"
    whole = path.read_bytes()
    path.write_bytes(b"v1")
    history = CommitHistory(LocalFiles(query.root))
    history.learn_commit_time(2)
    assert not history.is_commit_time_learned(2)
    path.write_bytes(whole)
    history.learn_commit_time(2)
    assert history.known_commit_time_ns(2) is not None


def test_a_commit_that_is_purged_between_two_looks_is_purged(query: SparkCommits) -> None:
    for look in range(3):
        files = InterruptedFiles(query.root)
        files.watch(lambda number, look=look: query.purge(keep=1) if number == look else None)  # type: ignore[misc]
        assert CommitHistory(files).record(query.version - 1) is None
        query.commit()


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_a_cut_file_is_refused_by_name_and_not_remembered(query: SparkCommits, log: str) -> None:
    path = query.root / log / "1"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    history = CommitHistory(LocalFiles(query.root))
    with pytest.raises(CorruptFileError, match=f"{log}/1"):
        history.record(2)
    path.write_bytes(whole)
    assert record_of(history, 2).version == 2


@pytest.mark.parametrize(("version", "expected"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 4), (5, 5)])
def test_the_nearest_record_is_the_oldest_one_kept_from_there_on(
    query: SparkCommits, version: int, expected: int
) -> None:
    query.commit(2)
    query.purge(keep=3)
    assert CommitHistory(LocalFiles(query.root)).nearest(version).version == expected


def test_the_cache_keeps_a_bounded_number_of_records_and_forgets_the_oldest(query: SparkCommits) -> None:
    for batch in range(3, MAX_RECORDS + 2):
        for log in ("commits", "offsets"):
            (query.root / log / str(batch)).hardlink_to(query.root / log / "2")
    files = InterruptedFiles(query.root)
    history = CommitHistory(files)
    for version in range(1, MAX_RECORDS + 2):
        record_of(history, version)
    looks = files.looks
    record_of(history, 2)
    assert files.looks == looks
    record_of(history, 1)
    assert files.looks > looks


def test_the_cache_keeps_a_bounded_number_of_unique_ids(query: SparkCommits, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query with many partitions has hundreds of them in each commit."""
    for batch in range(3):
        ids = {"0": [["a"], ["b"]], "1": [["c", "d"], ["e", "f"]]}
        (query.root / "commits" / str(batch)).write_bytes(spark.commit(batch, unique_ids=ids))
    monkeypatch.setattr("understudy_node.follow.history.MAX_UNIQUE_IDS", 12)
    history = CommitHistory(LocalFiles(query.root))
    for version in (1, 2, 3, 3):
        record_of(history, version)
    assert [history.known_commit_time_ns(version) is not None for version in (1, 2, 3)] == [False, True, True]
