"""A node on a copy of the checkpoint: the same query id, another history. The cluster refuses it, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.forked import ForkedCheckpoint, fork_of
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.in_process import LIMIT_S, TASKS, VERSION, Cluster, ClusterNode, cluster, cluster_node
from tests.support.cluster.watch import reading
from tests.support.matrix import in_full
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

COPY = "copy"


def is_refused(node: ClusterNode) -> bool:
    return "follows a fork" in node.not_ready() and not node.holds


def names_it(known: Cluster, node_id: str = COPY) -> bool:
    degraded: Any = known.router.get("/readyz").body["degraded"]
    return degraded is not None and f"{node_id} " in degraded and "follows a fork" in degraded


def is_gone(known: Cluster, node_id: str) -> bool:
    return node_id not in known.router.living()


def is_back(known: Cluster, node_id: str) -> bool:
    return bool(known.nodes[node_id].holds) and not known.nodes[node_id].not_ready()


@contextmanager
def node_on(
    fork: ForkedCheckpoint, folder: Path, redis: RedisServer, *, node_id: str = COPY, **settings: Any
) -> Iterator[ClusterNode]:
    with cluster_node(fork.path, folder / "copy-data", redis.url, node_id=node_id, **settings) as node:
        yield node


FORKS = {
    "at the same version": ((VERSION + 1,), (VERSION + 1,)),
    "behind": ((VERSION + 1, VERSION + 2, VERSION + 3, VERSION + 4), (VERSION + 1,)),
    "ahead": ((VERSION + 1,), tuple(range(VERSION + 1, VERSION + 6))),
}


def forked(kind: str, checkpoint: HandmadeCheckpoint, folder: Path) -> tuple[ForkedCheckpoint, int]:
    """The fork, and the last version of the checkpoint itself."""
    fork = fork_of(checkpoint, folder / "copied")
    ours, theirs = FORKS[kind]
    checkpoint.add(*ours)
    fork.add(*theirs)
    return fork, ours[-1]


@pytest.mark.parametrize("kind", in_full(FORKS, if_in=("behind", "ahead")))
def test_a_node_on_a_copy_that_went_on_gets_no_task_and_is_named_while_the_right_nodes_come_and_go(
    kind: str, tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    fork, last = forked(kind, checkpoint, tmp_path)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=last)
        with reading(known.router) as reader, node_on(fork, tmp_path, redis) as copy:
            wait_until(lambda: is_refused(copy) and names_it(known), what="the copy to be refused", limit_s=LIMIT_S)
            for node_id in ("n1", "n2"):
                known.end(node_id)
                wait_until(partial(is_gone, known, node_id), what="its death", limit_s=LIMIT_S)
                reader.wait_for_answers()
                assert is_refused(copy)
                known.start(node_id)
                wait_until(partial(is_back, known, node_id), what="its return", limit_s=LIMIT_S)
            assert is_refused(copy)
            assert names_it(known)


@pytest.mark.full
@pytest.mark.parametrize("kind", in_full(("at the same version", "behind"), if_in=("behind",)))
def test_a_node_that_comes_back_on_a_copy_answers_nothing_while_the_other_cannot_read_its_checkpoint(
    kind: str, tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    fork, last = forked(kind, checkpoint, tmp_path)
    files, late = PausableFiles(checkpoint.path), partial(cluster_node, rebalance_delay_ms=60_000)
    with (
        cluster(checkpoint.path, tmp_path, redis.url, nodes=1, rebalance_delay_ms=60_000) as known,
        late(checkpoint.path, tmp_path / "slow", redis.url, node_id="slow", files=files) as slow,
    ):
        for node in (slow, known.nodes["n1"]):
            wait_until(partial(holds_all, node, last), what="its tasks", limit_s=LIMIT_S)
        files.pause()
        with reading(known.router) as reader:
            known.end("n1")
            with late(fork.path, tmp_path / "copy-data", redis.url, node_id="n1") as copy:
                enough = beats_of(known, "slow") + 20
                wait_until(lambda: beats_of(known, "slow") > enough, what="heartbeats", limit_s=LIMIT_S)
                reader.wait_for_answers()
                assert reader.failed == [], reader.failed[:1]
                assert "before it is known to follow no fork" in copy.not_ready()
                files.resume()
                wait_until(lambda: is_refused(copy) and names_it(known, "n1"), what="its refusal", limit_s=LIMIT_S)


def test_a_rewind_that_one_node_sees_later_than_the_other_is_no_fork(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    files = PausableFiles(checkpoint.path)
    with (
        cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known,
        cluster_node(checkpoint.path, tmp_path / "late", redis.url, node_id="late", files=files) as late,
    ):
        wait_until(partial(holds_all, late), what="its tasks", limit_s=LIMIT_S)
        files.pause()
        checkpoint.commit(VERSION)  # the last batch once more: the same version at another time
        wait_until(lambda: "rewound" in known.nodes["n1"].events(), what="the rewind at one node", limit_s=LIMIT_S)
        enough = beats_of(known, "late") + 8
        wait_until(lambda: beats_of(known, "late") > enough, what="heartbeats that differ", limit_s=LIMIT_S)
        files.resume()
        wait_until(lambda: "rewound" in late.events(), what="the rewind at the other", limit_s=LIMIT_S)
        wait_until(partial(holds_all, late), what="its tasks again", limit_s=LIMIT_S)
        assert "fork-found" not in [event["event"] for event in known.router.lag()["events"]]  # type: ignore[attr-defined]


def beats_of(known: Cluster, node_id: str) -> int:
    return known.router.router.tables.nodes[node_id].heartbeat.sequence


def holds_all(node: ClusterNode, version: int = VERSION) -> bool:
    return len(node.holds) == TASKS and node.shows(version)


def test_a_position_of_a_version_that_a_rewind_took_away_is_refused_at_once_with_409(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        position = known.router.look_up([WORDS[0]]).body["position"]
        (checkpoint.path / "commits" / str(VERSION - 1)).unlink()
        for node in known.nodes.values():
            wait_until(partial(node.shows, VERSION - 1), what="the version before", limit_s=LIMIT_S)
            bounds = f"min_position={position}&wait_ms=30000"
            assert node.look_up([WORDS[0]], bounds=bounds).problem in {"lineage-changed", "not-owner"}
        known.wait_to_rest(copies=2, version=VERSION - 1)
        reply = known.router.look_up([WORDS[0]], bounds=bounds)
        assert (reply.status, reply.problem) == (409, "lineage-changed")
        checkpoint.add(VERSION)
        known.wait_to_rest(copies=2, version=VERSION)
        assert known.router.look_up([WORDS[0]], bounds=bounds).problem == "lineage-changed"
