"""What a newcomer sends by mistake, and what a number needs to survive JavaScript: the same at a node and a router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Reply, served_node
from tests.support.spark.queries import wait_until

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position

LINEAGE = Lineage("11111111-2222-4333-8444-555555555555")


WORD, NUMBER = "born-1", 2**53 + 1


class Caller(Protocol):
    """A client of a node or of a router."""

    def get(self, target: str) -> Reply: ...
    def post(self, target: str, body: bytes) -> Reply: ...


@pytest.fixture(scope="module", params=["node", "router"])
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """The node under test serves counts by (word, number), at version 3."""
    folder = tmp_path_factory.mktemp("mistakes")
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(1, 2, 3)
    if request.param == "node":
        with served_node(checkpoint.path, folder / "data") as node:
            wait_until(lambda: node.get("/readyz").status == 200, what="the node")
            yield node
        return
    with (
        redis_server() as redis,
        cluster(checkpoint.path, folder, redis.url, routers=1, num_standby_replicas=0) as started,
    ):
        started.wait_to_rest(copies=1, version=3)
        yield started.routers[0]


def test_a_position_of_another_application_is_called_that_and_not_rewound(caller: Caller) -> None:
    ours = caller.get("/v1/stores/op0").body["application_id"]
    token = Position(ApplicationId("orders"), LINEAGE, 1, None).encode()
    for reply in (
        caller.get(f"/v1/stores/op0/keys/{WORD}?min_position={token}"),
        caller.post(
            "/v1/stores/op0/lookup", json.dumps({"keys": [[WORD]], "bounds": {"min_position": token}}).encode()
        ),
    ):
        assert reply.problem == "lineage-changed"
        assert "'orders'" in reply.text
        assert repr(ours) in reply.text
        assert "rewound" not in reply.text


def test_a_store_that_is_misspelt_is_suggested(caller: Caller) -> None:
    assert "Did you mean 'op0'?" in caller.get("/v1/stores/op1/keys/a").text
