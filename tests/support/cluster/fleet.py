"""A router of many applications over an in-process bus and a node made by hand, which answers for all of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.support.bus.documents import heartbeat
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_cluster import PATIENT, catalogue, until
from tests.support.cluster.fake_node import FakeNode, fake_nodes, found

from understudy_router.fleet import RouterFleet, RouterProcess
from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, NodeEndpoint
from understudy_shared.fleet.dispatching import Lifespan
from understudy_shared.questions.lookup.hop import HopGroup, HopKey, HopOutcome
from understudy_shared.server.connection_guard import ConnectionGuard

HOST = HostInfo("127.0.0.1", 8080)


def by_store(group: HopGroup, _key: HopKey) -> HopOutcome:
    """Answer with the name of the store."""
    return found(group.store)


async def speak(bus: Bus, application_id: str, node: FakeNode, stores: Sequence[str], *, sequence: int = 1) -> None:
    """Say on the bus all that a node with one application of these stores says."""
    gossip = Gossip(bus, application_id)
    one = catalogue()
    entries = [one.stores[0].model_copy(update={"store": store, "operator_id": at}) for at, store in enumerate(stores)]
    known = one.model_copy(update={"application_id": application_id, "stores": entries})
    await gossip.write_catalogue(digest_of(known), known)
    tasks = {f"{at}_0": AssignedTask(active=node.node_id) for at in range(len(stores))}
    assignment = Assignment(
        application_id=application_id,
        term=1,
        epoch=1,
        written_by=node.node_id,
        lineage="l1",
        partitions=1,
        tasks=tasks,
    )
    fence = await gossip.take_lease("assignor", above=0, expiry_ms=60_000)
    if fence is not None:
        await gossip.write_assignment(assignment, fence)
    beat = heartbeat(
        node.node_id,
        sequence=sequence,
        application_id=application_id,
        endpoint=NodeEndpoint(host="127.0.0.1", port=node.port),
        catalogue=digest_of(known),
        partitions=1,
        applied=Applied(version=7, time_lag_ms=0),
    )
    assert await gossip.beat(beat)


@dataclass(slots=True)
class FleetWorld:
    """A running fleet, its readers' client, and the node behind it."""

    fleet: RouterFleet
    http: httpx.AsyncClient
    bus: Bus
    node: FakeNode
    stores: dict[str, Sequence[str]] = field(default_factory=dict)

    async def add(self, application_id: str, *stores: str) -> None:
        """Let the node have one more application."""
        self.stores[application_id] = stores
        await speak(self.bus, application_id, self.node, stores)

    async def get(self, target: str) -> httpx.Response:
        return await self.http.get(target)


@asynccontextmanager
async def fleet_of(
    applications: Mapping[str, Sequence[str]],
    *,
    patterns: str = "*",
    bus: Bus | None = None,
    clock: Clock | None = None,
    learns_within_ms: int = 10_000,
    **settings: Any,
) -> AsyncIterator[FleetWorld]:
    """A fleet whose node has these applications, each with its stores, before it starts."""
    own_bus = bus or LocalBus()
    folder = tempfile.TemporaryDirectory()
    options = {**PATIENT, "shutdown_delay_ms": 0, "data_dir": folder.name, **settings}
    made = RouterSettings(redis="redis://unused", applications=patterns, **options)
    async with fake_nodes(by_store) as (node,), contextlib.AsyncExitStack() as stack:
        stack.callback(folder.cleanup)
        for application_id, stores in applications.items():
            await speak(own_bus, application_id, node, stores)
        clock = clock or SystemClock()
        shared = RouterProcess(
            made, own_bus, Access(), ConnectionGuard(), HOST, clock=clock, learns_within_ms=learns_within_ms
        )
        fleet = RouterFleet(made, shared)
        lifespan = Lifespan(fleet.app, "fleet")
        await lifespan.start()
        transport = httpx.ASGITransport(app=fleet.app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
                yield FleetWorld(fleet, http, own_bus, node, dict(applications))
        finally:
            await lifespan.stop()
        assert [held.dead for held in fleet.applications.values() if held.dead] == []


@asynccontextmanager
async def single(bus: Bus, application_id: str) -> AsyncIterator[httpx.AsyncClient]:
    """A router of one application on a bus, which stays open."""
    settings = RouterSettings(redis="redis://unused", application_id=application_id, **PATIENT)
    router = Router(settings, bus, host=HOST, clock=SystemClock())
    transport = httpx.ASGITransport(app=create_app(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        router.start()
        try:
            await until(lambda: not router.not_ready() and bool(router.tables.nodes))
            yield http
        finally:
            await router.stop()
