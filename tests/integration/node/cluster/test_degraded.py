"""A checkpoint that is gone under a running cluster: lookups go on, and all readiness probes say what is wrong."""

from __future__ import annotations

from pathlib import Path

from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, cluster
from tests.support.cluster.served_node import Served
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until


def degraded(of: Served) -> str:
    return str(of.get("/readyz").body["degraded"] or "")


def test_nodes_and_routers_say_that_the_checkpoint_is_gone_and_lag_unknown_and_when_it_is_back(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with (
        redis_server() as redis,
        cluster(checkpoint.path, tmp_path, redis.url, nodes=2, end_expiry_ms=500) as known,
    ):
        known.wait_to_rest(copies=2, version=2)
        router, (node, _) = known.start_router(end_expiry_ms=500), known.nodes.values()
        wait_until(lambda: router.not_ready() == "" and not degraded(router), what="rest", limit_s=LIMIT_S)
        checkpoint.path.rename(tmp_path / "elsewhere")
        wait_until(lambda: "lag is unknown" in degraded(router), what="the router's word", limit_s=LIMIT_S)
        wait_until(lambda: "the checkpoint is gone" in degraded(node), what="the node's word", limit_s=LIMIT_S)
        assert degraded(node).count("the checkpoint is gone") == 1
        assert "lag is unknown" in degraded(node)
        assert node.not_ready() == ""
        for cause in ("checkpoint-unreadable", "lag-unknown"):
            assert f'understudy_node_degraded{{cause="{cause}"}} 1.0' in node.text("/metrics")
        assert 'understudy_node_degraded{cause="bus-away"} 0.0' in node.text("/metrics")
        assert 'understudy_router_degraded{cause="lag-unknown"} 1.0' in router.text("/metrics")
        unknown = 'understudy_store_lag_unknown{store="op0"} 2.0'
        wait_until(lambda: unknown in node.text("/metrics"), what="a series of unknown lag", limit_s=LIMIT_S)
        assert "\nunderstudy_store_lag_seconds{" not in node.text("/metrics"), "unknown is not 0"
        assert router.look_up([WORDS[0]]).status == 200
        (tmp_path / "elsewhere").rename(checkpoint.path)
        for each in (router, node):
            wait_until(lambda each=each: not degraded(each), what="all to be well", limit_s=LIMIT_S)  # type: ignore[misc]
        known_again = 'understudy_store_lag_unknown{store="op0"} 0.0'
        wait_until(lambda: known_again in node.text("/metrics"), what="known lag", limit_s=LIMIT_S)
