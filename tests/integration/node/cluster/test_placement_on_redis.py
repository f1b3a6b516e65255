"""Who assigns, over a real Redis that is emptied, and under holders that are held up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.bus.documents import APPLICATION, eventually, heartbeat
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.cluster.placement_world import assigning

from understudy_node.cluster.context import MemberId
from understudy_node.cluster.leader import Placement, TaskSet
from understudy_shared.base.clock import SystemClock
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip
from understudy_shared.bus.messages import Assignment
from understudy_shared.bus.redis_bus import RedisBus

BEAT_MS = 100

SLOW_BEAT_MS = 2000
"""The interval of node b, so long that it keeps its lease however slow the machine is."""

CLOCK = SystemClock()
TASKS = TaskSet("l1", 2, ["0_0", "0_1"])


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class Node:
    """The part of a node that assigns, with its own connection; it beats when a test says so."""

    def __init__(self, server: RedisServer, node_id: str, *, beat_ms: int = BEAT_MS) -> None:
        self.node_id = node_id
        self.bus = RedisBus(server.url)
        self.gossip = Gossip(self.bus, APPLICATION)
        self.known: Assignment | None = None
        self.placement = Placement(
            self.gossip,
            assigning(lag_refresh_ms=beat_ms, rebalance_delay_ms=0),
            MemberId(node_id, "1"),
            clock=CLOCK,
        )

    async def turn(self, *alive: Node) -> Assignment | None:
        """One heartbeat's worth of assigning, with itself and `alive` living."""
        seen = [node.said() for node in (self, *alive)]
        highest = max((each.heartbeat.term, each.heartbeat.epoch) for each in seen)
        written = await self.placement.turn(
            nodes=seen, tasks=TASKS, highest=highest, known=self.known, began_ms=CLOCK.monotonic_ms()
        )
        if written is not None:
            self.known = written
        return written

    def said(self) -> AgedHeartbeat:
        term, epoch = (0, 0) if self.known is None else self.known.order
        message = heartbeat(self.node_id, heartbeat_ms=BEAT_MS, partitions=2, term=term, epoch=epoch)
        return AgedHeartbeat(message, 0)

    async def wrote(self, *alive: Node) -> Assignment:
        """Take turns until something is written."""

        async def writes() -> bool:
            return await self.turn(*alive) is not None

        await eventually(writes, what=f"an assignment by {self.node_id}")
        assert self.known is not None
        return self.known


@asynccontextmanager
async def two_nodes(server: RedisServer) -> AsyncIterator[tuple[Node, Node]]:
    """Nodes a and b over an empty server; a has assigned, and both follow."""
    server.flush()
    a, b = Node(server, "a"), Node(server, "b", beat_ms=SLOW_BEAT_MS)
    try:
        b.known = await a.wrote(b)
        yield a, b
    finally:
        await a.bus.close()
        await b.bus.close()


async def test_a_holder_that_is_silent_is_replaced_and_does_not_overwrite_when_it_wakes_up(server: RedisServer) -> None:
    async with two_nodes(server) as (a, b):
        first, fence = a.known, a.placement.fence
        assert first is not None
        assert fence is not None
        assert {task.active for task in first.tasks.values()} == {"a", "b"}
        later = await b.wrote()
        assert later.order == (first.term + 1, first.epoch + 1)
        woken = first.model_copy(update={"epoch": 99})
        assert not await a.gossip.write_assignment(woken, fence)
        assert await a.turn(b) is None
        assert a.placement.fence is None
        assert await b.gossip.assignment() == later


async def test_an_emptied_redis_turns_neither_term_nor_epoch_back(server: RedisServer) -> None:
    async with two_nodes(server) as (a, b):
        first = a.known
        assert first is not None
        server.flush()
        for node in (a, b):
            node.placement.bus_came_back()
        again = await a.wrote(b)
        assert again.order > first.order
        assert again.tasks == first.tasks
        assert await a.gossip.assignment() == again


async def test_a_new_node_does_not_assign_over_what_others_follow(server: RedisServer) -> None:
    async with two_nodes(server) as (a, b):
        server.flush()
        stranger = Node(server, "c")
        try:
            assert await stranger.turn(a, b) is None
            assert await stranger.gossip.lease_holder() is None
        finally:
            await stranger.bus.close()
