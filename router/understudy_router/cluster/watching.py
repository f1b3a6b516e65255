"""The updates of the router's tables: from the bus while it is reachable, else from the nodes themselves.

Nothing here ever stops a lookup. A read that fails is tried again, and `bus_lost_why` says why meanwhile. Remembered
documents are used when the bus is away at the start, and never replace newer ones.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection

from understudy_router.cluster.catalogue import Stores, stores_of
from understudy_router.cluster.remembering import RouterMemory, is_from_previous_cluster
from understudy_router.cluster.silent_nodes import MAX_TICK_MS, SilentNodePoller
from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.gossip import BACK_SPREAD_HEARTBEATS, EXPIRY_HEARTBEATS, Gossip, Spoken, digest_of
from understudy_shared.bus.messages import Assignment, Catalogue, Farewell, Heartbeat
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.polling import Polls

log = logging.getLogger(__name__)

HEARTBEAT_MS = 1000
"""The heartbeat interval until a node reports its own."""

MIN_REFRESH_GAP_MS = 200
"""Least time between two reads of the keys: nodes' refusals may request one thousands of times a second."""

QUIET_HEARTBEATS = 1.5
"""Heartbeats of silence from all nodes after which the bus is checked; nodes are dead after three."""

MAX_UNUSABLE = 64
"""Most catalogues that are remembered as unusable."""

MAX_ASKED = 16
"""Most nodes that are asked for one catalogue in a row; nodes of the assignment first."""

COMPLAINT_GAP_MS = 60_000
"""Least time between two log lines about catalogues that cannot be read."""


class Watcher:
    """The task that updates `tables` and `stores`. `bus_lost_why` is the reason why no messages arrive from the bus,
    `None` while they do.
    """

    def __init__(
        self,
        gossip: Gossip,
        tables: Tables,
        nodes: NodeCalls,
        *,
        clock: Clock,
        memory: RouterMemory,
        seeds: Collection[HostInfo] = (),
    ) -> None:
        self.stores: Stores | None = None
        self.bus_lost_why: str | None = "the bus was not reached yet"
        self.last_catalogue_error: str | None = None
        self.has_learned = asyncio.Event()
        """An event that is set once the catalogue, the assignment and a heartbeat are known: from then on reads can be
        routed."""
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
        self._memory = memory
        self._seeds = frozenset(seeds)
        self._recalled = False
        self._unconfirmed: Assignment | None = None
        """The remembered assignment, until a node follows it or something else is known."""
        self._left_behind_ms: float | None = None
        """The time since when all nodes follow assignments before the one known here."""
        self._nodes_moved = False
        self._unusable: dict[str, str] = {}
        """The reasons why catalogues cannot be used, by hash."""
        self._complained_ms = float("-inf")
        self._catalogue_doubted = False
        self._polls = Polls(nodes, tables, heard=self._heard, assigned=self._assigned)
        self.silent_nodes = SilentNodePoller(
            tables,
            self._polls,
            heartbeat_ms=lambda: self.heartbeat_ms,
            seeds=lambda: self._seeds | self._memory.hosts,
            clock=clock,
        )

    def start(self, tasks: Supervisor) -> None:
        """Begin to follow, on the loop that runs now."""
        tasks.start("listen to the bus", self._listen())
        tasks.start("keep the tables", self._keep())
        tasks.start("read the keys again", self._read_when_wanted())
        tasks.start("follow the catalogue", self._follow_catalogue())
        tasks.start("ask nodes for their lag", self._poll_while_lost())
        tasks.start("ask nodes that are silent", self.silent_nodes.run())
        tasks.start("remember", self._memory.keep())

    def refresh(self) -> None:
        """Read the keys soon, because the assignment or the catalogue here is probably old."""
        self._refresh_wanted.set()

    def doubt_catalogue(self) -> None:
        """Ask the nodes for their catalogue, not the bus, because a node serves by another one than this router."""
        self._catalogue_doubted = True
        self._news.set()

    async def stop(self) -> None:
        """Write the remembered documents, after the tasks have ended."""
        self._note_nodes()
        await self._memory.flush()

    @property
    def heartbeat_ms(self) -> int:
        """The shortest heartbeat of the live nodes, in ms."""
        return self._tables.heartbeat_ms(default_ms=HEARTBEAT_MS)

    async def _listen(self) -> None:
        async for heard in self._gossip.listen():
            self._heard_ms = self._clock.monotonic_ms()
            match heard:
                case Lost():
                    self._listens = False
                    self._lost(heard.why)
                case Back():
                    self._listens = True
                    if self._away.is_set():
                        await asyncio.sleep(self._random.uniform(0, BACK_SPREAD_HEARTBEATS) * self.heartbeat_ms / 1000)
                    await self._read_keys()
                case _:
                    self._gossip.handle(heard, self._hear)
            self._news.set()

    def _hear(self, heard: Spoken) -> None:
        match heard:
            case Heartbeat():
                self._heard(heard)
                if heard.node_id in self._tables.nodes:  # its number is bounded there
                    self.silent_nodes.heard_on_bus(heard.node_id, self._clock.monotonic_ms())
            case Farewell():
                self._tables.left(heard, self._clock.monotonic_ms())
            case Assignment():
                self._assigned(heard)

    def _heard(self, heartbeat: Heartbeat, age_ms: int = 0) -> None:
        known = self._tables.nodes.get(heartbeat.node_id)
        if self._tables.heard(heartbeat, age_ms=age_ms, now_ms=self._clock.monotonic_ms()):
            self._nodes_moved |= known is None or known.heartbeat.endpoint != heartbeat.endpoint
            self._news.set()

    def _assigned(self, assignment: Assignment) -> None:
        place = str if self.stores is None else self.stores.place
        if self._tables.assigned(assignment, self._clock.monotonic_ms(), place):
            self._unconfirmed = None
            self._memory.note(assignment)
            self._news.set()

    async def _read_keys(self) -> None:
        """Read all heartbeats and the assignment from the bus."""
        began_ms = self._clock.monotonic_ms()
        try:
            known = self._tables.holders
            seen, assignment = await self._gossip.nodes(known=known), await self._gossip.assignment()
        except BusError as error:
            self._lost(str(error))
            return
        if self._clock.monotonic_ms() - began_ms > self.heartbeat_ms:  # the bus hung, and keys expired in it
            self._tables.reset_heartbeat_ages(self._clock.monotonic_ms())
        if assignment is not None:
            self._assigned(assignment)  # first: it says which nodes are known
        for each in seen:
            self._heard(each.heartbeat, each.age_ms)
            self.silent_nodes.heard_on_bus(each.heartbeat.node_id, began_ms - each.age_ms)
        if self.bus_lost_why is not None and self._listens:
            log.info("the bus is there", extra={"action": "bus-back", "nodes": len(seen)})
            self.bus_lost_why = None
            self._away.clear()
            self._tables.bus_back(self._clock.monotonic_ms())
            self._recalled = True  # the bus has newer documents
            self._memory.forget_nodes()
        await self._agree_with_nodes()
        self._news.set()

    async def _agree_with_nodes(self) -> None:
        """Read the assignment from the nodes when they follow a later one: the bus may have lost its keys."""
        beats = [node.heartbeat for node in self._tables.nodes.values()]
        latest, remembered = self._tables.highest(), self._unconfirmed
        if latest > self._tables.order:
            found = await self._polls.latest_assignment()
            if found is not None:
                self._assigned(found)
        elif remembered is not None and latest == remembered.order:
            self._unconfirmed = None
        elif remembered is not None and is_from_previous_cluster(remembered, beats):
            found = await self._polls.latest_assignment()
            if found is not None and self._unconfirmed is remembered:
                log.warning("the known assignment is of a cluster that is gone", extra={"action": "not-remembered"})
                self._tables.assignment = None
                self._assigned(found)

    def _lost(self, why: str) -> None:
        if not self._away.is_set():
            log.warning("the bus is away: %s; nodes are asked for their lag", why, extra={"action": "bus-lost"})
        self.bus_lost_why = f"the bus is away: {why}"
        self._tables.bus_lost(self._clock.monotonic_ms(), why)
        self._away.set()
        self._refresh_wanted.set()
        self._news.set()

    async def _read_when_wanted(self) -> None:
        """Read the keys when `refresh` is called, and once per heartbeat while the bus is away."""
        while True:
            if self.bus_lost_why is None:
                await self._refresh_wanted.wait()
            self._refresh_wanted.clear()
            await self._read_keys()
            await asyncio.sleep(
                self._jittered_s(MIN_REFRESH_GAP_MS if self.bus_lost_why is None else self.heartbeat_ms)
            )

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
                await self._read_keys()
            elif self.bus_lost_why is None and now_ms - self._heard_ms > self.heartbeat_ms * QUIET_HEARTBEATS:
                # No heartbeat arrives at all: the bus may hang before its connection breaks.
                self._heard_ms = now_ms
                await self._read_keys()
            self._tables.expire(self._clock.monotonic_ms())
            self._note_nodes()
            self._doubt(now_ms)
            if self._unconfirmed is not None and any(node.heartbeat.epoch for node in self._tables.nodes.values()):
                self._refresh_wanted.set()

    def _doubt(self, now_ms: float) -> None:
        """Treat the known assignment as a remembered one when all nodes followed earlier assignments for one expiry.
        They are a new cluster then: the old one lost its disks and Redis its keys.
        """
        known, beats = self._tables.assignment, [node.heartbeat for node in self._tables.nodes.values()]
        if known is None or not is_from_previous_cluster(known, beats):
            self._left_behind_ms = None
        elif self._left_behind_ms is None:
            self._left_behind_ms = now_ms
        elif now_ms - self._left_behind_ms > self.heartbeat_ms * EXPIRY_HEARTBEATS:
            self._unconfirmed = known

    def _note_nodes(self) -> None:
        if self._nodes_moved:
            self._nodes_moved = False
            self._memory.note_nodes(self._tables, self._gossip.application_id)

    def _note_learned(self) -> None:
        if self.stores is not None and self._tables.assignment is not None and self._tables.nodes:
            self.has_learned.set()

    async def _follow_catalogue(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._note_learned()
            digest = self._tables.catalogue_digest
            is_known = self.stores is not None and self.stores.digest == digest
            doubted, self._catalogue_doubted = self._catalogue_doubted and is_known, False
            if digest is None or (is_known and not doubted):
                continue
            found = await self._catalogue_by(digest, from_bus=not doubted)
            if found is None:
                self._catalogue_doubted |= doubted
                await asyncio.sleep(self._jittered_s(MIN_REFRESH_GAP_MS))
                self._news.set()
                continue
            catalogue, self.stores = found
            self.last_catalogue_error = None
            self._note_learned()
            self._memory.note(catalogue)
            log.info(
                "%d stores of lineage %s", len(self.stores.by_name), catalogue.lineage, extra={"action": "catalogue"}
            )
            if doubted:  # refusals may come thousands of times a second: limit how often the catalogue is read for them
                await asyncio.sleep(self._jittered_s(MIN_REFRESH_GAP_MS))
                self._news.set()

    async def _catalogue_by(self, digest: str, *, from_bus: bool = True) -> tuple[Catalogue, Stores] | None:
        """Read the catalogue from the bus, else from a node that serves by it; return `None` when no usable one can be
        read now.
        """
        if digest in self._unusable:
            return None
        why = self.bus_lost_why
        if why is None and not from_bus:
            why = "the nodes serve by another catalogue than the one on the bus"
        elif why is None:
            try:
                found = await self._gossip.catalogue(digest)
                if found is not None:
                    return found, await self._compiled(found, digest)
                why = "it is not on the bus"
            except UnderstudyError as error:  # the bus is away, or this release cannot read those keys
                why = str(error)
        tell = [node for node in self._tables.nodes.values() if node.heartbeat.catalogue == digest]
        tell.sort(key=lambda node: node.heartbeat.node_id not in self._tables.holders)
        for node in tell[:MAX_ASKED]:
            try:
                catalogue = await self._nodes.catalogue(node.heartbeat.endpoint.host_info())
                if digest_of(catalogue) == digest:
                    return catalogue, await self._compiled(catalogue, digest)
                why = f"{node.heartbeat.node_id} serves by another catalogue"
            except UnderstudyError as error:
                why = str(error)
            if digest in self._unusable:
                break
        self._complain(digest, why)
        return None

    def _complain(self, digest: str, why: str) -> None:
        now_ms = self._clock.monotonic_ms()
        if why != self.last_catalogue_error and now_ms - self._complained_ms >= COMPLAINT_GAP_MS:
            self._complained_ms = now_ms
            log.warning("no catalogue %s: %s", digest, why, extra={"action": "no-catalogue"})
        self.last_catalogue_error = why

    async def _compiled(self, catalogue: Catalogue, digest: str) -> Stores:
        """Compile the stores of a catalogue named `digest`. Raises UnderstudyError; the same bytes are not tried
        again.
        """
        try:
            return await asyncio.to_thread(stores_of, catalogue, digest)
        except Exception as error:
            why = str(error) if isinstance(error, UnderstudyError) else repr(error)[:500]
            while len(self._unusable) >= MAX_UNUSABLE:
                del self._unusable[next(iter(self._unusable))]
            self._unusable[digest] = why
            self._gossip.refuse("catalogue", f"catalogue {digest}: {why}")
            raise UnderstudyError(why) from error

    @property
    def unusable(self) -> str | None:
        """The reason why the nodes' catalogue cannot be used, `None` while it can. The last usable one stays in use."""
        digest = self._tables.catalogue_digest
        why = None if digest is None else self._unusable.get(digest)
        return None if why is None else f"catalogue {digest} cannot be used: {why}"

    async def _poll_while_lost(self) -> None:
        while True:
            await self._away.wait()
            await self._recall()
            await self._polls.poll_all(self._seeds | self._memory.hosts)
            await self._agree_with_nodes()
            self._news.set()
            await asyncio.sleep(self._jittered_s(self.heartbeat_ms))

    async def _recall(self) -> None:
        """Use the remembered documents once, when the bus is away at the start."""
        if self._recalled:
            return
        self._recalled = True
        assignment, stores = await self._memory.recall()
        if assignment is not None and self._tables.assigned(assignment, self._clock.monotonic_ms()):
            self._unconfirmed = assignment
        if self.stores is None:
            self.stores = stores

    def _jittered_s(self, ms: float) -> float:
        """Return about `ms`, in seconds: routers that started together must not stay in step."""
        return ms * self._random.uniform(0.8, 1.2) / 1000
