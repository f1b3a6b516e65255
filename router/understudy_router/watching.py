"""Keeps what the router knows up to date: the bus while it is there, the nodes themselves while it is away.

Rule: nothing here ever stops a lookup. What cannot be learned now is tried again, and `degraded` says so meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random

from understudy_router.catalogue import Stores, stores_of
from understudy_router.node_calls import NodeCalls
from understudy_router.tables import Tables
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.clock import Clock
from understudy_shared.errors import UnderstudyError
from understudy_shared.messages import Assignment, Farewell, Heartbeat
from understudy_shared.supervise import Supervisor
from understudy_shared.words import HostInfo

log = logging.getLogger(__name__)

HEARTBEAT_MS = 1000
"""While no node has told its own."""

MIN_REFRESH_GAP_MS = 200
"""Refusals of nodes may ask for a new look at the keys thousands of times a second; that many are made."""

QUIET_HEARTBEATS = 1.5
"""Silence of everybody after which the bus is asked whether it is there; nodes are dead after three."""

MAX_TICK_MS = 250
"""Between two looks for nodes that died."""

MAX_POLLS = 16
"""Nodes asked for their lag at the same time."""


class Watcher:
    """Feeds `tables` and `stores`. `degraded` is why the bus is not heard, None while it is."""

    def __init__(self, gossip: Gossip, tables: Tables, nodes: NodeCalls, *, clock: Clock) -> None:
        self.stores: Stores | None = None
        self.degraded: str | None = "the bus was not reached yet"
        self.last_catalogue_error: str | None = None
        self._gossip = gossip
        self._tables = tables
        self._nodes = nodes
        self._clock = clock
        self._listens = False
        self._heard_ms = clock.monotonic_ms()
        self._random = random.Random()  # noqa: S311  # jitter
        self._refresh_wanted = asyncio.Event()
        self._news = asyncio.Event()
        self._away = asyncio.Event()
        self._polls = asyncio.Semaphore(MAX_POLLS)

    def start(self, tasks: Supervisor) -> None:
        """Begin to follow, on the loop that runs now."""
        tasks.start("listen to the bus", self._listen())
        tasks.start("keep the tables", self._keep())
        tasks.start("read the keys again", self._read_when_wanted())
        tasks.start("follow the catalogue", self._follow_catalogue())
        tasks.start("ask nodes for their lag", self._poll_while_lost())

    def refresh(self) -> None:
        """Something shows that the assignment or the catalogue here is old: read the keys soon."""
        self._refresh_wanted.set()

    @property
    def heartbeat_ms(self) -> int:
        """Of the nodes."""
        return min((node.heartbeat.heartbeat_ms for node in self._tables.nodes.values()), default=HEARTBEAT_MS)

    async def _listen(self) -> None:
        async for heard in self._gossip.listen():
            now_ms = self._heard_ms = self._clock.monotonic_ms()
            match heard:
                case Heartbeat():
                    self._tables.heard(heard, age_ms=0, now_ms=now_ms)
                case Farewell():
                    self._tables.left(heard, now_ms)
                case Assignment():
                    self._tables.assigned(heard, now_ms)
                case Lost():
                    self._listens = False
                    self._lost(heard.why)
                case Back():
                    self._listens = True
                    await self._read_keys()
            self._news.set()

    async def _read_keys(self) -> None:
        """What the keys say now is where to go on from."""
        try:
            seen, assignment = await self._gossip.nodes(), await self._gossip.assignment()
        except BusError as error:
            self._lost(str(error))
            return
        now_ms = self._clock.monotonic_ms()
        for each in seen:
            self._tables.heard(each.heartbeat, age_ms=each.age_ms, now_ms=now_ms)
        if assignment is not None:
            self._tables.assigned(assignment, now_ms)
        if self.degraded is not None and self._listens:
            log.info("the bus is there", extra={"action": "bus-back", "nodes": len(seen)})
            self.degraded = None
            self._away.clear()
            self._tables.bus_back(now_ms)
        self._news.set()

    def _lost(self, why: str) -> None:
        if not self._away.is_set():
            log.warning("the bus is away: %s; nodes are asked for their lag", why, extra={"action": "bus-lost"})
        self.degraded = f"the bus is away: {why}"
        self._tables.bus_lost(self._clock.monotonic_ms(), why)
        self._away.set()
        self._refresh_wanted.set()
        self._news.set()

    async def _read_when_wanted(self) -> None:
        """Read the keys when something shows that they changed; once per heartbeat while nothing is heard."""
        while True:
            if self.degraded is None:
                await self._refresh_wanted.wait()
            self._refresh_wanted.clear()
            await self._read_keys()
            await asyncio.sleep(self._jittered_s(MIN_REFRESH_GAP_MS if self.degraded is None else self.heartbeat_ms))

    async def _keep(self) -> None:
        """Let silent nodes die; but first read the keys when silence may be the bus's, or this process's, own fault."""
        last_ms = self._clock.monotonic_ms()
        while True:
            tick_ms = min(MAX_TICK_MS, self.heartbeat_ms / 4)
            await asyncio.sleep(tick_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            paused_ms, last_ms = now_ms - last_ms - tick_ms, now_ms
            if paused_ms > self.heartbeat_ms:
                log.warning("this process paused for %d ms", paused_ms, extra={"action": "paused"})
                await self._read_keys()
            elif self.degraded is None and now_ms - self._heard_ms > self.heartbeat_ms * QUIET_HEARTBEATS:
                # Nobody says anything: a bus that hangs looks like that before its connection breaks.
                self._heard_ms = now_ms
                await self._read_keys()
            self._tables.expire(self._clock.monotonic_ms())

    async def _follow_catalogue(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            digest = self._tables.catalogue_digest
            if digest is None or (self.stores is not None and self.stores.digest == digest):
                continue
            stores = await self._stores_by(digest)
            if stores is None:
                await asyncio.sleep(self._jittered_s(MIN_REFRESH_GAP_MS))
                self._news.set()
                continue
            self.stores = stores
            self.last_catalogue_error = None
            log.info("%d stores of lineage %s", len(stores.by_name), stores.lineage, extra={"action": "catalogue"})

    async def _stores_by(self, digest: str) -> Stores | None:
        """From the bus, else from a node that serves by it; None when nobody gives one now that can be used."""
        try:
            found = await self._gossip.catalogue(digest)
            if found is not None:
                return stores_of(found, digest)
            why = "it is not on the bus"
        except UnderstudyError as error:  # the bus is away, or this release cannot read those keys
            why = str(error)
        for node in list(self._tables.nodes.values()):
            if node.heartbeat.catalogue != digest:
                continue
            try:
                catalogue = await self._nodes.catalogue(node.heartbeat.endpoint.host_info())
                if digest_of(catalogue) == digest:
                    return stores_of(catalogue, digest)
                why = f"{node.heartbeat.node_id} serves by another"
            except UnderstudyError as error:
                why = str(error)
        if why != self.last_catalogue_error:
            log.warning("no catalogue %s: %s", digest, why, extra={"action": "no-catalogue"})
        self.last_catalogue_error = why
        return None

    async def _poll_while_lost(self) -> None:
        while True:
            await self._away.wait()
            # Those that died lately too: silence on a bus that was about to go says little.
            beats = [node.heartbeat for node in self._tables.nodes.values()]
            beats += [node.heartbeat for node in self._tables.dead.values()]
            await asyncio.gather(*(self._poll(beat.endpoint.host_info()) for beat in beats))
            self._news.set()
            await asyncio.sleep(self._jittered_s(self.heartbeat_ms))

    async def _poll(self, host: HostInfo) -> None:
        """A node's heartbeat, by its own word; and its assignment, if that is later than the one known here."""
        async with self._polls:
            try:
                heartbeat = await self._nodes.heartbeat(host)
                self._tables.heard(heartbeat, age_ms=0, now_ms=self._clock.monotonic_ms())
                known = self._tables.assignment
                if known is None or (heartbeat.term, heartbeat.epoch) > known.order:
                    assignment = await self._nodes.assignment(host)
                    self._tables.assigned(assignment, self._clock.monotonic_ms())
            except UnderstudyError as error:
                log.debug("%s", error, extra={"action": "poll-failed"})

    def _jittered_s(self, ms: float) -> float:
        """About so long: routers that started together do not stay in step."""
        return ms * self._random.uniform(0.8, 1.2) / 1000
