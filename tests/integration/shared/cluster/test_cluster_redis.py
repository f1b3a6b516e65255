"""Redis away at the start, lost, back empty, and emptied under way: lookups go on, and nothing turns back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    APPLICATION,
    LIMIT_S,
    VERSION,
    Cluster,
    ClusterNode,
    cluster,
)
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import heard_assignments, holders, reading
from tests.support.spark.queries import wait_until

from understudy_shared.bus import redis_subscription
from understudy_shared.bus.gossip import Names
from understudy_shared.bus.messages import Assignment

NAMES = Names(APPLICATION)


@pytest.fixture
def running(tmp_path: Path, checkpoint: HandmadeCheckpoint) -> Iterator[tuple[Cluster, RedisServer]]:
    """Three nodes and two routers at rest, and their Redis."""
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known, redis


def degraded(of: Served) -> str:
    """What the readiness probe says does not work; "" when all does."""
    return str(of.get("/readyz").body["degraded"] or "")


def wait_until_probe_says(of: Served, what: str) -> None:
    """Return when the readiness probe says that; "" means that all works."""
    wait_until(lambda: what in degraded(of) if what else not degraded(of), what=what or "no word", limit_s=LIMIT_S)


def keys(redis: RedisServer) -> set[str]:
    found: Any = redis.command("KEYS", "*")
    return {key.decode() for key in found}


def assert_goes_on_from(before: Assignment, heard: list[Assignment]) -> None:
    """All that was assigned since comes after what was there, in order."""
    orders = [before.order, *(assignment.order for assignment in heard)]
    assert orders == sorted(set(orders))


def waits_for_an_assignment(node: ClusterNode) -> bool:
    """Its commit log is read, so that nothing else is missing."""
    return node.not_ready().startswith("no assignment is known yet")


def test_without_redis_everybody_starts_waits_and_says_so_and_is_ready_when_it_comes(
    tmp_path: Path, checkpoint: HandmadeCheckpoint
) -> None:
    with redis_server(running=False) as redis, cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        for node in known.nodes.values():
            wait_until_probe_says(node, "Redis is away: Redis cannot be reached")
            wait_until(partial(waits_for_an_assignment, node), what="its reason", limit_s=LIMIT_S)
        wait_until_probe_says(known.router, "Redis is away: Redis cannot be reached")
        assert known.router.not_ready() == "no catalogue is known yet; no assignment is known yet"
        assert degraded(known.router).count("Redis cannot be reached") == 1
        for each in (known.router, *known.nodes.values()):
            assert each.get("/livez").status == 200
        refused = known.router.look_up(["word-0"])
        assert (refused.status, refused.problem) == (503, "not-initialised")
        assert known.router.lag()["assignment"] is None
        redis.start()
        known.wait_to_rest(copies=2, version=VERSION)
        for each in (known.router, *known.nodes.values()):
            wait_until_probe_says(each, "")
            assert each.get("/readyz").status == 200
        with reading(known.router):
            pass


def test_while_redis_is_away_lookups_go_on_lag_is_known_and_nothing_is_reassigned_and_then_it_is_back_empty(
    running: tuple[Cluster, RedisServer], checkpoint: HandmadeCheckpoint
) -> None:
    known, redis = running
    before = known.router.router.tables.assignment
    assert before is not None
    with reading(*known.routers) as reader, heard_assignments(redis.url) as heard:
        redis.kill()
        for each in (*known.routers, *known.nodes.values()):
            wait_until_probe_says(each, "Redis is away: Redis cannot be reached")
            assert each.get("/readyz").status == 200
            assert each.get("/livez").status == 200
        checkpoint.add(VERSION + 1)
        known.wait_to_rest(copies=2, version=VERSION + 1)  # by the word of the nodes themselves
        for router in known.routers:
            bus: Any = router.lag()["bus"]
            assert bus["state"] == "degraded"
            assert "Redis" in bus["why"]
        known.end("n3")
        reader.wait_for_answers(200)
        assert {router.order() for router in known.routers} == {before.order}
        assert {node.member.assignment.order for node in known.nodes.values() if node.member.assignment} == {
            before.order
        }
        redis.start()
        assert all(":node:" in key for key in keys(redis)), "Redis came back empty, and nodes may have spoken already"
        known.wait_to_rest(copies=2, version=VERSION + 1)
        for each in (*known.routers, *known.nodes.values()):
            wait_until_probe_says(each, "")
        reader.wait_for_answers()
    assert_goes_on_from(before, heard)  # what was published before this listener was back is not among it
    after = known.router.router.tables.assignment
    assert after is not None
    assert after.term > before.term
    assert "n3" not in set().union(*holders(after).values())
    found = keys(redis)
    assert {NAMES.node("n1"), NAMES.node("n2"), NAMES.assignment} <= found
    assert NAMES.node("n3") not in found
    assert any(key.startswith(NAMES.catalogues) for key in found)


@pytest.mark.full
def test_nodes_that_are_heard_again_before_they_hear_do_not_take_the_others_for_dead(
    running: tuple[Cluster, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, redis = running
    before = known.router.router.tables.assignment
    assert before is not None
    slowest_ms = redis_subscription.MAX_PAUSE_MS  # longer than an expiry, before they hear
    monkeypatch.setattr(redis_subscription, "MIN_PAUSE_MS", slowest_ms)
    with reading(*known.routers) as reader:
        redis.kill()
        for node in known.nodes.values():
            wait_until_probe_says(node, "Redis is away: Redis cannot be reached")
        redis.start()
        wait_until(lambda: NAMES.assignment in keys(redis), what="the assignment in Redis again", limit_s=LIMIT_S)
        known.wait_to_rest(copies=2, version=VERSION)
        for each in (*known.routers, *known.nodes.values()):
            wait_until_probe_says(each, "")
        wait_until(lambda: known.router.order() > before.order, what="the next assignment", limit_s=LIMIT_S)
        reader.wait_for_answers()
    after = known.router.router.tables.assignment
    assert after is not None
    assert (after.epoch, after.tasks) == (before.epoch + 1, before.tasks)
