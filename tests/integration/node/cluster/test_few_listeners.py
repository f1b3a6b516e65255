"""A cluster in which only the node that assigns, and the first by rank, hear all heartbeats."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, VERSION, Cluster, cluster
from tests.support.cluster.watch import reading
from tests.support.spark.queries import wait_until

from understudy_node.cluster import heartbeat_loop
from understudy_shared.bus.gossip import Names

HEARTBEATS = Names(APPLICATION).heartbeats


@pytest.fixture(autouse=True)
def _one_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_loop, "MAX_LISTENERS", 1)
    monkeypatch.setattr(heartbeat_loop, "LEASE_LOOK_HEARTBEATS", 3)


def hearing(known: Cluster) -> set[str]:
    return {node_id for node_id, node in known.nodes.items() if node.member.cluster.hears_heartbeats}


def assigning(known: Cluster) -> set[str]:
    return {node_id for node_id, node in known.nodes.items() if node.member.has_lease}


def test_deaths_are_noticed_and_no_read_fails_whoever_dies(
    checkpoint: HandmadeCheckpoint, redis: RedisServer, tmp_path: Path
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=4) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        wait_until(lambda: len(hearing(known)) <= 2, what="nodes that do not listen", limit_s=LIMIT_S)
        assert assigning(known) <= hearing(known)
        readers = cast(list[int], redis.command("PUBSUB", "NUMSUB", HEARTBEATS))
        assert readers[1] <= 3, "the router, the node that assigns, and the first by rank"
        idle = next(iter(known.nodes.keys() - hearing(known)))
        with reading(known.router):
            for died in (idle, next(iter(assigning(known)))):
                known.end(died)
                known.wait_to_rest(copies=2, version=VERSION)
        assert assigning(known) <= hearing(known)
