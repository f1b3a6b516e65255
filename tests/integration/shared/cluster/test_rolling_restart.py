"""Every node and every router is restarted, one after the other, while readers read: none of them may notice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import HEARTBEAT_MS, LIMIT_S, Cluster, ClusterRouter, cluster
from tests.support.cluster.watch import heard_assignments, holders, reading
from tests.support.spark.queries import wait_until

SHUTDOWN_DELAY_MS = 2 * HEARTBEAT_MS
AN_HOUR_MS = 3_600_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)


def restart_nodes(known: Cluster, checkpoint: HandmadeCheckpoint) -> int:
    """Each in its turn, with a commit while it is away; the next when the cluster is whole again. The last version."""
    version = 1
    for node_id in list(known.nodes):
        known.stop(node_id)
        version += 1
        checkpoint.add(version)
        known.start(node_id)
        known.wait_to_rest(copies=2, version=version)
    return version


def restart_routers(known: Cluster) -> None:
    """Each in its turn; the next when it is ready."""
    for index in range(len(known.routers)):
        known.restart_router(index, shutdown_delay_ms=SHUTDOWN_DELAY_MS)
        wait_until(partial(is_ready, known.routers[index]), what="readiness", limit_s=LIMIT_S)


def is_ready(router: ClusterRouter) -> bool:
    return router.not_ready() == ""


def test_a_rolling_restart_of_all_nodes_and_routers_fails_no_read_and_restores_nothing_elsewhere(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    settings = {"shutdown_delay_ms": SHUTDOWN_DELAY_MS, "rebalance_delay_ms": AN_HOUR_MS}
    with cluster(checkpoint.path, tmp_path, redis.url, routers=0, **settings) as known:
        for _ in range(2):
            known.start_router(shutdown_delay_ms=SHUTDOWN_DELAY_MS)
        known.wait_to_rest(copies=2, version=1)
        before = holders(known.router.router.tables.assignment)
        with heard_assignments(redis.url) as heard, reading(*known.routers, goes_elsewhere=True) as reader:
            version = restart_nodes(known, checkpoint)
            restart_routers(known)
            known.wait_to_rest(copies=2, version=version)
            reader.wait_for_answers()
        assert version == 4
        for assignment in heard:
            for task, now in holders(assignment).items():
                assert now <= before[task], f"{task} came to {now - before[task]}: {assignment}"
        assert holders(known.router.router.tables.assignment) == before
