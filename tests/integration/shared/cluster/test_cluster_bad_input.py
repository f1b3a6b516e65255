"""Operators start nodes that contradict each other: one id twice, another checkpoint. No lookup is stopped by it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    LIMIT_S,
    TASKS,
    Cluster,
    cluster,
    cluster_node,
)
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.matrix import in_full
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until


@pytest.mark.full
def test_of_two_nodes_that_took_one_id_while_redis_was_away_one_is_unready_until_the_other_leaves(
    tmp_path: Path,
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(1)
    with redis_server() as own_redis, cluster(checkpoint.path, tmp_path, own_redis.url) as known:
        known.wait_to_rest(copies=2, version=1)
        with reading(known.router) as reader, ExitStack() as stack:
            own_redis.kill()
            second = stack.enter_context(
                cluster_node(checkpoint.path, tmp_path / "second", own_redis.url, node_id="n1")
            )
            own_redis.start()
            twins = [known.nodes["n1"], second]
            rivals = "another process of the cluster uses node id n1"
            wait_until(lambda: any(rivals in twin.not_ready() for twin in twins), what="a loser", limit_s=LIMIT_S)
            wait_until(lambda: not all(twin.not_ready() for twin in twins), what="a winner", limit_s=LIMIT_S)
            (loser,) = [twin for twin in twins if rivals in twin.not_ready()]
            assert loser.get("/livez").status == 200
            assert loser.member.heartbeat().state == "failed"
            known.wait_to_rest(copies=2, version=1)
            reader.wait_for_answers()
            if loser is second:
                known.stop("n1")
                known.nodes["n1"] = second
            else:
                stack.close()
            wait_until(lambda: loser.not_ready() == "", what="the id to be free", limit_s=LIMIT_S)
            known.wait_to_rest(copies=2, version=1)
            if loser is second:
                del known.nodes["n1"]


@pytest.mark.parametrize("stranger", in_full(("n0", "n9"), if_in=("n9",)))
def test_a_node_on_another_checkpoint_is_outvoted_gets_no_tasks_and_answers_nobody(
    tmp_path: Path, stranger: str
) -> None:
    common = HandmadeCheckpoint(tmp_path / "common", partitions=TASKS).create().add(1)
    other = HandmadeCheckpoint(tmp_path / "other", partitions=TASKS).create().add(1, 2)
    other.write("metadata", b'{"id":"99999999-2222-4333-8444-555555555555"}')
    with redis_server() as own_redis, cluster(common.path, tmp_path, own_redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=1)
        with (
            reading(known.router) as reader,
            heard_assignments(own_redis.url) as heard,
            cluster_node(other.path, tmp_path / stranger, own_redis.url, node_id=stranger) as outvoted,
        ):
            wait_until(lambda: "others of application" in outvoted.not_ready(), what="the vote", limit_s=LIMIT_S)
            assert outvoted.not_ready().startswith(f"this node follows {other.path} (lineage 99999999-")
            assert f"follow {common.path} (lineage 11111111-" in outvoted.not_ready()
            wait_until(lambda: stranger in known.router.living(), what="word of it", limit_s=LIMIT_S)
            wait_until(lambda: known.router.living()[stranger]["state"] == "failed", what="its state", limit_s=LIMIT_S)
            for word in WORDS:
                assert outvoted.look_up([word]).problem == "not-owner"
            common.add(2)
            wait_until(lambda: shows(known, 2), what="the next version", limit_s=LIMIT_S)
            reader.wait_for_answers()
            assert outvoted.holds == set()
            report = known.router.living()[stranger]
            assert (report["active"], report["standby"], report["warmup"]) == (0, 0, 0)
            assert known.router.lag()["end_offset_position"] == 2
        known.wait_to_rest(copies=2, version=2)
    assert all(stranger not in duty.holders for assignment in heard for duty in assignment.tasks.values())


def shows(known: Cluster, version: int) -> bool:
    """Whether every replica does."""
    return all(part["current_offset_position"] == version for part in known.router.partitions())
