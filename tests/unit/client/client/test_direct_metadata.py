"""What a client with direct routing believes of metadata, when it asks for it again, and which addresses it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tests.support.clients.direct_world import (
    DirectWorld,
    metadata,
    node_says,
    owned_by,
    read,
    read_many,
    reply_of,
)
from tests.support.clients.steps import answer, problem

from understudy.client.core import direct as refreshing
from understudy.client.core.exchange import Failure, FailureKind, Outcome, Reply
from understudy.client.core.reader import StoreReader

BAD_METADATA: dict[str, Outcome] = {
    "a page": Reply(200, "text/html", b"<html></html>"),
    "a problem": problem("not-initialised", 503),
    "not found": problem("unknown-path", 404),
    "a server that is gone": Failure(FailureKind.NOT_SENT, "refused"),
    "a hang": Failure(FailureKind.TIMEOUT, "late"),
    "no JSON": Reply(200, "application/json", b'{"store": "words"'),
    "a list": answer([]),
    "not modified, of what was never sent": Reply(304, "", b"", "", '"x"'),
    "a redirect": Reply(302, "application/json", b"{}"),
    "too large": Reply(200, "application/json", b" " * (16 * 1024 * 1024 + 1)),
}
LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    **{
        f"no {name}": lambda known, name=name: known.pop(name)  # type: ignore[misc]
        for name in ("store", "partitions", "term", "epoch", "encoding", "lineage", "application_id", "bounds")
    },
    "another store": lambda known: known.update(store="other"),
    "no partitions": lambda known: known.update(partitions=[]),
    "fewer partitions": lambda known: known["partitions"].pop(),
    "partitions out of order": lambda known: known["partitions"].reverse(),
    "a term below zero": lambda known: known.update(term=-1),
    "an epoch that is a text": lambda known: known.update(epoch="1"),
    "bounds that are no bounds": lambda known: known.update(bounds={"max_lag": [1]}),
    "a host that is a number": lambda known: known["partitions"][0].update(active_host={"host": 1, "port": 2}),
    "a host without a port": lambda known: known["partitions"][0].update(active_host={"host": "a"}),
    "a layout of another release": lambda known: known["encoding"].update(layout="0" * 16),
    "a schema that is none": lambda known: known["encoding"].update(key_schema='{"type":"struct"}'),
    "a deep schema": lambda known: known["encoding"].update(key_schema="[" * 100_000),
    "names that are code": lambda known: known["encoding"].update(key_names=["');import os#", "b"]),
    "a type that there is not": lambda known: known["encoding"].update(
        key_schema=known["encoding"]["key_schema"].replace("string", "nothing")
    ),
}


def altered(lie: Callable[[dict[str, Any]], None]) -> Outcome:
    known: dict[str, Any] = orjson.loads(reply_of(metadata()).body)
    lie(known)
    return answer(known)


@pytest.mark.parametrize(
    "known", [*BAD_METADATA.values(), *map(altered, LIES.values())], ids=[*BAD_METADATA.keys(), *LIES.keys()]
)
def test_metadata_that_is_no_use_breaks_no_read_and_is_seldom_asked_for_again(known: Outcome) -> None:
    world = DirectWorld()
    world.known = known
    store = world.warm(world.client())
    for _ in range(50):
        world.now_s += 0.5
        assert read(world, store, "word-1") == "router"
        assert read_many(world, store, ["word-1", "word-2"]) == ["router", "router"]
    assert set(world.asked_of()) <= {"router", "metadata"}
    assert len(world.metadata_at) <= 9, "after pauses that grow"


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", "a b", "a/b", "a@b", "a:b", "a\r\nx: y", "[::1]", "ä", "a" * 300, "https://a", "a#", "%61", "."),
        *("0.0.0.0", "::", "0", "127.1", "2130706433", "0x7f.1", "1.2.3.0x4", "1.2.3.999", "224.0.0.1"),
    ],
)
def test_what_is_no_address_of_a_node_is_never_asked(host: str) -> None:
    assert asked_with({"host": host, "port": 80}) == {1}


def asked_with(host: dict[str, Any]) -> set[int]:
    """The ports that are asked when metadata names this host for each partition."""
    known: dict[str, Any] = orjson.loads(reply_of(metadata()).body)
    for each in known["partitions"]:
        each["active_host"] = host
    world = DirectWorld()
    world.known = answer(known)
    store = world.warm(world.client(key="usk_secret"))
    read(world, store, "word-1")
    return {1, *(each.endpoint.port for each in world.sent)}


def test_what_is_known_is_not_used_for_ever() -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    world.known = Failure(FailureKind.TIMEOUT, "late")
    world.now_s += refreshing.EXPIRY_S / 2
    assert read(world, store, owned_by("a")) == "a"
    world.now_s += refreshing.EXPIRY_S
    assert read(world, store, owned_by("a")) == "router"


def test_a_partition_that_moved_is_learned_with_one_request_after_some_jitter() -> None:
    """Q48."""
    world = DirectWorld()
    store = world.warm(world.client())
    before = len(world.metadata_at)
    world.known = metadata((1, 2), owns=lambda _: "b")
    world.at_node = lambda node_id, send: (
        answer(node_says(node_id, send)) if node_id == "b" else problem("not-owner", 421)
    )
    for _ in range(100):
        assert read(world, store, owned_by("a")) in ("router", "b"), "never wrong, never an error"
        world.now_s += 0.01
    assert read(world, store, owned_by("a")) == "b"
    assert len(world.metadata_at) == before + 1


def test_many_clients_spread_their_requests_for_metadata_at_the_start_and_when_something_moves() -> None:
    """Q50."""
    clients = 300
    world = DirectWorld()
    states = [world.client(seed=number) for number in range(clients)]
    stores = [StoreReader(world.reader(state), "words") for state in states]
    key = owned_by("a")

    def live(ticks: int) -> list[int]:
        """How many ask for metadata in each 20 ms, while each client reads all the time."""
        counted = []
        for _ in range(ticks):
            before = len(world.metadata_at)
            for store in stores:
                read(world, store, key)
            counted.append(len(world.metadata_at) - before)
            world.now_s += 0.02
        return counted

    started = live(30)
    assert sum(started) == clients, "one each"
    assert max(started) <= 5 * clients * 0.02 / refreshing.JITTER_S
    world.known = metadata((1, 2), owns=lambda _: "b")
    world.at_node = lambda node_id, send: (
        answer(node_says(node_id, send)) if node_id == "b" else problem("not-owner", 421)
    )
    moved = live(30)
    assert sum(moved) == clients
    assert max(moved) <= 5 * clients * 0.02 / refreshing.JITTER_S


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nodes_are_asked_by_the_scheme_of_the_router_at_the_address_that_theirs_is_mapped_to(scheme: str) -> None:
    world = DirectWorld()
    mapping = {f"127.0.0.1:{port}": f"Bastion:{port}" for port, node_id in world.by_port.items() if node_id in "ab"}
    store = world.warm(world.client(url=f"{scheme}://router.example:1", addresses=mapping))
    assert read(world, store, owned_by("a")) == "a"
    endpoint = world.sent[0].endpoint
    assert (endpoint.scheme, endpoint.host, endpoint.server_name) == (scheme, "bastion", "127.0.0.1")
    assert read(world, store, owned_by("c")) == "router", "an address that the mapping does not name is not asked"
    assert {each.endpoint.scheme for each in world.sent} == {scheme}
