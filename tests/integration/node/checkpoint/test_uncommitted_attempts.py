"""Committed only: a driver dies between a batch's state and its commit, and the batch is run again with other content.

No reader may ever see the dead attempt: not a node that followed all along, and had read the attempt's changes ahead;
not one started while they lay there uncommitted, with their snapshots; not one started later.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.oracle.crash import LAST_VERSION, SNAPSHOTS, CrashStory, tell_crash_story
from tests.support.oracle.follower import Answered
from tests.support.oracle.spark_reader import OracleRow, canonical, canonical_rows
from tests.support.spark.crash import DEAD_BATCH, PARTITIONS, CrashedRun
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)

pytestmark = pytest.mark.full
"""Ordinary runs have test_uncommitted_rewrites.py, and the killed Spark of the proof."""


def _case(state_format: StateFormat, *, with_snapshot: bool) -> object:
    name = f"{state_format.id}-snapshot" if with_snapshot else state_format.id
    return pytest.param((state_format, with_snapshot), id=name)


CASES = [
    _case(ROCKSDB_CHANGELOG_V1, with_snapshot=True),
    _case(HDFS_V1, with_snapshot=True),
    _case(HDFS_V1, with_snapshot=False),
    _case(ROCKSDB_CHANGELOG_V2, with_snapshot=False),
    _case(ROCKSDB_V1, with_snapshot=False),
    _case(ROCKSDB_V2, with_snapshot=False),
]


@pytest.fixture(scope="module", params=CASES)
def story(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> CrashStory:
    state_format, with_snapshot = request.param
    return tell_crash_story(spark, tmp_path_factory.mktemp("crash"), state_format, with_snapshot=with_snapshot)


def test_the_batch_was_run_again_with_other_content_over_the_dead_attempt_s_changes_or_beside_them(
    story: CrashStory,
) -> None:
    run = story.run
    left, now = changes_of(run, of=run.as_left), changes_of(run, of=run.checkpoint)
    assert len(left) >= PARTITIONS
    if run.state_format.format_version == 1:
        assert now.keys() == left.keys()
        assert all(now[name] != left[name] for name in left)
    else:
        assert left.items() < now.items()
        assert len(now) == 2 * len(left)


def test_no_reader_ever_saw_what_only_the_dead_attempt_wrote(story: CrashStory) -> None:
    committed = {_row(row) for rows in story.committed.values() for row in rows}
    only_dead = [row for row in story.dead if _row(row) not in committed]
    assert {row.partition for row in only_dead} == set(range(PARTITIONS))
    forbidden, forbidden_answers = {_row(row) for row in only_dead}, {_answer(row) for row in only_dead}
    for name, witness in story.witnesses.items():
        shown = {_row(row) for contents in witness.contents.values() for rows in contents for row in rows}
        assert shown.isdisjoint(forbidden), f"the node started {name} showed the dead attempt"
        answered = {(each.key, each.value) for each in witness.seen.answers}
        assert answered.isdisjoint(forbidden_answers), f"the node started {name} answered from the dead attempt"


def test_every_version_that_was_ever_shown_or_answered_from_is_the_committed_one(story: CrashStory) -> None:
    versions = {"before": {DEAD_BATCH, LAST_VERSION}, "between": {DEAD_BATCH, LAST_VERSION}, "after": {LAST_VERSION}}
    answers = {version: {str(row.key[0]): row for row in rows} for version, rows in story.committed.items()}
    for name, witness in story.witnesses.items():
        for (partition, version), contents in witness.contents.items():
            expected = canonical_rows(row for row in story.committed[version] if row.partition == partition)
            assert list(map(canonical_rows, contents)) == [expected], f"started {name}: {partition} at {version}"
        assert {version for _, version in witness.contents} >= versions[name]
        found: dict[int, int] = {}
        for answer in witness.seen.answers:
            _assert_committed(answer, answers[answer.version])
            found[answer.version] = found.get(answer.version, 0) + (answer.value is not None)
        assert all(found.get(version) == len(story.committed[version]) for version in versions[name])


def test_a_stale_snapshot_is_marked_in_answers_and_in_the_lag_report(story: CrashStory) -> None:
    format_1_with_changes = story.run.state_format.format_version == 1 and story.run.with_snapshot
    assert len(story.stale_snapshots) == (PARTITIONS if format_1_with_changes else 0)
    expected = {"stale-snapshot"} if story.stale_snapshots else set()
    after = story.witnesses["after"]
    assert after.lag_marks == expected
    marked = {(partition, mark) for partition, version, mark in after.seen.marks if version == LAST_VERSION}
    assert marked == {(partition, mark) for partition in range(PARTITIONS) for mark in expected}


def changes_of(run: CrashedRun, *, of: Path) -> dict[str, bytes]:
    """What an attempt always writes of the dead version; snapshots beside changes need not be made again."""
    files = run.state_files(run.dead_version, of=of)
    return {name: data for name, data in files.items() if not (run.with_snapshot and name.endswith(SNAPSHOTS))}


def _assert_committed(answer: Answered, committed: dict[str, OracleRow]) -> None:
    row = committed.get(answer.key)
    if row is None:
        assert answer.value is None, answer
    else:
        assert (answer.partition, answer.value) == (row.partition, json.dumps(list(row.value))), answer


def _row(row: OracleRow) -> tuple[int, object, object]:
    return row.partition, canonical(row.key), canonical(row.value)


def _answer(row: OracleRow) -> tuple[str, str]:
    return str(row.key[0]), json.dumps(list(row.value))
