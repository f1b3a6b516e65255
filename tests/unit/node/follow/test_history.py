"""The committed history: read when asked for, kept in bounds, and silent about what Spark purged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.spark.commits import InterruptedFiles, SparkCommits

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.follow.history import MAX_PURGED, MAX_RECORDS, CommitHistory, CommitRecord
from understudy_shared.base.errors import CorruptFileError, VanishedError

IDS = {"0": [["a", "b"], ["c", "d"]], "1": [["e"]]}


@pytest.fixture
def query(tmp_path: Path) -> SparkCommits:
    query = SparkCommits(tmp_path / "checkpoint")
    query.commit(3)
    return query


def record_of(history: CommitHistory, version: int) -> CommitRecord:
    record = history.record(version)
    assert record is not None
    return record


def test_a_version_is_what_the_batch_before_it_committed(query: SparkCommits) -> None:
    record = record_of(CommitHistory(LocalFiles(query.root)), 3)
    assert (record.version, record.commit.batch_id, record.offsets.batch_id) == (3, 2, 2)
    assert record.offsets.properties.shuffle_partitions == 2


def test_it_was_committed_when_its_commit_file_was_written(query: SparkCommits) -> None:
    history = CommitHistory(LocalFiles(query.root))
    times_ns = [history.commit_time_ns(version) for version in (1, 2, 3)]
    assert times_ns == [(query.root / f"commits/{batch}").stat().st_mtime_ns for batch in (0, 1, 2)]
    record = record_of(history, 3)
    assert record.committed_at_us == record.committed_at_ns // 1000


@pytest.mark.parametrize("version", [-1, 0, 4, 10**9])
def test_what_nobody_committed_has_no_record(query: SparkCommits, version: int) -> None:
    history = CommitHistory(LocalFiles(query.root))
    assert history.record(version) is None
    assert history.commit_time_ns(version) is None


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_a_version_without_one_of_its_two_files_is_purged(query: SparkCommits, log: str) -> None:
    (query.root / log / "0").unlink()
    history = CommitHistory(LocalFiles(query.root))
    assert history.record(1) is None
    assert record_of(history, 2).version == 2


def test_what_was_read_before_the_purge_is_still_known(query: SparkCommits) -> None:
    history = CommitHistory(LocalFiles(query.root))
    before = record_of(history, 1)
    query.purge(keep=1)
    assert history.record(1) is before
    assert history.record(2) is None


def test_a_version_that_was_not_there_yet_is_found_when_it_is(query: SparkCommits) -> None:
    history = CommitHistory(LocalFiles(query.root))
    assert history.record(4) is None
    query.begin_batch()
    assert history.record(4) is None
    query.commit()
    assert record_of(history, 4).commit.batch_id == 3


def test_a_record_is_read_once(query: SparkCommits) -> None:
    files = InterruptedFiles(query.root)
    history = CommitHistory(files)
    first = record_of(history, 2)
    looks = files.looks
    assert history.record(2) is first
    assert history.commit_time_ns(2) == first.committed_at_ns
    assert files.looks == looks


def test_a_purged_version_is_looked_for_once(query: SparkCommits) -> None:
    query.purge(keep=1)
    files = InterruptedFiles(query.root)
    history = CommitHistory(files)
    assert not history.is_commit_time_learned(1)
    for version in (1, 2, 3, 0, -1):
        history.learn_commit_time(version)
        assert history.is_commit_time_learned(version)
    assert history.known_commit_time_ns(1) is None
    assert history.known_commit_time_ns(3) is not None
    assert not CommitHistory(files).is_commit_time_learned(1), "another history knows nothing of this one"


def test_what_is_known_to_be_purged_is_bounded_in_number(query: SparkCommits) -> None:
    history = CommitHistory(LocalFiles(query.root))
    for version in range(10, 10 + MAX_PURGED + 1):
        history.learn_commit_time(version)
    assert not history.is_commit_time_learned(10)
    assert history.is_commit_time_learned(11)


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


def test_an_unreadable_commit_has_no_time_so_that_lookups_behind_it_go_on(query: SparkCommits) -> None:
    (query.root / "commits/1").write_bytes(b"v1")
    history = CommitHistory(LocalFiles(query.root))
    assert history.commit_time_ns(2) is None
    assert history.commit_time_ns(3) is not None


@pytest.mark.parametrize(("version", "expected"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 4), (5, 5)])
def test_the_nearest_record_is_the_oldest_one_kept_from_there_on(
    query: SparkCommits, version: int, expected: int
) -> None:
    query.commit(2)
    query.purge(keep=3)
    assert CommitHistory(LocalFiles(query.root)).nearest(version).version == expected


@pytest.mark.parametrize("version", [6, 10**9])
def test_nothing_is_nearest_beyond_the_end(query: SparkCommits, version: int) -> None:
    query.commit(2)
    with pytest.raises(VanishedError, match="nothing from version"):
        CommitHistory(LocalFiles(query.root)).nearest(version)


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


def test_unique_ids_are_those_of_the_store_and_absent_in_format_v1(query: SparkCommits) -> None:
    (query.root / "commits/2").write_bytes(spark.commit(0, IDS))
    history = CommitHistory(LocalFiles(query.root))
    v1, v2 = record_of(history, 2), record_of(history, 3)
    assert [v2.unique_id(0, 1, 0), v2.unique_id(0, 1, 1), v2.unique_id(1, 0, 0)] == ["c", "d", "e"]
    assert v1.unique_id(0, 1, 0) is None
    assert v2.unique_id(1, 1, 0) is None
    assert v2.unique_id(2, 0, 0) is None


def test_a_store_that_the_commit_does_not_name_is_a_corrupt_commit(query: SparkCommits) -> None:
    (query.root / "commits/2").write_bytes(spark.commit(0, IDS))
    record = record_of(CommitHistory(LocalFiles(query.root)), 3)
    with pytest.raises(CorruptFileError, match="partition 0 of operator 1 has ids of 1 stores") as refusal:
        record.unique_id(1, 0, 1)
    assert refusal.value.where == "commits/2"
