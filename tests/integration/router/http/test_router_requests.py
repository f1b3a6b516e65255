"""Requests to a router that ask for nothing there is: paths that another reads otherwise, HEAD, and its own bugs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, ClusterRouter, cluster
from tests.support.spark.counting_query import WORDS

STORE = "/v1/stores/op0"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRouter]:
    folder = tmp_path_factory.mktemp("requests")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1)
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=1)
        yield known.router


@pytest.mark.parametrize(
    "target",
    [
        "/v1%2Fstores%2Fop0%2Fmetadata%2Fa",
        "/v1%2Fstores%2Fop0",
        "/v1/stores/op0%2Fmetadata%2Fa",
        "/v1/stores/op0/metadata%2Fa",
        "/admin%2Fv1%2Flag",
        "/admin/v1/nodes%2Fn1%2Fdrain",
        f"{STORE}/keys/%zz",
        f"{STORE}/metadata/%zz",
        f"{STORE}/metadata?key=%zz",
    ],
)
def test_a_path_that_is_escaped_where_it_must_not_be_is_a_bad_request(router: ClusterRouter, target: str) -> None:
    reply = router.get(target)
    assert (reply.status, reply.problem) == (400, "bad-request")
    assert reply.body["fix"]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stores",
        STORE,
        f"{STORE}/metadata",
        f"{STORE}/keys/{WORDS[0]}",
        f"{STORE}/keys/absent",
        "/livez",
        "/readyz",
        "/metrics",
        "/admin/v1/lag",
        "/v2",
        "/admin%2Fv1%2Flag",
    ],
)
def test_head_is_answered_wherever_get_is(router: ClusterRouter, target: str) -> None:
    status, headers, body = router.head("HEAD", target)
    asked = router.head("GET", target)
    assert (status, headers["content-type"], body) == (asked[0], asked[1]["content-type"], b"")
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("DELETE", f"{STORE}/keys/a", "GET, HEAD"),
        ("PUT", f"{STORE}/lookup", "GET, HEAD, POST"),
        ("POST", "/v1/stores", "GET, HEAD"),
        ("GET", "/admin/v1/nodes/n1/drain", "POST"),
        ("HEAD", "/admin/v1/nodes/n1/drain", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_answered_with_those_it_takes(
    router: ClusterRouter, method: str, target: str, allow: str
) -> None:
    status, headers, _ = router.head(method, target)
    assert (status, headers["allow"], headers["content-type"]) == (405, allow, "application/problem+json")


def test_a_bug_in_a_route_is_an_internal_problem_and_the_connection_lives_on(
    router: ClusterRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("a bug of the test")

    with monkeypatch.context() as patched:
        patched.setattr("understudy_router.admin.api.lag_tree", broken)
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT_S)
        try:
            for method in ("GET", "HEAD"):
                connection.request(method, "/admin/v1/lag")
                response = connection.getresponse()
                body = response.read()
                assert (response.status, response.headers["content-type"]) == (500, "application/problem+json")
                assert (b'"type":"internal"' in body) == (method == "GET")
            connection.request("GET", "/livez")
            assert connection.getresponse().read()
        finally:
            connection.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "a request failed unexpectedly"
    ] * 2
    assert router.get("/admin/v1/lag").status == 200


def test_a_long_report_is_sent_while_it_is_made_and_the_connection_lives_on(
    router: ClusterRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes_and_stores(tree: dict[str, Any]) -> object:
        rows = [row for store in tree["stores"] for row in store["partitions"]]
        return [node["node_id"] for node in tree["nodes"]], [(row["partition"], row["node_id"]) for row in rows]

    short = router.get("/admin/v1/lag").body
    monkeypatch.setattr("understudy_shared.server.app.LONG_BYTES", 10)
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT_S)
    try:
        for method in ("HEAD", "GET"):
            connection.request(method, "/admin/v1/lag")
            response = connection.getresponse()
            found = response.read()
            assert (response.status, response.headers["content-type"]) == (200, "application/json")
            assert (response.headers["content-length"], found == b"") == (None, method == "HEAD")
        assert nodes_and_stores(json.loads(found)) == nodes_and_stores(short)
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
