"""Long answers of nodes and routers over real sockets: packed for those who accept it, unless a setting says no."""

from __future__ import annotations

import gzip
import http.client
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import cluster_node, cluster_router


def asked(port: int, accepted: str) -> tuple[dict[str, str], bytes]:
    """Headers and body of a long answer, to a reader who accepts this."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request("GET", "/openapi.json", headers={"accept-encoding": accepted})
    reply = client.getresponse()
    body = reply.read()
    client.close()
    assert reply.status == 200
    return {name.lower(): value for name, value in reply.getheaders()}, body


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_long_answers_are_packed_unless_a_setting_says_no(
    module_redis: RedisServer, tmp_path: Path, compression: str
) -> None:
    made = HandmadeCheckpoint(tmp_path / "counts").create().add(1)
    settings: dict[str, Any] = {"compression": compression}
    with (
        cluster_node(made.path, tmp_path / "data", module_redis.url, node_id="n1", **settings) as node,
        cluster_router(module_redis.url, **settings) as router,
    ):
        for port in (node.port, router.port):
            headers, body = asked(port, "gzip")
            whole, plain = asked(port, "identity")
            assert "content-encoding" not in whole
            if compression == "gzip":
                assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding")
                assert gzip.decompress(body) == plain
            else:
                assert not {"content-encoding", "vary"} & set(headers)
                assert body == plain
