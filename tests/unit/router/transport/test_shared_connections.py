"""Connections to a node that several applications of one process share, and the time that is kept for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tests.support.cluster.fake_cluster import catalogue, until
from tests.support.cluster.fake_node import FakeNode, Hang, fake_nodes, found

from understudy_router.cluster.catalogue import stores_of
from understudy_router.transport.client_context import ClientContext, HopReports, IdleConnections
from understudy_router.transport.node_client import MAX_CONNECTIONS
from understudy_router.transport.node_clients import NodeClients
from understudy_router.transport.node_requests import Delay, NodeRequest, Outcomes, Patience, Reply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.wire import HopFailure
from understudy_shared.questions.lookup.hop import HopKey, HopReply
from understudy_shared.reads.bounds import NO_BOUND

ROUTE = stores_of(catalogue(), "d1").get("words")


class Unheard(HopReports):
    """A listener of hops that keeps nothing."""

    def __init__(self) -> None: ...

    def known(self) -> tuple[int, int, int]:
        return (7, 1, 1)

    def answered(self, node_id: str, reply: HopReply, now_ms: float, took_ms: float) -> None:
        pass

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        pass

    def silent(self, node_id: str, for_ms: float) -> None:
        pass


class Application:
    """The clients of one application, and its way to ask."""

    def __init__(self, name: str, idle: IdleConnections) -> None:
        self.clock = SystemClock()
        identity = ClusterIdentity(None, "").within(name)
        context = ClientContext(name, Unheard(), Patience(hedge_after_ms=0), self.clock, identity, idle)
        self.clients = NodeClients(context, suspect_after_ms=60_000, hop_timeout_ms=60_000, allowance=lambda _: 0.0)

    def ask(self, node: FakeNode, *, for_ms: float = 60_000) -> asyncio.Future[Outcomes]:
        """Ask for one key; the future gets its outcome."""
        outcomes: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Reply) -> None:
            if not isinstance(reply, Delay):
                outcomes.set_result(reply)

        now_ms = self.clock.monotonic_ms()
        request = NodeRequest(ROUTE, NO_BOUND, [HopKey(0, b"r")], on_reply, now_ms, now_ms + for_ms)
        self.clients.to(node.node_id, HostInfo("127.0.0.1", node.port)).submit(request)
        return outcomes


def _has_heard(node: FakeNode, hops: int) -> bool:
    return len(node.hops) == hops


@asynccontextmanager
async def applications(*names: str) -> AsyncIterator[list[Application]]:
    idle = IdleConnections()
    made = [Application(name, idle) for name in names]
    try:
        yield made
    finally:
        for each in made:
            await each.clients.close()
    assert repr(idle) == "IdleConnections(0 to 0 nodes)"


async def test_applications_that_ask_in_turn_use_one_connection() -> None:
    async with fake_nodes(lambda *_: found("v")) as (node,), applications("a", "b", "c") as known:
        for _ in range(2):
            for each in known:
                assert not isinstance(await each.ask(node), HopFailure)
        assert [hop.application_id for hop in node.hops] == ["a", "b", "c"] * 2
        assert node.accepted == 1


async def test_an_application_whose_hops_hang_takes_no_connection_from_another() -> None:
    async with fake_nodes(Hang()) as (node,), applications("slow", "quick") as (slow, quick):
        for number in range(1, MAX_CONNECTIONS + 1):  # each hop is under way before the next request, or they share one
            slow.ask(node)
            await until(partial(_has_heard, node, number))
        waiting = slow.ask(node)
        await until(lambda: node.accepted == MAX_CONNECTIONS)
        node.answer = lambda *_: found("v")
        assert not isinstance(await quick.ask(node), HopFailure)
        assert not waiting.done(), "an application has so many hops in flight, and no more"
