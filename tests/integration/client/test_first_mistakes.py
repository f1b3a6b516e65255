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
from understudy_shared.reads.position import Position

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


def test_whole_numbers_are_strings_for_readers_that_ask_for_it(caller: Caller) -> None:
    plain = caller.get(f"/v1/stores/op0/keys/{WORD}").body
    assert isinstance(plain["value"], dict)
    expected = {name: str(number) for name, number in plain["value"].items()}
    assert expected
    single = caller.get(f"/v1/stores/op0/keys/{WORD}?longs=string").body
    exact = caller.get(f"/v1/stores/op0/lookup?key=%5B%22{WORD}%22%5D&longs=string&max_lag=100").body
    batch = caller.post("/v1/stores/op0/lookup?longs=string", json.dumps({"keys": [[WORD], ["nobody"]]}).encode()).body
    assert isinstance(batch["results"], list)
    for answer in (single, exact, batch["results"][0]):
        assert answer["value"] == expected
        assert isinstance(answer["version"], int)
    assert batch["results"][1]["found"] is False
    assert caller.get(f"/v1/stores/op0/keys/{WORD}?longs=number").body["value"] == plain["value"]


def test_longs_that_are_no_choice_are_refused(caller: Caller) -> None:
    for reply in (
        caller.get(f"/v1/stores/op0/keys/{WORD}?longs=text"),
        caller.post("/v1/stores/op0/lookup?longs=text", b'{"keys":[["a"]]}'),
    ):
        assert reply.problem == "bad-bound"
        assert "longs=string" in reply.text


def test_a_bound_in_the_query_of_a_batch_is_refused_because_it_would_not_count(caller: Caller) -> None:
    reply = caller.post("/v1/stores/op0/lookup?max_lag=0", b'{"keys":[["a"]]}')
    assert reply.problem == "bad-request"
    assert "'max_lag'" in reply.text


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


@pytest.mark.parametrize("value", ["True", "TRUE", "true", "1", "False"])
def test_booleans_may_be_written_as_python_and_sql_write_them(caller: Caller, value: str) -> None:
    assert caller.get(f"/v1/stores/op0/keys/{WORD}?require_active={value}").status == 200


def test_a_store_that_is_misspelt_is_suggested(caller: Caller) -> None:
    assert "Did you mean 'op0'?" in caller.get("/v1/stores/op1/keys/a").text


def test_a_byte_that_is_not_utf8_is_shown_as_it_was_sent(caller: Caller) -> None:
    text = caller.get("/v1/stores/op0/keys/a%FF").text
    assert "'a%FF' is not percent-encoded UTF-8" in text
    assert "b'" not in text


def test_too_many_segments_are_answered_with_a_path_that_fits(caller: Caller) -> None:
    reply = caller.get("/v1/stores/op0/keys/a/b")
    assert reply.problem == "bad-key"
    assert "keys/a/b is not a key of this store" in reply.text
    assert "as keys/text" in reply.text
    assert "JSON array" not in reply.text
