"""How a router finds out which nodes are not well, asks them last, and trusts them again: over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_cluster import STORE, UNHURRIED, Cluster, cluster, until
from tests.support.cluster.fake_node import RESET, A, B, FakeNode

from understudy_router.cluster.health import Health
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import SystemClock

HEARTBEAT_MS = 500
LONG_MS = 20_000
"""A heartbeat for tests that need no second probe: no stall of a loaded machine lets a node die of it."""


class SkippingClock(SystemClock):
    """A clock that jumps, as if the process had slept: its loop did nothing, and time went on."""

    def __init__(self) -> None:
        self.skipped_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.skipped_ms


@asynccontextmanager
async def beating(known: Cluster, *nodes: FakeNode, heartbeat_ms: int = HEARTBEAT_MS) -> AsyncIterator[None]:
    """All nodes, or these, say that they live, all the time."""

    async def beat() -> None:
        while True:
            for node in nodes or known.nodes:
                await known.beat(node, heartbeat_ms=heartbeat_ms)
            await asyncio.sleep(0.05)

    tasks = Supervisor()
    tasks.start("beat", beat())
    try:
        await until(lambda: known.router.tables.heartbeat_ms(default_ms=0) == heartbeat_ms)
        yield
    finally:
        await tasks.stop()
    assert tasks.dead is None


def health(known: Cluster, node_id: str = "a") -> Health:
    return known.router.tables.health.of(node_id).health


async def by(known: Cluster) -> str:
    """The node that answers a read."""
    reply = await known.get(f"{STORE}/keys/x")
    assert reply.status_code == 200, reply.text
    return str(reply.json()["value"]["by"])


async def report(known: Cluster) -> dict[str, Any]:
    return dict((await known.get("/admin/v1/lag")).json())


async def test_a_node_that_only_this_router_cannot_reach_costs_one_read_however_long_it_beats() -> None:
    async with cluster(RESET, B, **UNHURRIED) as known, beating(known, heartbeat_ms=LONG_MS):
        assert await by(known) == "b"
        assert health(known) is Health.SUSPECT
        assert 'understudy_router_node_health{node="a"} 1.0' in (await known.get("/metrics")).text
        sequence = known.sequence
        await until(lambda: known.sequence > sequence + 20, what="ten heartbeats")
        reads = len(known.nodes[0].hops)
        assert [await by(known) for _ in range(20)] == ["b"] * 20
        assert len(known.nodes[0].hops) == reads


async def test_a_suspect_that_answers_its_probe_is_asked_first_again_without_any_reader_who_tries() -> None:
    async with cluster(RESET, B, **UNHURRIED) as known, beating(known):
        assert await by(known) == "b"
        await until(lambda: known.nodes[0].probes > 0, what="a probe")
        assert health(known) is not Health.OK
        known.nodes[0].answer = A
        await until(lambda: health(known) is Health.OK, what="its recovery")
        assert await by(known) == "a"
        events = [event["event"] for event in (await report(known))["events"]]
        assert events[-2:] == ["suspect", "recovered"]


async def test_a_router_that_slept_buries_only_those_who_died_meanwhile() -> None:
    """What it has heard is older than three heartbeats, through no fault of the nodes: it reads their keys first."""
    clock, bus = SkippingClock(), LocalBus()
    async with cluster(A, B, bus=bus, clock=clock) as known:
        tables = known.router.tables
        async with beating(known):
            await until(lambda: all(node.heartbeat.heartbeat_ms == HEARTBEAT_MS for node in tables.nodes.values()))
        async with beating(known, known.nodes[0]):
            clock.skipped_ms += 60_000
            await until(lambda: "b" not in tables.nodes, what="the dead to be found")
            nodes = {node["node_id"]: node for node in (await report(known))["nodes"]}
            assert (nodes["a"]["live"], nodes["b"]["live"]) == (True, False)
            died = [event["detail"] for event in (await report(known))["events"] if event["event"] == "died"]
            assert [detail.partition(":")[0] for detail in died] == ["b"]
            assert await by(known) == "a"
