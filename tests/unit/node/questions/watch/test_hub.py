"""Watched keys are compared with each new version, while watchers come and go."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.questions.watch.hub import WatchedTask
from understudy_shared.base.words import StoreName
from understudy_shared.reads.bounds import EVERYTHING


def test_a_key_that_leaves_and_comes_back_during_a_comparison_is_compared_again(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=1).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0")
        assert node.generation is not None
        reader = node.generation.readers[StoreName("op0")]
        before = reader.replicas[0].view
        assert before is not None
        task = WatchedTask(reader, 0, EVERYTHING, before)
        asked = [(reader.store.codec.encode((WORDS[0],)), b'"word"')]
        (key,) = task.join(asked)
        assert b'"count":1' in task.first_event(key)
        checkpoint.add(2)
        wait_until(lambda: getattr(reader.replicas[0].view, "version", 0) == 2, what="the next version")
        now = reader.replicas[0].view
        assert now is not None
        comparing = task.compare(now)
        next(comparing)
        task.leave(key, object())
        (again,) = task.join(asked)
        *_, changed = comparing
        assert changed == [key, again]
        assert b'"count":2' in task.first_event(again)
