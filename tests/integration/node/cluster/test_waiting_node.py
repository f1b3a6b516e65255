"""A node whose checkpoint is not there yet, is gone, or cannot be seen: probes say what is wrong, and lookups go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, ClusterRouter, cluster, cluster_router
from tests.support.cluster.served_node import Served
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until
from tests.system.proof.processes import Service

from understudy_shared.base.sockets import free_port

LATE = "late"


@contextmanager
def node_process(checkpoint: Path, folder: Path, redis_url: str) -> Iterator[Service]:
    """A node as a user starts it, until the end of the block."""
    port = free_port()
    identity = ("--application-id", APPLICATION, "--node-id", LATE, "--port", str(port), "--lag-refresh-ms", "200")
    arguments = ("node", str(checkpoint), "--redis", redis_url, *identity, "--data-dir", str(folder / LATE))
    service = Service(LATE, arguments, folder / "log", port=port)
    service.start()
    try:
        yield service
    finally:
        service.kill()


def shown(router: ClusterRouter) -> dict[str, Any]:
    """The node as a router shows it; empty while it does not."""
    nodes: Any = router.get("/admin/v1/nodes").body["nodes"]
    return next((each for each in nodes if each["node_id"] == LATE), {})


def indicator(router: ClusterRouter, name: str) -> dict[str, Any]:
    found: Any = router.get("/admin/v1/health").body["indicators"]
    return next(each for each in found if each["name"] == name)


def wait(condition: Any, what: str) -> None:
    wait_until(condition, what=what, limit_s=3 * LIMIT_S)


def test_a_node_that_waits_for_its_checkpoint_is_shown_and_gets_tasks_when_it_has_arrived(tmp_path: Path) -> None:
    checkpoint, path = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1), tmp_path / "mounted-later"
    with (
        redis_server() as redis,
        cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known,
        node_process(path, tmp_path, redis.url) as late,
    ):
        router = known.router
        wait(lambda: shown(router).get("state") == "waiting", "a node that waits")
        what = f"a checkpoint at {path}: the folder does not exist"
        assert shown(router)["waits_for"] == what
        assert indicator(router, "nodes")["symptom"] == f"{LATE} waits for {what}"
        assert late.get("/livez").status == 200
        ready = late.get("/readyz")
        assert (ready.status, ready.body["reasons"]) == (503, [f"this node waits for {what}"])
        assert {Served(late.port).head(method, "/readyz")[0] for method in ("HEAD", "OPTIONS")} == {503}
        assert [Served(late.port).head(method, "/livez")[0] for method in ("HEAD", "OPTIONS")] == [200, 200]
        assert Served(late.port).head("OPTIONS", "/")[0] == 503
        assert late.get("/v1/stores").status == 503
        wait(lambda: router.not_ready() == "", "reads that the other node answers")
        assert shown(router)["active"] == 0
        path.symlink_to(checkpoint.path)
        wait(lambda: late.is_ready, "the node's start")
        wait(lambda: shown(router)["active"] + shown(router)["standby"] > 0, "tasks of its own")
        assert shown(router)["waits_for"] is None
        assert indicator(router, "nodes")["symptom"] == ""


def test_a_node_whose_query_has_committed_nothing_says_so(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create()
    checkpoint.write_state(1)
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, nodes=1) as known:
        health = known.router.get
        first = f"n1 waits for the first commit of the query at {checkpoint.path}"
        wait(lambda: first in str(health("/admin/v1/health").body["headline"]), "a node that waits for a commit")
        checkpoint.add(1)
        wait(lambda: first not in str(health("/admin/v1/health").body), "its first commit")


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


END = 5
EXPIRY_MS = 400


def test_a_lone_survivor_of_unknown_lag_answers_who_gave_no_lag_bound_and_refuses_every_other_with_the_reason(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Two of three nodes died, and the third cannot see the checkpoint any more."""
    checkpoint = HandmadeCheckpoint(tmp_path / "real").create().add(*range(1, END + 1))
    seen = tmp_path / "checkpoint"
    seen.symlink_to(checkpoint.path)
    settings = {"num_standby_replicas": 2, "end_expiry_ms": EXPIRY_MS}
    with (
        cluster(seen, tmp_path, redis.url, routers=0, **settings) as known,
        cluster_router(redis.url, end_expiry_ms=EXPIRY_MS) as router,
    ):
        known.routers.append(router)
        known.wait_to_rest(copies=3, version=END)
        for node_id in ("n1", "n2"):
            known.end(node_id)
        wait_until(lambda: set(router.living()) == {"n3"}, what="the others' end", limit_s=LIMIT_S)
        seen.unlink()

        def lag(bounds: str = "") -> Any:
            reply = router.look_up([WORDS[0]], bounds=bounds)
            assert (reply.status, reply.body["version"]) == (200, END), reply
            return reply.body["lag"]

        wait_until(lambda: lag()["offset_lag"] is None, what="unknown lag", limit_s=LIMIT_S)
        assert (lag()["time_lag_ms"], lag()["current_offset_position"]) == (None, END)
        assert lag("max_lag=0&unknown_lag=serve")["offset_lag"] is None
        for bound in ("max_lag=0", "max_lag=1000000", "max_staleness_ms=3600000"):
            refused = router.look_up([WORDS[0]], bounds=bound)
            assert (refused.status, refused.problem) == (503, "no-acceptable-replica"), bound
            candidates: Any = refused.body["candidates"]
            reasons = {each["node_id"]: each["reason"] for each in candidates}
            assert reasons.pop("n3") == "lag-unknown"
            assert set(reasons.values()) <= {"dead"}  # those that the assignment still names
