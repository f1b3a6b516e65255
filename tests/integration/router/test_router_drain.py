"""A drain that a router passes on: to the node that it is about, from whom it may come, and what is passed back."""

from __future__ import annotations

import orjson
import pytest
from tests.support.cluster.fake_cluster import cluster
from tests.support.cluster.fake_node import A, B


async def test_drain_is_forwarded_to_the_node_that_it_is_about() -> None:
    async with cluster(A, B) as known:
        known.nodes[1].documents["/admin/v1/drain"] = b'{"node_id":"b","draining":true}'
        for body, sent in (({}, True), ({"drain": True}, True), ({"drain": False}, False)):
            reply = await known.http.post("/admin/v1/nodes/b/drain", json=body)
            assert (reply.status_code, reply.json()["node_id"]) == (202, "b")
            method, asked = known.nodes[1].requests[-1]
            assert (method, orjson.loads(asked)) == ("POST /admin/v1/drain", {"drain": sent})
        assert known.nodes[0].requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "origin": "https://elsewhere.example"},
        {"content-type": "application/json", "origin": "null"},
        {"content-type": "application/json", "sec-fetch-site": "cross-site"},
        {"content-type": "application/json", "sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_of_another_site_cannot_drain_a_node(headers: dict[str, str]) -> None:
    async with cluster(A) as known:
        known.nodes[0].documents["/admin/v1/drain"] = b'{"node_id":"a","draining":true}'
        reply = await known.http.post("/admin/v1/nodes/a/drain", content=b"", headers=headers)
        assert reply.json()["type"] in {"not-json", "cross-site"}
        assert known.nodes[0].requests == []


async def test_a_drain_that_the_node_refuses_is_a_problem_that_says_why() -> None:
    async with cluster(A) as known:
        reply = await known.http.post("/admin/v1/nodes/a/drain", json={"drain": True})
        assert known.nodes[0].requests[-1][0] == "POST /admin/v1/drain"
        assert (reply.status_code, reply.headers["content-type"]) == (502, "application/problem+json")
        assert reply.json()["type"] == "bad-reply"
        assert "refuses with 404" in reply.json()["detail"]
