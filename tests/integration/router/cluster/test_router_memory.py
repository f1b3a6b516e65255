"""What a router remembered and what it hears: the first serves while the second is missing, and never beats it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.support.bus.documents import APPLICATION
from tests.support.bus.fragile_bus import FragileBus
from tests.support.cluster.fake_cluster import LIMIT_S, Cluster, catalogue, until
from tests.support.cluster.fake_node import A, B, FakeNode, fake_nodes

from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Assignment, NodeEndpoint
from understudy_shared.cluster.without_bus import Remembered

STORE = "/v1/stores/words"


@asynccontextmanager
async def router_at(
    bus: Bus, remembered: Remembered, nodes: Sequence[FakeNode], *, seed: str = ""
) -> AsyncIterator[Cluster]:
    """A router that may remember, in front of nodes that it has not heard of."""
    settings = RouterSettings(redis="redis://unused", application_id=APPLICATION, seed=seed)
    router = Router(settings, bus, host=HostInfo("127.0.0.1", 8080), clock=SystemClock(), remembered=remembered)
    transport = httpx.ASGITransport(app=create_app(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        router.start()
        try:
            yield Cluster(router, http, Gossip(bus, APPLICATION), nodes, catalogue())
        finally:
            await router.stop()
    assert router.dead is None


def assignment_of(nodes: Sequence[FakeNode], *, order: tuple[int, int]) -> Assignment:
    assignment = Cluster(None, None, None, nodes, catalogue()).assignment(term=order[0], epoch=order[1])  # type: ignore[arg-type]  # what it needs
    members = {node.node_id: NodeEndpoint(host="127.0.0.1", port=node.port) for node in nodes}
    return assignment.model_copy(update={"members": members})


def answers_with(known: Cluster, node: FakeNode, *, order: tuple[int, int]) -> None:
    """Let the node answer routers, as a node that follows that assignment."""
    known.sequence += 1
    heartbeat = known.heartbeat(node, term=order[0], epoch=order[1], heartbeat_ms=100)
    node.documents["/internal/v1/lags"] = heartbeat.encode()
    node.documents["/internal/v1/assignment"] = assignment_of(known.nodes, order=order).encode()
    node.documents["/internal/v1/catalogue"] = known.catalogue.encode()


def order_of(router: Router) -> tuple[int, int]:
    return (0, 0) if router.tables.assignment is None else router.tables.assignment.order


async def on_the_bus(
    known: Cluster, *, order: tuple[int, int], heartbeat_ms: int = 20_000, follows: Mapping[str, int] | None = None
) -> None:
    """All that a bus has of a cluster that follows that assignment, but for the epochs that some nodes follow."""
    await known.gossip.write_catalogue(digest_of(known.catalogue), known.catalogue)
    await known.assign(assignment_of(known.nodes, order=order))
    for node in known.nodes:
        epoch = (follows or {}).get(node.node_id, order[1])
        await known.beat(node, term=order[0], epoch=epoch, heartbeat_ms=heartbeat_ms)


async def test_what_is_remembered_serves_before_anybody_was_heard(tmp_path: Path) -> None:
    async with fake_nodes(A, B) as nodes:
        kept = Remembered(tmp_path, APPLICATION)
        kept.save(assignment_of(nodes, order=(5, 9)))
        kept.save(catalogue())
        async with router_at(FragileBus(away=True), kept, nodes) as known:
            await until(lambda: not known.router.not_ready(), what="readiness")
            assert known.router.tables.nodes == {}
            assert (await known.get(f"{STORE}/keys/x")).json()["value"]["by"] in {"a", "b"}
            choice = (await known.get(f"{STORE}/metadata/x?max_lag=5")).json()["choice"]
            assert {(each["node_id"], each["version"], each["offset_lag"]) for each in choice} == {
                ("a", None, None),
                ("b", None, None),
            }
            assert {each["why"] for each in choice} == {"asked last: nothing was heard of it yet"}
            assert (await known.get("/readyz")).json()["degraded"]


@pytest.mark.parametrize("how", ["the bus", "the nodes"])
async def test_what_is_remembered_of_a_cluster_that_is_gone_gives_way_to_what_nodes_follow(
    how: str, tmp_path: Path
) -> None:
    bus = FragileBus(away=True)
    async with fake_nodes(A, B) as nodes:
        kept = Remembered(tmp_path, APPLICATION)
        kept.save(assignment_of([*nodes, FakeNode("z", port=9)], order=(5, 9)))
        kept.save(catalogue())
        async with router_at(bus, kept, nodes) as known:
            await until(lambda: order_of(known.router) == (5, 9), what="what was remembered")
            for node in nodes:
                answers_with(known, node, order=(1, 1))
            if how == "the bus":
                bus.turn(away=False)
                await on_the_bus(known, order=(1, 1))
            await until(lambda: order_of(known.router) == (1, 1), what="what the nodes follow")
            assert (await known.get(f"{STORE}/keys/x")).status_code == 200


async def test_a_router_that_lived_through_the_loss_of_a_whole_cluster_follows_the_next_one(tmp_path: Path) -> None:
    bus = FragileBus()
    async with fake_nodes(A, B) as nodes, router_at(bus, Remembered(tmp_path, APPLICATION), nodes) as known:
        await on_the_bus(known, order=(5, 9), heartbeat_ms=500)
        await until(lambda: order_of(known.router) == (5, 9), what="the first cluster")
        await bus.put(known.gossip.names.assignment, b"what is left of it")
        for node in nodes:
            answers_with(known, node, order=(1, 1))
            await known.beat(node, term=1, epoch=1, heartbeat_ms=500)
            assert order_of(known.router) == (5, 9), "a node may be late"

        async def beat_on() -> None:
            while order_of(known.router) != (1, 1):
                for node in nodes:
                    await known.beat(node, term=1, epoch=1, heartbeat_ms=500)
                await asyncio.sleep(0.05)

        async with asyncio.timeout(LIMIT_S):
            await beat_on()
        assert (await known.get(f"{STORE}/keys/x")).status_code == 200


async def test_what_is_remembered_stays_while_one_node_follows_it(tmp_path: Path) -> None:
    bus = FragileBus(away=True)
    async with fake_nodes(A, B) as nodes:
        kept = Remembered(tmp_path, APPLICATION)
        kept.save(assignment_of(nodes, order=(5, 9)))
        kept.save(catalogue())
        async with router_at(bus, kept, nodes) as known:
            await until(lambda: order_of(known.router) == (5, 9), what="what was remembered")
            answers_with(known, nodes[0], order=(5, 9))
            await until(lambda: "a" in known.router.tables.nodes, what="a word of the first")
            answers_with(known, nodes[1], order=(5, 8))
            await until(lambda: "b" in known.router.tables.nodes, what="a word of the second")
            bus.turn(away=False)
            await on_the_bus(known, order=(5, 8), follows={"a": 9})
            await until(lambda: known.router.degraded is None, what="the bus")
            await known.beat(nodes[1], term=5, epoch=8, end_version=20)
            await until(lambda: known.router.tables.end_version == 20, what="the next word of the second")
            assert order_of(known.router) == (5, 9)
            asked = [path for path, _ in nodes[1].requests if path.endswith("/assignment")]
            assert not asked, "it was asked for an assignment older than the one that is followed"


async def test_an_assignment_that_nodes_follow_and_the_bus_lost_is_asked_from_a_node(tmp_path: Path) -> None:
    bus = FragileBus()
    async with fake_nodes(A, B) as nodes, router_at(bus, Remembered(tmp_path, APPLICATION), nodes) as known:
        await until(lambda: known.router.degraded is None, what="the bus")
        for node in nodes:
            answers_with(known, node, order=(3, 4))
            await known.beat(node, term=3, epoch=4)
        known.router.watcher.refresh()
        await until(lambda: not known.router.not_ready(), what="readiness, though the bus has neither document")
        assert order_of(known.router) == (3, 4)
