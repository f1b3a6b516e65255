"""Routers and nodes that start while Redis is away go by what they remembered, or by what a seed node answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    LIMIT_S,
    VERSION,
    Cluster,
    ClusterNode,
    ClusterRouter,
    CuttableBus,
    cluster,
    cluster_router,
)
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.matrix import in_full
from tests.support.spark.queries import wait_until

NODES = ("n1", "n2", "n3")


@pytest.fixture
def running(tmp_path: Path, checkpoint: HandmadeCheckpoint) -> Iterator[tuple[Cluster, RedisServer]]:
    """Three nodes at rest and a router that remembers, in folder `r1`; and their Redis."""
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, routers=0) as known:
        known.start_router(data_dir=tmp_path / "r1")
        known.wait_to_rest(copies=2, version=VERSION)
        yield known, redis


def order_of(known: Cluster) -> tuple[int, int]:
    """The (term, epoch) that each router and node follows."""
    wait_until(lambda: len({known.router.order(), *orders(known)}) == 1, what="one assignment", limit_s=LIMIT_S)
    return known.router.order()


def orders(known: Cluster) -> list[tuple[int, int]]:
    return [(0, 0) if (at := node.member.assignment) is None else at.order for node in known.nodes.values()]


def kill_redis(known: Cluster, redis: RedisServer, *, freeze: bool = False) -> None:
    """Kill or freeze Redis; return when all nodes and routers have noticed."""
    if freeze:
        redis.pause()
    else:
        redis.kill()
    for each in (*known.routers, *known.nodes.values()):
        wait_until_degraded(each)


def wait_until_degraded(of: Served, *, is_degraded: bool = True) -> None:
    wait_until(
        lambda: bool(of.get("/readyz").body["degraded"]) == is_degraded, what="its word of the bus", limit_s=LIMIT_S
    )


def wait_until_ready(of: Served) -> None:
    wait_until(lambda: of.not_ready() == "", what=f"readiness of {of!r}", limit_s=LIMIT_S)


def assert_answers_degraded(router: ClusterRouter) -> None:
    """Ready without Redis: every lookup is answered, and the probe says that something is missing."""
    wait_until_ready(router)
    with reading(router):
        pass
    assert "Redis is away" in str(router.get("/readyz").body["degraded"])


def holds(node: ClusterNode, tasks: set[str]) -> bool:
    return node.holds == tasks


def restart(known: Cluster, node_id: str) -> ClusterNode:
    known.stop(node_id)
    return known.start(node_id)


@pytest.mark.full
def test_a_router_that_restarts_answers_from_what_it_remembers_and_asks_the_nodes_for_their_lag(
    running: tuple[Cluster, RedisServer], checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    known, redis = running
    before = order_of(known)
    kill_redis(known, redis, freeze=True)
    known.restart_router(0, data_dir=tmp_path / "r1")
    assert_answers_degraded(known.router)
    assert known.router.order() == before
    checkpoint.add(VERSION + 1)
    known.wait_to_rest(copies=2, version=VERSION + 1)  # by the word of the nodes themselves


def test_a_node_that_restarts_takes_up_its_duties_and_no_lookup_fails_meanwhile(
    running: tuple[Cluster, RedisServer], checkpoint: HandmadeCheckpoint
) -> None:
    known, redis = running
    before, held = order_of(known), {node_id: known.nodes[node_id].holds for node_id in NODES}
    kill_redis(known, redis)
    with reading(known.router) as reader:
        for node_id in NODES:
            again = restart(known, node_id)
            wait_until_ready(again)
            wait_until(partial(holds, again, held[node_id]), what="its duties", limit_s=LIMIT_S)
            again.wait_for_version(VERSION)
            reader.wait_for_answers()
        checkpoint.add(VERSION + 1)
        known.wait_to_rest(copies=2, version=VERSION + 1)
    assert set(orders(known)) == {before}


@pytest.mark.parametrize("comes_back", in_full(("empty", "never"), if_in=("empty",)))
def test_everything_restarts_without_redis_and_goes_on_where_it_was(
    comes_back: str, running: tuple[Cluster, RedisServer], tmp_path: Path
) -> None:
    known, redis = running
    redis.kill()
    order_of(known)  # without Redis nobody assigns anything: they agree on what was assigned last
    before = known.router.router.tables.assignment
    assert before is not None
    for node_id in NODES:
        known.end(node_id)
    known.restart_router(0, data_dir=tmp_path / "r1")
    for node_id in NODES:
        known.start(node_id)
    for node in known.nodes.values():
        wait_until_ready(node)
    assert_answers_degraded(known.router)
    known.wait_to_rest(copies=2, version=VERSION)
    assert set(orders(known)) == {before.order}
    if comes_back == "empty":
        with reading(known.router), heard_assignments_from_the_start(redis) as heard:
            for each in (known.router, *known.nodes.values()):
                wait_until_degraded(each, is_degraded=False)
            wait_until(lambda: bool(heard), what="the assignment in Redis again", limit_s=LIMIT_S)
            known.wait_to_rest(copies=2, version=VERSION)
        epochs = [before.order, *(each.order for each in heard)]
        assert epochs == sorted(set(epochs)), "epochs go on where they were"
        assert heard[-1].tasks == before.tasks


def heard_assignments_from_the_start(redis: RedisServer) -> Any:
    """Start Redis, empty, and listen before anybody may assign: that takes three heartbeats."""
    redis.start()
    return heard_assignments(redis.url)


def test_a_fresh_router_learns_everything_from_one_seed(running: tuple[Cluster, RedisServer]) -> None:
    known, redis = running
    before = order_of(known)
    kill_redis(known, redis)
    nobody, somebody = "127.0.0.1:9", f"127.0.0.1:{known.nodes['n2'].port}"
    with cluster_router(redis.url, seed=f"{nobody},{somebody}") as fresh:
        assert_answers_degraded(fresh)
        assert fresh.order() == before
        wait_until(lambda: set(fresh.living()) == set(NODES), what="the nodes that the seed knows", limit_s=LIMIT_S)


@pytest.mark.full
def test_when_redis_is_back_everybody_is_back_within_three_heartbeats_and_nobody_died(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: Counter[CuttableBus] = Counter()
    put_owned = CuttableBus.put_owned

    async def counted(self: CuttableBus, *given: Any, **named: Any) -> bool:
        done = await put_owned(self, *given, **named)
        beats[self] += 1
        return done

    monkeypatch.setattr(CuttableBus, "put_owned", counted)
    # At the default heartbeat, to which the pauses of the bus belong.
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, lag_refresh_ms=1000) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        before = order_of(known)
        with reading(known.router) as reader:
            kill_redis(known, redis)
            reader.wait_for_answers(200)
            beats.clear()
            redis.start()
            for each in (known.router, *known.nodes.values()):
                wait_until_degraded(each, is_degraded=False)
            counts = dict(beats)
            known.wait_to_rest(copies=2, version=VERSION)
            wait_until(lambda: known.router.order() > before, what="the next assignment", limit_s=LIMIT_S)
        events: Any = known.router.lag()["events"]
    # One more than three because each says again how it is when it hears again.
    assert max(counts.values()) <= 4, counts
    assert not [event for event in events if event["event"] in {"died", "left"}], events
