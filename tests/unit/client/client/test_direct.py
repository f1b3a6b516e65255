"""Direct routing of the Python client, without I/O: which node is asked, and when a router is asked instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clients.direct_world import (
    KEYS,
    NODES,
    DirectWorld,
    keys_of,
    metadata,
    node_says,
    owned_by,
    owner,
    partition_of,
    position,
    read,
    read_many,
    reply_of,
)
from tests.support.clients.steps import answer, problem

from understudy.client.core import direct as refreshing
from understudy.client.core.exchange import Failure, FailureKind, Outcome, Reply, Send
from understudy.client.core.lookups import get
from understudy.client.core.reader import BoundStore
from understudy_shared.base.errors import UnderstudyError


def test_each_key_is_asked_of_the_node_that_holds_it_as_soon_as_that_is_known() -> None:
    world = DirectWorld()
    store = BoundStore(world.reader(world.client(key="usk_secret")), "words")
    assert read(world, store, "a") == "router", "nothing is known yet, and no call waits for it"
    world.now_s += refreshing.JITTER_S
    for key in KEYS:
        assert read(world, store, key) == owner(partition_of(key))
    assert world.asked_of()[:2] == ["router", "metadata"]
    assert len(world.metadata_at) == 1
    assert all(dict(each.headers)["authorization"] == "Bearer usk_secret" for each in world.sent)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20))
def test_a_client_places_keys_as_the_router_does(words: list[str]) -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    asked: list[str] = []

    def at_node(node_id: str, send: Send) -> Outcome:
        asked.append(node_id)
        if send.request.body is None:
            document = {**node_says(node_id, send), "key": {"word": unquote(keys_of(send)[0])}}
            return answer(document)
        return answer(node_says(node_id, send))

    world.at_node = at_node
    for word in words:
        try:
            read(world, store, word)
        except UnderstudyError:  # no text: a surrogate
            return
        assert asked[-1] == owner(partition_of(word))
    assert read_many(world, store, words) == [owner(partition_of(word)) for word in words]


DOUBTS: dict[str, Callable[[Send], Outcome]] = {
    "it does not hold the partition": lambda _: problem("not-owner", 421),
    "it restores": lambda _: problem("not-initialised", 503),
    "its replica is too old": lambda _: problem("no-acceptable-replica", 503),
    "the position is of another history": lambda _: problem("lineage-changed", 409),
    "it does not know the credential": lambda _: problem("unauthenticated", 401),
    "the credential may not": lambda _: problem("forbidden", 403),
    "the store is another's": lambda _: problem("unknown-store", 404),
    "too many requests": lambda _: problem("rate-limited", 429, retry_after="3"),
    "it has a bug": lambda _: problem("internal", 500),
    "it refuses connections": lambda _: Failure(FailureKind.NOT_SENT, "refused"),
    "it cuts its answer": lambda _: Failure(FailureKind.CUT, "cut"),
    "it hangs": lambda _: Failure(FailureKind.TIMEOUT, "late"),
    "it speaks no HTTP": lambda _: Failure(FailureKind.BAD_REPLY, "garbage"),
    "it closed two connections": lambda _: Failure(FailureKind.STALE, "closed"),
    "a portal": lambda _: Reply(200, "text/html", b"<html>"),
    "a redirect": lambda _: Reply(302, "", b""),
    "no content": lambda _: Reply(204, "", b""),
    "not modified": lambda _: Reply(304, "", b""),
    "a list": lambda _: answer([1]),
    "another store": lambda send: answer({**node_says("a", send), "store": "other"}),
    "another application": lambda send: answer(node_says("a", send, position=position(application="other"))),
    "another lineage": lambda send: answer(node_says("a", send, position=position(lineage="l0"))),
    "no position": lambda send: answer(node_says("a", send, position=None)),
    "a replica that restores": lambda send: answer(node_says("a", send, served_by={"state": "RESTORING"})),
    "a lag that is unknown": lambda send: answer(node_says("a", send, lag={"offset_lag": None})),
    "no lag": lambda send: answer(node_says("a", send, lag=None)),
}


@pytest.mark.parametrize("outcome", DOUBTS.values(), ids=DOUBTS.keys())
def test_on_any_doubt_a_router_answers_and_the_node_is_left_alone_for_a_while(
    outcome: Callable[[Send], Outcome],
) -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    world.at_node = lambda _, send: outcome(send)
    key = owned_by("a")
    assert read(world, store, key) == "router"
    asked = len(world.sent)
    assert read(world, store, key) == "router"
    assert world.asked_of()[asked:] == ["router"]
    world.now_s += 100
    assert read_many(world, store, [key, key]) == ["router", "router"]
    assert world.waits == []


def test_a_node_that_hangs_costs_a_call_a_second_and_leaves_half_of_its_time_to_the_router() -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    began_s = world.now_s
    read(world, store, owned_by("a"))
    assert world.sent[-1].deadline_s == began_s + 1
    world.run(get(store, [owned_by("a")], {"min_position": position()}, began_s + 0.5))
    assert world.sent[-1].deadline_s == pytest.approx(began_s + 0.25 + 0.2), "and what it may wait for the position"


@pytest.mark.parametrize(
    "bound",
    [
        {"version": 3},
        {"snapshot": position()},
        {"at": 1_700_000_000_000},
        {"cursor": "c"},
        {"require_active": True},
        {"min_position": position(), "wait": timedelta(seconds=20)},
    ],
)
def test_what_only_routers_can_keep_is_asked_of_them(bound: dict[str, Any]) -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    assert read(world, store, "word-1", **bound) == "router"
    if "cursor" not in bound:
        assert set(read_many(world, store, KEYS, **bound)) == {"router"}


def test_a_node_is_asked_with_the_same_bounds_and_with_the_defaults_of_the_router() -> None:
    world = DirectWorld()
    world.known = metadata(bounds={"max_lag": 5, "unknown_lag": "refuse"})
    store = world.warm(world.client())
    read(world, store, owned_by("a"), max_staleness=timedelta(seconds=2), max_lag=None)
    assert world.asked_of() == ["a"]
    assert world.sent[0].request.target.endswith("?max_lag=none&unknown_lag=refuse&max_staleness_ms=2000")
    read_many(world, store, [owned_by("b")])
    assert orjson.loads(world.sent[1].request.body or b"")["bounds"] == {"max_lag": 5, "unknown_lag": "refuse"}
    world.known = metadata((1, 2), bounds={"require_active": True})
    strict = world.warm(world.client())
    assert read(world, strict, owned_by("a")) == "router"


def test_the_keys_of_a_batch_that_a_node_cannot_answer_come_from_the_router() -> None:
    world = DirectWorld()
    store = world.warm(world.client())

    def at_node(node_id: str, send: Send) -> Outcome:
        if node_id == "a":
            return problem("overloaded", 429)
        document = node_says(node_id, send)
        if node_id == "b":
            document["results"][0] = {"status": 421, "type": "not-owner", "title": "t", "detail": "d"}
        if node_id == "c":
            document["reads"][0]["served_by"]["state"] = "RESTORING"
        return answer(document)

    world.at_node = at_node
    by = read_many(world, store, [*KEYS, {"word": 7}])
    first_of_b = next(at for at, key in enumerate(KEYS) if owner(partition_of(key)) == "b")
    for at, key in enumerate(KEYS):
        holder = owner(partition_of(key))
        assert by[at] == ("router" if holder in "ac" or at == first_of_b else holder)
    assert world.asked_of().count("router") == 1, "all of them in one request"
    assert store.reader.direct is not None
    counts = store.reader.direct.counts
    assert counts.routed["key"] == 1, "what is no key of the store is refused by the router"
    assert counts.direct == by.count("b") + by.count("d") + 1, "and the key that made the client warm"


@pytest.mark.parametrize("outcome", [problem("overloaded", 429), problem("no-acceptable-replica", 503)])
def test_direct_routing_adds_a_tenth_to_the_requests_when_everything_fails(outcome: Reply) -> None:
    """Q53."""
    world = DirectWorld()
    store = world.warm(world.client())
    world.at_node, world.at_router = lambda *_: outcome, lambda _: outcome
    calls, began_s = 1000, world.now_s
    for number in range(calls):
        with pytest.raises(UnderstudyError):
            world.run(get(store, [KEYS[number % len(KEYS)]], {}, world.now_s + 5))
        world.now_s += 0.01
    elapsed_s = world.now_s - began_s
    assert len(world.sent) - len(world.metadata_at) <= 1.2 * calls + 2 * 0.3 * (elapsed_s + 10)


@given(
    outcomes=st.lists(st.sampled_from(list(DOUBTS)), min_size=1, max_size=8),
    pauses=st.lists(st.floats(0, 20), min_size=1, max_size=8),
    orders=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_whatever_nodes_and_metadata_do_a_read_has_the_answer_of_its_node_or_of_a_router(
    outcomes: list[str], pauses: list[float], orders: list[tuple[int, int]]
) -> None:
    world = DirectWorld()
    store = world.warm(world.client())
    number = 0

    def at_node(node_id: str, send: Send) -> Outcome:
        nonlocal number
        number += 1
        name = outcomes[number % len(outcomes)]
        return DOUBTS[name](send) if number % 3 else answer(node_says(node_id, send))

    world.at_node = at_node
    for at, pause_s in enumerate(pauses):
        order = orders[at % len(orders)]
        world.known = metadata(order, owns=lambda partition, at=at: NODES[(partition + at) % len(NODES)])  # type: ignore[misc]
        world.now_s += pause_s
        assert read(world, store, KEYS[at]) in (*NODES, "router")
        assert set(read_many(world, store, KEYS[:10])) <= {*NODES, "router"}


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
    stores = [BoundStore(world.reader(state), "words") for state in states]
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
