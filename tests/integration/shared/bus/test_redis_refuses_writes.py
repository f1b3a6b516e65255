"""Silence on the bus is no proof of death: a Redis that refuses writes, and a node that Redis alone does not hear."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.refused_writes import WAYS
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import HEARTBEAT_MS, LIMIT_S, VERSION, Cluster, cluster
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.matrix import in_full
from tests.support.measurements import measured
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

READS = 300
EXPIRY_S = 3 * HEARTBEAT_MS / 1000


@pytest.fixture
def running(tmp_path: Path, checkpoint: HandmadeCheckpoint) -> Iterator[tuple[Cluster, RedisServer]]:
    """Three nodes and two routers at rest, and their Redis."""
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known, redis


def failed_reads(known: Cluster) -> list[str]:
    """What went wrong with reads at both routers in turn."""
    replies = [known.routers[turn % 2].look_up([WORDS[turn % len(WORDS)]]) for turn in range(READS)]
    return [f"{reply.status}: {reply.body}" for reply in replies if reply.status != 200]


def degraded(of: Served) -> str:
    return str(of.get("/readyz").body["degraded"] or "")


def wait_for_three_expiries() -> None:
    """Long enough for a silent node to be taken for dead."""
    from_s = time.monotonic()
    wait_until(lambda: time.monotonic() > from_s + 3 * EXPIRY_S, what="three expiries", limit_s=LIMIT_S)


@pytest.mark.parametrize("way", in_full(WAYS, if_in=set(WAYS) - {"no-scripts-no-publish"}))
def test_while_redis_refuses_writes_every_read_is_answered_and_everybody_says_so(
    way: str, running: tuple[Cluster, RedisServer], checkpoint: HandmadeCheckpoint
) -> None:
    known, redis = running
    before = known.router.order()
    with heard_assignments(redis.url) as heard:
        WAYS[way].refuse(redis)
        wait_for_three_expiries()
        failed = failed_reads(known)
        measured(f"redis refuses writes ({way}): {len(failed)} of {READS} reads failed")
        assert failed == [], failed[0]
        for node in known.nodes.values():
            assert "Redis refuses writes: Redis refused writing" in degraded(node)
            assert 'understudy_node_degraded{cause="bus-writes-refused"} 1.0' in node.text("/metrics")
            assert node.get("/readyz").status == 200
        for router in known.routers:
            assert "Redis refuses what n1, n2, n3 write" in degraded(router)
            assert 'understudy_router_degraded{cause="bus-writes-refused"} 1.0' in router.text("/metrics")
            assert set(router.living()) == {"n1", "n2", "n3"}
            assert ("unheard" in degraded(router)) == (way == "no-scripts-no-publish")
        checkpoint.add(VERSION + 1)
        known.wait_to_rest(copies=2, version=VERSION + 1)  # lag is known on
        assert heard == [], "nothing is reassigned"
        WAYS[way].allow(redis)
        for each in (*known.routers, *known.nodes.values()):
            wait_until(lambda each=each: degraded(each) == "", what="all to be well", limit_s=LIMIT_S)  # type: ignore[misc]
        wait_for_three_expiries()
        assert [assignment.order for assignment in heard if assignment.order <= before] == []
        known.wait_to_rest(copies=2, version=VERSION + 1)
        assert failed_reads(known) == []
    assert all(set(duty.holders) <= {"n1", "n2", "n3"} for each in heard for duty in each.tasks.values())


def test_a_node_that_redis_alone_does_not_hear_keeps_its_tasks_and_answers(
    running: tuple[Cluster, RedisServer], checkpoint: HandmadeCheckpoint
) -> None:
    known, redis = running
    with heard_assignments(redis.url) as heard, reading(*known.routers) as reader:
        known.nodes["n2"].bus.is_cut = True
        wait_for_three_expiries()
        checkpoint.add(VERSION + 1)
        known.wait_to_rest(copies=2, version=VERSION + 1)
        reader.wait_for_answers(200)
        assert "Redis is away: the test cut it" in degraded(known.nodes["n2"])
        assert heard == [], "it answers the node that assigns, too"
        for router in known.routers:
            assert degraded(router) == "", "one of three is a node's own trouble"
        known.nodes["n2"].bus.is_cut = False
        wait_until(lambda: degraded(known.nodes["n2"]) == "", what="it to be heard", limit_s=LIMIT_S)


@pytest.mark.full
def test_a_router_that_starts_while_redis_refuses_writes_asks_the_nodes(running: tuple[Cluster, RedisServer]) -> None:
    known, redis = running
    WAYS["no-scripts-no-publish"].refuse(redis)
    wait_for_three_expiries()
    late = known.start_router()
    wait_until(lambda: late.not_ready() == "", what="readiness", limit_s=LIMIT_S)
    wait_until(lambda: set(late.living()) == {"n1", "n2", "n3"}, what="the nodes' answers", limit_s=LIMIT_S)
    assert "3 of 3 nodes are unheard on Redis and answer when asked: n1, n2, n3" in degraded(late)
    assert late.look_up([WORDS[0]]).status == 200
    WAYS["no-scripts-no-publish"].allow(redis)
