"""What a router and a node of a real cluster count: by store, in time, by lag; and how soon commits become visible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, Cluster, cluster
from tests.support.cluster.served_node import Served
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

VERSION = 2


class World:
    """A cluster of two nodes and a router, and the checkpoint that they follow."""

    def __init__(self, known: Cluster, checkpoint: HandmadeCheckpoint) -> None:
        self.known = known
        self.checkpoint = checkpoint
        self.router = known.router
        self.nodes = list(known.nodes.values())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("metrics")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(*range(1, VERSION + 1))
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield World(known, checkpoint)


def value(of: Served, name: str) -> float:
    """One series; 0 when there is none."""
    found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", of.text("/metrics"))
    return float(found[1]) if found else 0.0


def test_a_router_counts_reads_by_store_and_outcome_and_how_old_their_answers_were(world: World) -> None:
    router = world.router
    names = {
        "found": 'understudy_requests_total{op="lookup",outcome="found",store="op0"}',
        "absent": 'understudy_requests_total{op="lookup",outcome="absent",store="op0"}',
        "batches": 'understudy_requests_total{op="batch",outcome="answered",store="op0"}',
        "no store": 'understudy_requests_total{op="lookup",outcome="unknown-store",store=""}',
        "took": 'understudy_request_duration_seconds_count{op="lookup",store="op0"}',
        "lag": "understudy_served_lag_batches_count",
        "in step": 'understudy_served_lag_batches_bucket{le="0.0"}',
        "staleness": "understudy_served_staleness_seconds_count",
        "hops": "understudy_router_hop_seconds_count",
    }
    before = {what: value(router, name) for what, name in names.items()}
    for word in WORDS[:3]:
        assert router.look_up([word]).status == 200
    assert router.look_up(["nowhere"]).status == 404
    assert router.look_up(["a"], store="made-up").status == 404
    keys = json.dumps({"keys": [[word] for word in WORDS[:5]] + [["nowhere"]]}).encode()
    assert router.post("/v1/stores/op0/lookup", keys).status == 200
    assert router.post("/v1/stores/made-up/lookup", keys).status == 404
    grown = {what: value(router, name) - before[what] for what, name in names.items()}
    assert grown.pop("hops") >= 5
    assert grown == {
        "found": 3, "absent": 1, "batches": 1, "no store": 1, "took": 4, "lag": 10, "in step": 10, "staleness": 10,
    }  # fmt: skip
    assert "made-up" not in router.text("/metrics"), "anybody could make series"


def test_a_commit_is_measured_until_it_is_visible_and_heartbeats_say_how_long_that_takes(world: World) -> None:
    node = world.nodes[0]
    name = "understudy_commit_to_visible_seconds_count"
    before, end = value(node, name), node.node.end.version
    world.checkpoint.add(end + 1)
    world.known.wait_to_rest(copies=2, version=end + 1)
    assert value(node, name) - before == world.checkpoint.partitions, "each replica shows it once"
    wait_until(
        lambda: world.router.router.tables.nodes[node.member.node_id].heartbeat.freshness is not None,
        what="a heartbeat that says it",
        limit_s=LIMIT_S,
    )
    freshness = world.router.router.tables.nodes[node.member.node_id].heartbeat.freshness
    assert freshness is not None
    assert 0 < freshness.p50_ms <= freshness.p99_ms < LIMIT_S * 1000
