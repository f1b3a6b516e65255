"""A bug of a router's own: the reader is told, and the connection lives on."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, ClusterRouter, cluster


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRouter]:
    folder = tmp_path_factory.mktemp("requests")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1)
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=1)
        yield known.router


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
