"""A Redis that answers and refuses writes is away: lookups go on, nothing is reassigned, and everybody says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import HEARTBEAT_MS, LIMIT_S, Cluster, cluster
from tests.support.counting_query import WORDS
from tests.support.handmade_checkpoint import HandmadeCheckpoint
from tests.support.measured import measured
from tests.support.redis_server import RedisServer, redis_server
from tests.support.refused_writes import WAYS
from tests.support.spark_queries import wait_until

TASKS = 4
VERSION = 3
READS = 300
EXPIRY_S = 3 * HEARTBEAT_MS / 1000
IN_EVERY_RUN = ("no-scripts-no-publish", "read-only-replica")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Cluster, RedisServer]]:
    """Three nodes and two routers at rest, and their Redis."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known, redis


def failed_reads(known: Cluster) -> list[str]:
    """What went wrong with reads at both routers in turn."""
    replies = [known.routers[turn % 2].look_up([WORDS[turn % len(WORDS)]]) for turn in range(READS)]
    return [f"{reply.status}: {reply.body}" for reply in replies if reply.status != 200]


EVERY_WAY = [way if way in IN_EVERY_RUN else pytest.param(way, marks=pytest.mark.full) for way in WAYS]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_while_redis_refuses_writes_every_read_is_answered(way: str, running: tuple[Cluster, RedisServer]) -> None:
    known, redis = running
    WAYS[way].refuse(redis)
    silent_from_s = time.monotonic()
    wait_until(lambda: time.monotonic() > silent_from_s + 3 * EXPIRY_S, what="three expiries", limit_s=LIMIT_S)
    failed = failed_reads(known)
    measured(f"redis refuses writes ({way}): {len(failed)} of {READS} reads failed")
    WAYS[way].allow(redis)
    assert failed == [], failed[0]
