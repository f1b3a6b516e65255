"""The updates of the router's tables: from the bus while it is reachable, else from the nodes themselves.

Nothing here ever stops a lookup. A read that fails is tried again, and `bus_lost_why` says why meanwhile. Remembered
documents are used when the bus is away at the start, and never replace newer ones.
"""

from __future__ import annotations

import asyncio
import logging

from understudy_router.cluster.agreement import Agreement
from understudy_router.cluster.catalogue_follower import CatalogueFollower
from understudy_router.cluster.remembering import RouterMemory
from understudy_router.cluster.silent_nodes import MAX_TICK_MS, SilentNodePoller
from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock
from understudy_shared.base.supervise import Supervisor
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip, Spoken
from understudy_shared.bus.messages import Assignment, Farewell, Heartbeat
from understudy_shared.cluster.follower import ClusterFollower, jittered_s
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.polling import Polls

log = logging.getLogger(__name__)

HEARTBEAT_MS = 1000
"""The heartbeat interval until a node reports its own."""

MIN_REFRESH_GAP_MS = 200
"""Least time between two reads of the keys: nodes' refusals may request one thousands of times a second."""

QUIET_HEARTBEATS = 1.5
"""Heartbeats of silence from all nodes after which the bus is checked; nodes are dead after three."""


class Watcher:
    """The tasks that update `tables` and the `catalogue`: the `ClusterDelegate` of a router.
    `bus_lost_why` is the reason why no messages arrive from the bus, `None` while they do.
    """

    def __init__(self, gossip: Gossip, tables: Tables, nodes: NodeCalls, memory: RouterMemory, *, clock: Clock) -> None:
        self.bus_lost_why: str | None = "the bus was not reached yet"
        self.catalogue = CatalogueFollower(
            gossip, tables, nodes, memory, bus_lost_why=lambda: self.bus_lost_why, clock=clock
        )
        self.cluster = ClusterFollower(gossip, tables, self, heartbeat_ms=lambda: self.heartbeat_ms, clock=clock)
        self._gossip = gossip
        self._tables = tables
        self._clock = clock
        self._memory = memory
        self._heard_ms = clock.monotonic_ms()
        self._refresh_wanted = asyncio.Event()
        self._nodes_moved = False
        self._agreement = Agreement(tables, memory, self.catalogue, clock=clock)
        self._polls = Polls(nodes, tables, heard=self._heard, assigned=self._agreement.take)
        self.silent_nodes = SilentNodePoller(
            tables,
            self._polls,
            heartbeat_ms=lambda: self.heartbeat_ms,
            seeds=lambda: memory.hosts,
            clock=clock,
        )

    def start(self, tasks: Supervisor) -> None:
        """Begin to follow, on the loop that runs now."""
        tasks.start("listen to the bus", self.cluster.run())
        tasks.start("keep the tables", self._keep())
        tasks.start("read the keys again", self._read_when_wanted())
        tasks.start("agree with the nodes", self._agreement.run(self._polls))
        tasks.start("follow the catalogue", self.catalogue.run())
        tasks.start("ask nodes for their lag", self.cluster.go_on_without_the_bus())
        tasks.start("ask nodes that are silent", self.silent_nodes.run())
        tasks.start("remember", self._memory.keep())

    def refresh(self) -> None:
        """Read the keys soon, because the assignment or the catalogue here is probably old."""
        self._refresh_wanted.set()

    async def stop(self) -> None:
        """Write the remembered documents, after the tasks have ended."""
        self._note_nodes()
        await self._memory.flush()

    @property
    def heartbeat_ms(self) -> int:
        """The shortest heartbeat of the live nodes, in ms."""
        return self._tables.heartbeat_ms(default_ms=HEARTBEAT_MS)

    def hear(self, heard: Spoken) -> None:
        """Take in a message of the bus."""
        self._heard_ms = self._clock.monotonic_ms()
        match heard:
            case Heartbeat():
                self._heard(heard)
                if heard.node_id in self._tables.nodes:  # its number is bounded there
                    self.silent_nodes.heard_on_bus(heard.node_id, self._heard_ms)
            case Farewell():
                self._tables.left(heard, self._heard_ms)
                self.catalogue.news.set()
            case Assignment():
                self._agreement.take(heard)

    def take_nodes(self, seen: list[AgedHeartbeat]) -> None:
        """Wait for the assignment: it says which nodes are known."""

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        """Add what the keys of the bus say. A node without a key stays: it may answer although the bus does not carry
        it.
        """
        now_ms = self._clock.monotonic_ms()
        if assignment is not None:
            self._agreement.take(assignment)  # first: it says which nodes are known
        for each in seen:
            self._heard(each.heartbeat, each.age_ms)
            self.silent_nodes.heard_on_bus(each.heartbeat.node_id, now_ms - each.age_ms)
        if self.bus_lost_why is not None and self.cluster.is_subscribed:
            log.info("the bus is there", extra={"action": "bus-back", "nodes": len(seen)})
            self.bus_lost_why, self._heard_ms = None, now_ms
            self._tables.bus_back(now_ms)
            self._memory.bus_is_there()
        self._agreement.wanted.set()
        self.catalogue.news.set()

    def bus_lost(self, why: str) -> None:
        """Note that the bus is away."""
        if not self.cluster.is_away:
            log.warning("the bus is away: %s; nodes are asked for their lag", why, extra={"action": "bus-lost"})
        self.bus_lost_why = f"the bus is away: {why}"
        self._tables.bus_lost(self._clock.monotonic_ms(), why)
        self._refresh_wanted.set()
        self.catalogue.news.set()

    async def ask_others(self) -> None:
        """Use what is remembered, and ask all nodes for their lag and for a later assignment."""
        assignment, stores = await self._memory.recall()
        if assignment is not None:
            self._agreement.take_remembered(assignment)
        self.catalogue.stores = self.catalogue.stores or stores
        await self._polls.poll_all(self._memory.hosts)
        self._agreement.wanted.set()
        self.catalogue.news.set()

    def _heard(self, heartbeat: Heartbeat, age_ms: int = 0) -> None:
        known = self._tables.nodes.get(heartbeat.node_id)
        if self._tables.heard(heartbeat, age_ms=age_ms, now_ms=self._clock.monotonic_ms()):
            self._nodes_moved |= known is None or known.heartbeat.endpoint != heartbeat.endpoint
            if known is None or not self._tables.has_catalogue_digest:  # else a thousand a second bring no news
                self.catalogue.news.set()

    async def _read_when_wanted(self) -> None:
        """Read the keys when `refresh` is called, and once per heartbeat while the bus is away."""
        while True:
            if self.bus_lost_why is None:
                await self._refresh_wanted.wait()
            self._refresh_wanted.clear()
            await self.cluster.read()
            await asyncio.sleep(jittered_s(MIN_REFRESH_GAP_MS if self.bus_lost_why is None else self.heartbeat_ms))

    async def _keep(self) -> None:
        """Declare silent nodes dead that did not answer. First read the keys again when the bus or this process may
        have caused the silence.
        """
        while True:
            tick_ms = min(MAX_TICK_MS, self.heartbeat_ms / 4)
            began_ms = self._clock.monotonic_ms()
            await asyncio.sleep(tick_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            paused_ms = now_ms - began_ms - tick_ms  # of the sleep alone: reading the keys may wait for Redis
            if paused_ms > self.heartbeat_ms:
                log.warning("this process paused for %d ms", paused_ms, extra={"action": "paused"})
                await self.cluster.read()
            elif self.bus_lost_why is None and now_ms - self._heard_ms > self.heartbeat_ms * QUIET_HEARTBEATS:
                # No heartbeat arrives at all: the bus may hang before its connection breaks.
                self._heard_ms = now_ms
                await self.cluster.read()
            self._tables.expire(self._clock.monotonic_ms())
            self._note_nodes()
            self._agreement.doubt(now_ms, self.heartbeat_ms)
            if self._agreement.needs_keys:
                self._refresh_wanted.set()

    def _note_nodes(self) -> None:
        if self._nodes_moved:
            self._nodes_moved = False
            self._memory.note_nodes(self._tables, self._gossip.application_id)
