"""A router whose nodes hang or are slow: rescues, hedges, late answers, readers that leave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from tests.support.cluster.fake_cluster import LARGE_BUDGET, NO_BUDGET, STORE, Cluster, cluster, until
from tests.support.cluster.fake_node import A, Answer, B, C, Hang, problem, refusal, says

from understudy_router.forwarding.fallback import Step
from understudy_router.http.app import create_app
from understudy_router.questions.lookup.service import RouterLookups
from understudy_router.transport.node_requests import NodeRequest
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.bus.messages import Applied, AssignedTask
from understudy_shared.http.problems import ProblemType
from understudy_shared.reads.bounds import Refusal
from understudy_shared.reads.tokens import Position
from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.protocol import HttpProtocol

TOKEN = Position(ApplicationId("flights"), Lineage("l1"), 9, None).encode()
LONG: dict[str, Any] = {"hop_timeout_ms": 60_000, "deadline_ms": 600_000}
NO_SILENCE: dict[str, Any] = {"suspect_after_ms": 60_000}


BELOW = says(refusal(Refusal.BELOW_MIN_POSITION))


def requests_to_nodes(known: Cluster) -> list[NodeRequest]:
    """All requests that are on their way, or wait."""
    clients = known.router.clients._clients.values()
    return [request for client in clients for group in client._all_requests() for request in group]


def was_sent(known: Cluster, request: NodeRequest) -> bool:
    """Whether it has left the queue of its node client."""
    return all(request not in client._waiting.requests for client in known.router.clients._clients.values())


async def behind(known: Cluster, number: int) -> None:
    """Let a node be behind by a few versions, so that others are asked before it."""
    node = known.nodes[number]
    await known.beat(node, applied=Applied(version=3, time_lag_ms=0))
    await until(lambda: known.router.tables.nodes[node.node_id].heartbeat.applied.version == 3)


async def test_reads_at_a_node_that_hangs_are_rescued_for_free_and_later_ones_go_elsewhere_at_once() -> None:
    async with cluster(Hang(), B, **LONG, **NO_BUDGET) as known:
        replies = await asyncio.gather(*(known.get(f"{STORE}/keys/{number}") for number in range(20)))
        assert [(reply.status_code, reply.json()["value"]) for reply in replies] == [(200, {"by": "b"})] * 20
        assert known.router.forwarder.context.steps == {Step.RESCUE: 20}
        assert known.router.clients.counts.silences == 1
        asked = sum(known.nodes[0].keys)
        assert (await known.get(f"{STORE}/keys/later")).status_code == 200
        assert sum(known.nodes[0].keys) == asked


async def test_a_slow_read_is_hedged_and_the_first_answer_wins_wherever_it_comes_from() -> None:
    for winner in (0, 1):
        async with cluster(A, B, **LONG, **LARGE_BUDGET, **NO_SILENCE) as known:
            for node in known.nodes:
                node.held = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(known.get(f"{STORE}/keys/x"))
                await until(lambda known=known: known.nodes[1].keys, what="the hedge")  # type: ignore[misc]
                held = known.nodes[winner].held
                assert held is not None
                held.set()
            assert reader.result().json()["value"] == {"by": "ab"[winner]}
            assert known.router.forwarder.context.steps == {Step.HEDGE: 1}
            assert (known.router.forwarder.context.budget.spent, known.nodes[0].keys, known.nodes[1].keys) == (
                1,
                [1],
                [1],
            )
            loser = known.nodes[1 - winner].held
            assert loser is not None
            loser.set()
            assert (await known.get(f"{STORE}/keys/x")).status_code == 200  # on connections that work as before


async def test_a_hedge_that_is_refused_goes_on_for_free_inside_the_bound_and_the_slow_one_still_counts() -> None:
    async with cluster(A, says(problem(ProblemType.NOT_OWNER)), C, **LONG, **LARGE_BUDGET, **NO_SILENCE) as known:
        known.nodes[0].held, known.nodes[2].held = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(known.get(f"{STORE}/keys/x"))
            await until(lambda: sum(known.nodes[1].keys) and sum(known.nodes[2].keys), what="both others to be asked")
            known.nodes[0].held.set()
        assert reader.result().json()["value"] == {"by": "a"}
        steps = known.router.forwarder.context.steps
        assert steps[Step.HEDGE] + steps[Step.FREE] == 2


@pytest.mark.parametrize("why", ["the bound", "hedges are off", "the budget is empty"])
async def test_a_slow_read_is_not_hedged_outside_the_bound_nor_when_it_may_not_be(why: str) -> None:
    settings = {**LONG, **LARGE_BUDGET, "suspect_after_ms": 30}
    if why == "hedges are off":
        settings["hedge_after_ms"] = 0
    elif why == "the budget is empty":
        settings |= NO_BUDGET
    async with cluster(A, B, **settings) as known:
        known.nodes[0].held, known.nodes[1].held = asyncio.Event(), asyncio.Event()  # nobody answers: no silence
        if why == "the bound":
            await behind(known, 1)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(known.get(f"{STORE}/keys/x?max_lag=0"))
            await until(
                lambda: any(request.delay for request in requests_to_nodes(known)), what="the read to be called slow"
            )
            await until(lambda: known.nodes[1].probes, what="the other node to be probed")
            assert known.nodes[1].keys == []
            known.nodes[0].held.set()
        assert reader.result().json()["value"] == {"by": "a"}
        assert known.router.forwarder.context.steps == {}


async def spread(known: Cluster, *actives: int) -> None:
    """Give partition n to node actives[n], with all others as its standbys."""
    ids = [node.node_id for node in known.nodes]
    tasks = {
        f"0_{partition}": AssignedTask(active=ids[active], standbys=tuple(each for each in ids if each != ids[active]))
        for partition, active in enumerate(actives)
    }
    await known.assign(known.assignment(epoch=2).model_copy(update={"tasks": tasks}))
    await until(lambda: known.router.tables.assignment is not None and known.router.tables.assignment.epoch == 2)


async def batch(known: Cluster, keys: int = 40) -> list[dict[str, Any]]:
    reply = await known.http.post(f"{STORE}/lookup", json={"keys": [[str(number)] for number in range(keys)]})
    assert reply.status_code == 200
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


async def test_in_a_batch_only_the_keys_of_the_node_that_hangs_are_rescued() -> None:
    async with cluster(Hang(), B, partitions=4, **LONG, **NO_BUDGET) as known:
        await spread(known, 0, 1, 0, 1)
        results = await batch(known)
        assert [each["key"]["word"] for each in results] == [str(number) for number in range(40)]
        assert {each["value"]["by"] for each in results} == {"b"}
        hung = sum(known.nodes[0].keys)
        assert 0 < hung < 40
        assert known.nodes[1].keys == [40 - hung, hung]
        assert known.router.forwarder.context.steps == {Step.RESCUE: hung}


async def test_in_a_batch_a_node_that_hangs_holds_up_nobody_elses_fallback() -> None:
    settings = {**LONG, **NO_SILENCE, **NO_BUDGET}
    async with cluster(A, says(problem(ProblemType.NOT_OWNER)), C, partitions=2, **settings) as known:
        await spread(known, 0, 1)
        await behind(known, 0)
        known.nodes[0].held = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(batch(known))
            await until(lambda: known.nodes[1].keys and known.nodes[2].keys, what="the refused keys to be at the third")
            assert not reader.done()
            known.nodes[0].held.set()
        by = [each["value"]["by"] for each in reader.result()]
        assert by.count("c") == sum(known.nodes[1].keys) == sum(known.nodes[2].keys)
        assert by.count("a") == 40 - by.count("c")


async def test_waiting_for_a_position_costs_no_budget_and_is_not_held_up_by_a_node_that_hangs() -> None:
    async with cluster(Hang(), BELOW, **LONG, **NO_BUDGET) as known:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(known.get(f"{STORE}/keys/x?min_position={TOKEN}&wait_ms=20000"))
            await until(lambda: len(known.nodes[1].keys) >= 3, what="the router to ask again")
            known.nodes[1].answer = B
        assert (reader.result().status_code, reader.result().json()["value"]) == (200, {"by": "b"})
        assert known.nodes[0].keys == [1]
        assert known.router.forwarder.context.not_paid == 0


# ---- on a real socket


@asynccontextmanager
async def served(known: Cluster) -> AsyncIterator[tuple[RouterLookups, int]]:
    """The router's application behind the protocol of all services, and its port."""
    app = create_app(known.router)
    listener = socket.create_server(("127.0.0.1", 0))
    protocol: Any = partial(HttpProtocol, guard=ConnectionGuard(), answers=Answers(direct=app))
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, access_log=False))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield app, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def get(target: str, headers: str = "") -> bytes:
    return f"GET {target} HTTP/1.1\r\nhost: h\r\n{headers}\r\n".encode()


BY_ASGI = "content-length: 0\r\n"
"""A GET with a body is answered by ASGI."""


KEYS = b'{"keys":[["x"],["y"]]}'
POST = f"POST {STORE}/lookup HTTP/1.1\r\nhost: h\r\ncontent-length: {len(KEYS)}\r\n\r\n".encode() + KEYS


@pytest.mark.parametrize(
    ("answer", "request_bytes", "operation"),
    [
        (Hang(), get(f"{STORE}/keys/x"), "lookup"),
        (Hang(), get(f"{STORE}/keys/x", BY_ASGI), "lookup"),
        (Hang(), POST, "batch"),
        (BELOW, get(f"{STORE}/keys/x?min_position={TOKEN}&wait_ms=30000"), "lookup"),
    ],
    ids=["lookup", "lookup by ASGI", "batch", "waits for a position"],
)
async def test_when_a_reader_leaves_the_router_stops_to_work_for_it(
    answer: Answer | Hang, request_bytes: bytes, operation: str
) -> None:
    async with cluster(answer, **LONG) as known, served(known) as (app, port):
        writers = []
        for number in range(4):  # more than connections: some wait in the queue of the node's client
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes)
            writers.append(writer)
            sent = min(number + 1, 2)
            await until(lambda sent=sent: len(known.nodes[0].hops) >= sent)  # type: ignore[misc]
        await until(lambda: app.in_flight == 4, what="the requests to be on their way")
        if isinstance(answer, Hang):
            await until(
                lambda: any(not was_sent(known, request) for request in requests_to_nodes(known)), what="some to wait"
            )
        for writer in writers:
            writer.close()
        await until(lambda: app.in_flight == 0, what="the router to notice")
        assert app.requests.outcomes == {(operation, "words", "cancelled"): 4}
        clients = known.router.clients._clients.values()
        await until(lambda: not any(client._waiting.keys for client in clients), what="what waited to be dropped")
