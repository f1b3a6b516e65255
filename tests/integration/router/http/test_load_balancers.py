"""Routers behind load balancers, by the configurations of docs/how-to/load-balancers.md and by HAProxy's bare check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import ClusterRouter, cluster_node, cluster_router
from tests.support.cluster.served_node import Served
from tests.support.services.proxies import documented, haproxy, nginx
from tests.support.services.watches import Watcher
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

LOOKUP = f"/v1/stores/op0/keys/{WORDS[0]}"
BARE_CHECK = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
listen routers
  bind :8000
  option httpchk
  server router-1 router-1:8080 check inter 100ms
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path_factory.mktemp("checkpoint") / "counting").create().add(1, 2)


@pytest.fixture(scope="module")
def router(
    checkpoint: HandmadeCheckpoint, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterRouter]:
    module_redis.flush()
    with (
        cluster_router(module_redis.url) as started,
        cluster_node(checkpoint.path, tmp_path_factory.mktemp("n1"), module_redis.url, node_id="n1"),
    ):
        wait_until(lambda: not started.router.not_ready(), what="the router knows the node", limit_s=60)
        yield started


def status_by(port: int, method: str, target: str) -> int:
    return Served(port).head(method, target)[0]


def test_haproxys_bare_check_finds_a_router_up_when_it_is_ready_and_no_earlier(
    tmp_path: Path, checkpoint: HandmadeCheckpoint
) -> None:
    with (
        redis_server() as redis,
        cluster_router(redis.url) as router,
        haproxy(tmp_path / "haproxy", BARE_CHECK, router.port) as port,
    ):
        wait_until(lambda: status_by(port, "GET", "/livez") == 503, what="HAProxy has found it not ready", limit_s=60)
        assert status_by(router.port, "GET", "/livez") == 200
        with cluster_node(checkpoint.path, tmp_path / "n1", redis.url, node_id="n1"):
            wait_until(lambda: status_by(port, "GET", LOOKUP) == 200, what="HAProxy has found it ready", limit_s=60)


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_the_documented_configuration_asks_routers_that_are_ready_and_changes_nothing(
    tmp_path: Path, router: ClusterRouter, checkpoint: HandmadeCheckpoint, module_redis: RedisServer, name: str
) -> None:
    proxy = {"nginx": nginx, "haproxy": haproxy}[name]
    conf = documented("nginx") if name == "nginx" else documented("text", "balance leastconn")
    with (
        cluster_router(module_redis.url, application_id="elsewhere") as waiting,  # it knows no node of that application
        proxy(tmp_path / name, conf, waiting.port, router.port) as port,
    ):
        served = Served(port)
        wait_until(lambda: served.get(LOOKUP).status == 200, what="a router is asked", limit_s=60)
        wait_until(lambda: [served.get(LOOKUP).status for _ in range(8)] == [200] * 8, what="the ready one is asked")
        assert status_by(port, "HEAD", LOOKUP) == 200
        for text in ("a%2Fb", "%2F%2Fa", "a%252Fb", "a%20b"):
            reply, direct = served.get(f"/v1/stores/op0/keys/{text}"), router.get(f"/v1/stores/op0/keys/{text}")
            assert (reply.status, reply.body["key"]) == (404, direct.body["key"]), text
        assert served.text("/v1/stores/op0/export") == router.text("/v1/stores/op0/export")
        with Watcher(port, f"op0/watch/{WORDS[0]}") as watcher:
            assert watcher.take().kind == "snapshot"
            checkpoint.add(next_version(checkpoint))
            assert watcher.take().kind == "value"


def next_version(checkpoint: HandmadeCheckpoint) -> int:
    """The version that the next batch makes: batch N makes version N + 1."""
    return len([each for each in (checkpoint.path / "commits").iterdir() if each.name.isdigit()]) + 1
