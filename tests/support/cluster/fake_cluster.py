"""A router over an in-process bus and nodes made by hand: everything of a routed lookup but Spark's state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.support.bus.documents import APPLICATION, heartbeat
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_node import Answer, FakeNode, Hang, Raw, fake_nodes

from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Catalogue, CatalogueStore, NodeEndpoint

LIMIT_S = 60.0
STORE = "/v1/stores/words"
PATIENT: dict[str, Any] = {"hop_timeout_ms": 5_000, "deadline_ms": 15_000}
"""For tests of something else than time: a machine that stands still for a second fails no hop."""
NO_BUDGET: dict[str, Any] = {"retry_percent": 0, "retry_per_s": 0}
LARGE_BUDGET: dict[str, Any] = {"retry_per_s": 10_000}
"""Earns what a test needs within a few milliseconds."""
UNHURRIED: dict[str, Any] = {"hedge_after_ms": 0, "suspect_after_ms": 60_000}
"""No answer counts as slow: on a busy machine no hedge is sent, and no node becomes suspect."""

KEY_SCHEMA = '{"type":"struct","fields":[{"name":"word","type":"string","nullable":true,"metadata":{}}]}'


def catalogue(*, lineage: str = "l1", partitions: int = 1, store: str = "words") -> Catalogue:
    """One store, keyed by a text."""
    words = CatalogueStore(
        store=store,
        operator_id=0,
        operator="stateStoreSave",
        key_schema=KEY_SCHEMA,
        key_names=["word"],
        partitions=partitions,
        value=[{"name": "count", "type": "bigint", "nullable": False}],
    )
    return Catalogue(application_id=APPLICATION, lineage=lineage, partitions=partitions, stores=[words])


@dataclass(slots=True)
class Cluster:
    """A running router, and what it hears on the bus."""

    router: Router
    http: httpx.AsyncClient
    gossip: Gossip
    nodes: Sequence[FakeNode]
    catalogue: Catalogue
    sequence: int = 1

    async def get(self, target: str) -> httpx.Response:
        return await self.http.get(target)

    async def beat(self, node: FakeNode, **fields: Any) -> None:
        """The node says that it lives and is in step."""
        self.sequence += 1
        assert await self.gossip.beat(self.heartbeat(node, **fields))

    def heartbeat(self, node: FakeNode, **fields: Any) -> Any:
        values = {
            "endpoint": NodeEndpoint(host="127.0.0.1", port=node.port),
            "catalogue": digest_of(self.catalogue),
            "partitions": self.catalogue.partitions,
            "lineage": self.catalogue.lineage,
            "applied": Applied(version=7, time_lag_ms=0),
            **fields,
        }
        return heartbeat(node.node_id, incarnation=f"i-{node.node_id}", sequence=self.sequence, **values)

    def assignment(self, *, epoch: int = 1, term: int = 1, order: Sequence[FakeNode] | None = None) -> Assignment:
        """Every task to all nodes, the first one active."""
        holders = [node.node_id for node in (self.nodes if order is None else order)]
        tasks = {
            f"0_{partition}": AssignedTask(active=holders[0], standbys=tuple(holders[1:]))
            for partition in range(self.catalogue.partitions)
        }
        return Assignment(
            application_id=APPLICATION,
            term=term,
            epoch=epoch,
            written_by=holders[0],
            lineage=self.catalogue.lineage,
            partitions=self.catalogue.partitions,
            tasks=tasks,
        )

    async def assign(self, assignment: Assignment) -> None:
        """Write an assignment as a lease holder would."""
        fence = await self.gossip.take_lease("assignor", above=assignment.term - 1, expiry_ms=60_000)
        assert fence is not None
        assert await self.gossip.write_assignment(assignment, fence)
        await self.gossip.give_lease_up(fence)


@asynccontextmanager
async def routed(
    bus: Bus, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
    """A router on `bus`, and a client of its HTTP."""
    router_settings = RouterSettings(redis="redis://unused", application_id=APPLICATION, **{**PATIENT, **settings})
    router = Router(router_settings, bus, host=HostInfo("127.0.0.1", 8080), clock=clock or SystemClock())
    transport = httpx.ASGITransport(app=create_app(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        router.start()
        try:
            yield router, http
        finally:
            await router.stop()
    assert router.dead is None


@asynccontextmanager
async def cluster(
    *answers: Answer | Raw | Hang,
    partitions: int = 1,
    bus: Bus | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Nodes that answer so, in the order in which they are assigned; the router knows of all of them."""
    own_bus = bus or LocalBus()
    async with fake_nodes(*answers) as nodes, routed(own_bus, clock=clock, **settings) as (router, http):
        known = Cluster(router, http, Gossip(own_bus, APPLICATION), nodes, catalogue(partitions=partitions))
        if bus is None:  # else the router might ask a node for the catalogue, too, before it knows the bus
            await until(lambda: router.watcher.bus_lost_why is None, what="the router's subscription")
        await known.gossip.write_catalogue(digest_of(known.catalogue), known.catalogue)
        if nodes:
            await known.assign(known.assignment())
        for node in nodes:
            await known.beat(node)
        await until(lambda: not nodes or (not router.not_ready() and len(router.tables.nodes) == len(nodes)))
        yield known


async def until(condition: Callable[[], object], *, what: str = "the condition") -> None:
    """Return when it holds; fail after a limit."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, f"waited {LIMIT_S:g} s in vain for {what}"
        await asyncio.sleep(0.002)
