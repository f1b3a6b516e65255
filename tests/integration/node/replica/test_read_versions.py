"""Versions that a reader names: as the checkpoint has them, opened once, within bounds, and told to be gone.

The checkpoint is made by hand: at version V each word was counted V times. What Spark writes is read so in
test_oracle_of_kinds.py.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint import bytes as spark_bytes
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import Reply, Served, ServedNode, served_node
from tests.support.spark.counting_query import WORDS, counting_feeder, rows
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, wait_until

from understudy_node.replica import past_versions, pinned_versions
from understudy_node.replica.task_stores import TaskStores

STORE = "/v1/stores/op0"
LAST = 12
BEGIN_S = 1_700_000_000
FILES = Path("/proc/self/fd")


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, LAST + 1))


@pytest.fixture
def node(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(LAST)
        yield served


def look_up(served: Served, bound: str, word: str = WORDS[0]) -> Reply:
    return served.get(f"{STORE}/keys/{quote(word)}?{bound}")


def assert_is_version(reply: Reply, version: int) -> None:
    assert (reply.status, reply.body["version"]) == (200, version), reply
    value = reply.body["value"]
    assert isinstance(value, dict)
    assert value["count"] == version, "the value is of the version that the answer names"


def commit_at(checkpoint: HandmadeCheckpoint, times_s: dict[int, float]) -> None:
    """Set when versions were committed, in seconds after the beginning."""
    for version, time_s in times_s.items():
        time_ns = int((BEGIN_S + time_s) * 1_000_000_000)
        os.utime(checkpoint.path / "commits" / str(version - 1), ns=(time_ns, time_ns))


def test_a_moment_is_the_newest_version_committed_by_then_in_order_of_versions(
    checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    """Q58: equal times, a step back, a copy; the edges are the very times of commits."""
    # Version 5 has the time of 4, version 7 was committed before 6 by the clock, from 9 on all are of one copy.
    times = {version: 10.0 * version for version in range(1, LAST + 1)}
    times |= {5: 40.0, 7: 55.0} | dict.fromkeys(range(9, LAST + 1), 100.0)
    commit_at(checkpoint, times)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST)
        expected = {
            10.0: 1,
            19.999: 1,
            39.999: 3,
            40.0: 5,
            54.999: 5,
            55.0: 7,
            60.0: 7,
            80.0: 8,
            99.999: 8,
            100.0: LAST,
        }
        for time_s, version in expected.items():
            moment_ms = round((BEGIN_S + time_s) * 1000)
            assert_is_version(look_up(node, f"at={moment_ms}"), version)
        assert_is_version(look_up(node, "at=2023-11-14T22:13:30Z"), 1)
        assert_is_version(look_up(node, f"at={quote('2023-11-15T00:13:30.000001+02:00')}"), 1)
        assert_is_version(look_up(node, "at=2999-01-01T00:00:00Z"), LAST)
        before = look_up(node, f"at={round((BEGIN_S + 9.999) * 1000)}")
        assert (before.status, before.problem) == (410, "version-gone")
        assert before.body["retained_versions"] == [1, LAST]


def test_a_version_to_come_is_waited_for_and_one_that_does_not_come_is_no_version_that_is_gone(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    refused = look_up(node, f"version={LAST + 1}&wait_ms=0")
    assert (refused.status, refused.problem) == (503, "no-acceptable-replica")
    with ThreadPoolExecutor() as readers:
        asked = readers.submit(look_up, node, f"version={LAST + 1}&wait_ms=20000")
        checkpoint.add(LAST + 1)
        assert_is_version(asked.result(), LAST + 1)


def test_readers_of_all_versions_stay_within_the_bounds_and_each_gets_its_own(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = node.node._around.pinned
    monkeypatch.setattr(pins, "_max_views", 3)
    monkeypatch.setattr(pinned_versions, "HOLD_MS", 1_000)
    files = len(list(FILES.iterdir()))
    most = 0

    def read(number: int) -> Reply:
        nonlocal most
        reply = look_up(node, f"version={1 + number % LAST}", WORDS[number % len(WORDS)])
        most = max(most, len(pins))
        return reply

    with ThreadPoolExecutor(8) as readers:
        for number, reply in enumerate(readers.map(read, range(100))):
            assert_is_version(reply, 1 + number % LAST)
    assert most <= 3
    wait_until(lambda: not len(pins), what="the last version to go")
    assert len(list(FILES.iterdir())) <= files + 10, "but for the connections of the readers"


def test_versions_that_spark_purges_meanwhile_are_right_or_gone_and_never_an_error(
    node: ServedNode, checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.node._around.pinned, "_max_views", 1)
    monkeypatch.setattr(past_versions, "FAILED_FOR_S", 0.2)

    def purge() -> None:
        for version in range(1, LAST - 1):
            for partition in range(checkpoint.partitions):
                (checkpoint.path / checkpoint.changelog_path(version, partition)).unlink()
            (checkpoint.path / "commits" / str(version - 1)).unlink()
            (checkpoint.path / "offsets" / str(version - 1)).unlink()

    purging = threading.Thread(target=purge)
    gone = right = 0
    for number in range(60):
        if number == 10:
            purging.start()
        version = 1 + number % LAST
        reply = look_up(node, f"version={version}")
        if reply.status == 200:
            assert_is_version(reply, version)
            right += 1
        else:
            assert (reply.status, reply.problem) == (410, "version-gone"), reply
            gone += 1
    purging.join()
    assert right > 10
    assert gone > 10
    assert_is_version(look_up(node, f"version={LAST}"), LAST)


def test_a_snapshot_of_a_history_that_was_rewound_is_of_another_history(
    checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST)
        position = look_up(node, f"version={LAST - 1}").body["position"]
    (checkpoint.path / "commits" / str(LAST - 1)).unlink()
    checkpoint.write(f"commits/{LAST - 2}", spark_bytes.commit(0))
    commit_at(checkpoint, {LAST - 1: 5.0})
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST - 1)
        reply = look_up(node, f"snapshot={position}")
        assert (reply.status, reply.problem) == (409, "lineage-changed"), reply


SELDOM_SNAPSHOTS = QueryOptions(min_batches_to_retain=2, min_deltas_for_snapshot=6, maintenance_interval_ms=50)


@pytest.mark.parametrize(
    "state_format",
    [
        pytest.param(HDFS_V1, marks=pytest.mark.full),
        pytest.param(ROCKSDB_CHANGELOG_V1, marks=pytest.mark.full),
        ROCKSDB_CHANGELOG_V2,
    ],
    ids=lambda each: each.id,
)
def test_all_that_spark_retains_is_read_though_its_snapshot_is_older_than_the_first_commit(
    state_format: StateFormat, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "counting"
    with counting_feeder(spark, path, state_format, SELDOM_SNAPSHOTS) as feeder:
        for batch in range(10):
            feeder.add(rows(batch))
        wait_until(lambda: min(retained(path)) > 1, what="Spark to purge commits")
    with served_node(path, tmp_path / "data") as node:
        node.wait_for_version(10)
        assert min(retained(path)) > 1
        for version in retained(path):
            assert_is_version(look_up(node, f"version={version}"), version)


def retained(checkpoint: Path) -> list[int]:
    return sorted(int(each.name) + 1 for each in (checkpoint / "commits").iterdir() if each.name.isdigit())


def test_the_history_of_a_key_is_what_each_version_changed_and_begins_with_what_was_valid(node: ServedNode) -> None:
    history = node.get(f"{STORE}/history/{quote(WORDS[0])}?from=4&to=9")
    assert history.status == 200, history
    assert (history.body["from"], history.body["to"], history.body["next_from"]) == (4, 9, None)
    versions: Any = history.body["versions"]
    assert [(each["version"], each["value"]["count"]) for each in versions] == [(v, v) for v in range(4, 10)]
    whole: Any = node.get(f"{STORE}/history/{quote('born-5')}").body["versions"]
    assert [each["version"] for each in whole] == [1, *range(6, LAST + 1)]
    assert [each["found"] for each in whole] == [False] + [True] * (LAST - 5), "absent until it was born"
    texts: Any = node.get(f"{STORE}/history?key={quote(json.dumps([WORDS[0]]))}&from={LAST}&longs=string").body
    assert [each["value"]["count"] for each in texts["versions"]] == [str(LAST)]
    assert not list((node.node._around.disk.root / past_versions.PAST_FOLDER).iterdir()), "it leaves no files"


def test_a_version_from_before_a_repartition_is_gone_though_it_was_open(tmp_path: Path) -> None:
    """In the new layout a key is in another partition: that of the old one would say that it is absent."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, 5))
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(4)
        for word in WORDS:
            assert_is_version(look_up(node, "version=3", word), 3)
        repartitioned = HandmadeCheckpoint(checkpoint.path, partitions=5)
        repartitioned.write_state(5)
        for partition in range(repartitioned.partitions):
            repartitioned.write(repartitioned.snapshot_path(5, partition), repartitioned.snapshot(5, partition))
        repartitioned.commit(5)
        node.wait_for_version(5, partitions=repartitioned.partitions)
        for word in WORDS:
            gone = look_up(node, "version=3", word)
            assert (gone.status, gone.problem) == (410, "version-gone"), gone


def test_a_version_that_a_rewind_replaces_while_it_is_read_is_refused(
    node: ServedNode, checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_each = TaskStores.read_each

    def rewound_then_read(stores: TaskStores, *given: Any) -> Any:
        views = list(read_each(stores, *given))
        commit_at(checkpoint, {4: 5.0})
        return iter(views)

    position = look_up(node, "version=4").body["position"]
    node.node._around.pinned._pins.clear()
    monkeypatch.setattr(TaskStores, "read_each", rewound_then_read)
    refused = look_up(node, f"snapshot={position}")
    assert (refused.status, refused.problem) == (409, "lineage-changed"), refused
