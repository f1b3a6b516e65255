"""A damaged local copy is noticed, told and built again: readers get right answers or errors, never wrong ones."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node.checkpoint.test_bad_state_files import assert_every_word_is_of
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS, why_mixed
from tests.support.spark.queries import wait_until

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.replica.workers import FairQueue


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
