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
)
from tests.support.clients.steps import answer, problem

from understudy.client.core import direct as refreshing
from understudy.client.core.exchange import Failure, FailureKind, Outcome, Reply, Send
from understudy.client.core.lookups import get
from understudy.client.core.reader import StoreReader
from understudy_shared.base.errors import UnderstudyError


def test_each_key_is_asked_of_the_node_that_holds_it_as_soon_as_that_is_known() -> None:
    world = DirectWorld()
    store = StoreReader(world.reader(world.client(key="usk_secret")), "words")
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
    state = store.reader.state
    assert state.direct is not None
    counts = state.direct.counts
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
