"""A node that holds some of the tasks: what it is assigned comes and goes, and it reports the load of what it keeps."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.clock import ManualClock
from tests.support.cluster.followed_node import followed_node, heartbeat, held, wait_to_hold
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS, assert_as_spark_reads, counting_feeder, rows
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, LocalFiles
from understudy_node.cluster.heartbeat import MEASURE_AGAIN_MS, LoadMeter, ProcessLoad
from understudy_node.node import Node
from understudy_node.replica.store_replica import StoreReplica
from understudy_shared.base.words import LagInfo, Role

ACTIVE, STANDBY = Role.ACTIVE, Role.STANDBY
FOUR = QueryOptions(partitions=4, min_deltas_for_snapshot=2, maintenance_interval_ms=50)


@pytest.fixture
def restores(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions restored so far."""
    seen: list[str] = []
    restore = StoreReplica.restore

    def counted(store: StoreReplica, target: int) -> object:
        seen.append(f"{store.place.task.operator_id}_{store.place.task.partition}")
        return restore(store, target)

    monkeypatch.setattr(StoreReplica, "restore", counted)
    return seen


def who_answers(served: ServedNode) -> dict[int, str]:
    """What comes of the words of each partition: the role that answered, or the problem."""
    found: dict[int, str] = {}
    assert served.node.generation is not None
    (holding,) = served.node.generation.readers.values()
    for word, answer in zip(WORDS, served.look_up_all([[word] for word in WORDS]), strict=True):
        partition = holding.resolve((word,)).partition
        by = answer.get("served_by")
        came = str(by["role"]) if isinstance(by, dict) else str(answer["type"])
        assert found.setdefault(partition, came) == came
    return found


@pytest.mark.parametrize(
    "state_format", [pytest.param(HDFS_V1, marks=pytest.mark.full), ROCKSDB_CHANGELOG_V2], ids=lambda given: given.id
)
def test_half_of_the_tasks_then_other_roles_then_all_of_them_without_restoring_any_twice(
    spark: SparkSession, tmp_path: Path, restores: list[str], state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "counting"
    with counting_feeder(spark, checkpoint, state_format, FOUR) as feeder:
        for batch in range(4):
            feeder.add(rows(batch))
        with served_node(checkpoint, tmp_path / "data") as served:
            node = served.node
            served.wait_for_version(4, partitions=4)
            node.assign({"0_0": ACTIVE, "0_1": STANDBY})
            wait_to_hold(node, "0_0", "0_1")
            kept = held(node)
            assert who_answers(served) == {0: "active", 1: "standby", 2: "not-owner", 3: "not-owner"}
            assert served.get("/readyz").status == 200
            wait_until(lambda: not local_bases(tmp_path / "data", "0_2", "0_3"), what="disk space given back")
            restores.clear()
            node.assign({"0_0": STANDBY, "0_1": ACTIVE})
            assert who_answers(served) == {0: "standby", 1: "active", 2: "not-owner", 3: "not-owner"}
            feeder.add(rows(4))
            wait_to_hold(node, "0_0", "0_1", version=5)
            assert restores == []
            node.assign(None)
            wait_to_hold(node, "0_0", "0_1", "0_2", "0_3", version=5)
            assert sorted(restores) == ["0_2", "0_3"]
            assert [held(node)[task] for task in kept] == list(kept.values())
            assert who_answers(served) == dict.fromkeys(range(4), "active")
            assert_as_spark_reads(served, spark, checkpoint)


def local_bases(data: Path, *tasks: str) -> list[Path]:
    """What is left of these tasks on local disk."""
    found = [Path(folder, name) for folder, _, names in os.walk(data) for name in names]  # they may vanish meanwhile
    return [path for path in found if set(tasks) & set(path.parts)]


class GatedFiles(LocalFiles):
    """Storage whose files of one partition are not to be had while the gate is shut."""

    def __init__(self, root: Path, partition: int) -> None:
        super().__init__(root)
        self._directory = f"state/0/{partition}/"
        self.gate = threading.Event()
        self.is_waited_for = threading.Event()

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        if path.startswith(self._directory) and threading.current_thread().name.startswith("worker"):
            self.is_waited_for.set()
            self.gate.wait()
        return super().read(path, max_bytes)


def test_a_task_is_not_held_anew_while_a_step_of_its_former_replica_still_runs(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    files = GatedFiles(checkpoint.path, 1)
    with followed_node(checkpoint.path, tmp_path / "data", files=files, duties={"0_1": ACTIVE}) as node:
        assert files.is_waited_for.wait(20), "a step is in the middle of reading"
        former = held(node)["0_1"]
        node.assign({})
        wait_to_hold(node)
        node.assign({"0_0": ACTIVE, "0_1": ACTIVE})
        wait_to_hold(node, "0_0", version=1)
        files.gate.set()
        wait_to_hold(node, "0_0", "0_1", version=1)
        assert former.gone
        assert held(node)["0_1"] is not former


def test_a_node_that_is_started_with_fewer_tasks_gives_their_disk_space_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    checkpoint.write(checkpoint.snapshot_path(1, 1), checkpoint.snapshot(1, 1))
    with followed_node(checkpoint.path, tmp_path / "data", duties={"0_0": ACTIVE, "0_1": ACTIVE}) as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        assert local_bases(tmp_path / "data", "0_1")
    monkeypatch.setattr("understudy_node.node.CLEANUP_EVERY_MS", 0)
    monkeypatch.setattr("understudy_node.replica.local_bases.STATE_CLEANUP_DELAY_MS", 0)
    with followed_node(checkpoint.path, tmp_path / "data", duties={}) as node:
        wait_until(lambda: node.end.confirmed_ms is not None, what="the first look")
        assert local_bases(tmp_path / "data", "0_1"), "it may get its tasks in a moment"
        node.assign({"0_0": ACTIVE})
        wait_until(lambda: not local_bases(tmp_path / "data", "0_1"), what="disk space given back")


def test_duties_about_another_layout_wait_for_it_while_the_one_that_is_served_goes_on(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    four = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4)
    with followed_node(checkpoint.path, tmp_path / "data", duties={}) as node:
        node.assign({"0_1": ACTIVE}, partitions=2)
        wait_to_hold(node, "0_1", version=1)
        four.write_state(2)
        for partition in range(4):
            four.write(four.snapshot_path(2, partition), four.snapshot(2, partition))
        four.commit(2)
        wait_until(lambda: node.tasks() == ["0_0", "0_1", "0_2", "0_3"], what="the tasks of the new layout")
        four.add(3)
        wait_until(lambda: node.end.version == 3 and node.end.confirmed_ms is not None, what="a look after that")
        wait_to_hold(node, "0_1", version=1)
        assert node.generation is not None
        assert node.generation.layout.partitions == 2
        node.assign({"0_3": ACTIVE, "0_1": STANDBY}, partitions=4)
        wait_until(lambda: heartbeat(node).partitions == 4, what="the new layout to be served")
        wait_to_hold(node, "0_1", "0_3", version=3)
        assert {task: replica.role for task, replica in held(node).items()} == {"0_1": STANDBY, "0_3": ACTIVE}


def test_a_commit_hint_is_followed_long_before_the_next_look_is_due(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    clock = ManualClock()
    with followed_node(checkpoint.path, tmp_path / "data", clock=clock, lag_refresh_ms=3_600_000) as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        clock.advance(100 * 3_600_000)  # quiet for so long that the next look is an hour away
        wait_until(lambda: node.end.confirmed_ms == clock.monotonic_ms(), what="the last look before that")
        checkpoint.add(2)
        node.wake()
        wait_to_hold(node, "0_0", "0_1", version=2)


def read(node: Node, times: int) -> None:
    node.measures.lags.read(LagInfo(1, 1, 0, 0), times)


def test_a_node_reports_its_replicas_its_reads_and_what_others_bear(tmp_path: Path) -> None:
    HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    duties = {"0_0": Role.ACTIVE, "0_1": Role.STANDBY}
    process = ProcessLoad()
    with followed_node(tmp_path / "checkpoint", tmp_path / "data", duties=duties) as node:
        meter = LoadMeter(node, process)
        assert meter.read(0.0).operator_bytes == {}
        wait_to_hold(node, *duties, version=2)
        sizes = [replica.stored_bytes for replica in held(node).values()]
        load = meter.read(1.0)
        assert load.operator_bytes == {"0": round(sum(size or 0 for size in sizes) / 2)}
        assert load.operator_bytes["0"] > 0
        read(node, 90)
        assert meter.read(MEASURE_AGAIN_MS - 1).reads_per_s == 0, "it was measured anew too early"
        load = meter.read(MEASURE_AGAIN_MS)
        assert load.reads_per_s == 90_000 // MEASURE_AGAIN_MS
        assert (load.others_bytes, load.others_reads_per_s) == (0, 0)
        others = process.of_others("clicks")
        assert others == (2 * load.operator_bytes["0"], load.reads_per_s)
        meter.stop()
        assert process.of_others("clicks") == (0, 0)
