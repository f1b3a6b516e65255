"""The updates of the router's tables, from the bus while it is reachable, else from the nodes themselves; and the
documents on disk for a start without the bus.

Nothing here ever stops a lookup. A failed read of the bus is retried, and `bus_lost_why` says why meanwhile. Remembered
documents (the assignment, the nodes' addresses, the catalogue) are used when Redis is away at the start, and never
replace newer ones. No heartbeats are kept: a node's old position is worthless after a restart, so its lag is unknown.

The bus may have lost its keys, and remembered documents may be of a cluster that is gone. Then the nodes know better.

A node that is silent on Redis is dropped only after it did not answer a poll: one small request per silent node and
heartbeat, a bounded number at a time. While the bus is away, all nodes are polled once per heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping

from pydantic import Field

from understudy_router.cluster.catalogue import CatalogueFollower, CatalogueStores, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import Clock
from understudy_shared.base.plausible import highest_plausible
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat, Gossip, Spoken, digest_of
from understudy_shared.bus.messages import Assignment, Catalogue, Farewell, Heartbeat, Message, NodeEndpoint
from understudy_shared.cluster.follower import ClusterFollower, Polls, SilentNodes, jittered_s
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.without_bus import Memory, Remembered

log = logging.getLogger(__name__)

MAX_NODES = 10_000
"""Most nodes that are remembered: ten times the largest planned cluster."""


class KnownNodes(Message):
    """The addresses of an application's nodes, by node id."""

    nodes: dict[str, NodeEndpoint] = Field(max_length=MAX_NODES)


class RouterMemory(Memory):
    """The memory of one router. `hosts` are the seeds, and after `recall` the remembered nodes as well."""

    def __init__(self, remembered: Remembered | None, seeds: Collection[HostInfo] = ()) -> None:
        super().__init__(remembered)
        self.hosts = self._seeds = frozenset(seeds)
        self._nodes: dict[str, NodeEndpoint] = {}
        self._is_recalled = False

    def note_nodes(self, tables: Tables, application_id: str) -> None:
        """Keep the addresses of live nodes, of nodes that died lately, and of remembered nodes without a heartbeat."""
        known = {**self._nodes}
        known |= {node_id: dead.heartbeat.endpoint for node_id, dead in tables.dead.items()}
        known |= {node_id: node.heartbeat.endpoint for node_id, node in tables.nodes.items()}
        strangers_first = sorted(known.items(), key=lambda each: each[0] in tables.holders)
        newest = dict(strangers_first[-MAX_NODES:])
        self.note(KnownNodes(application_id=application_id, nodes=newest))

    async def recall(self) -> tuple[Assignment | None, CatalogueStores | None]:
        """Read the remembered documents that can be used, once, unless the bus was there: it has newer ones. A
        catalogue of another lineage than the assignment's is dropped.
        """
        if self._is_recalled:
            return None, None
        self._is_recalled = True
        assignment, catalogue = await self.load(Assignment), await self.load(Catalogue)
        nodes = await self.load(KnownNodes)
        if nodes is not None:
            self._nodes = dict(nodes.nodes)
            self.hosts |= {endpoint.host_info() for endpoint in nodes.nodes.values()}
        if catalogue is not None and assignment is not None and catalogue.lineage != assignment.lineage:
            catalogue = None
        stores = None if catalogue is None else _stores(catalogue)
        log.info(
            "remembered: %s, %s stores, %d nodes",
            "no assignment" if assignment is None else "assignment {}.{}".format(*assignment.order),
            "no" if stores is None else len(stores.by_name),
            len(self._nodes),
            extra={"action": "recalled"},
        )
        return assignment, stores

    def bus_is_there(self) -> None:
        """Forget the remembered nodes: the bus names all nodes now, and a node that is not on it is gone."""
        self._nodes, self.hosts, self._is_recalled = {}, self._seeds, True


def is_from_previous_cluster(remembered: Assignment, heartbeats: Iterable[Heartbeat]) -> bool:
    """Whether nodes follow only assignments from before the remembered one (pure).

    (term, epoch) never decreases while any node or Redis knows it. So the remembered assignment then belongs to a
    cluster that is gone: while this router was away, its nodes lost their disks and Redis lost its keys.
    """
    orders = ((heartbeat.term, heartbeat.epoch) for heartbeat in heartbeats)
    return (0, 0) < highest_plausible(orders, remembered.order) < remembered.order


def _stores(catalogue: Catalogue) -> CatalogueStores | None:
    try:
        return stores_of(catalogue, digest_of(catalogue))
    except Exception as error:  # written by a later release, or altered
        log.warning("the remembered catalogue cannot be used: %s", error, extra={"action": "no-catalogue"})
        return None


HEARTBEAT_MS = 1000
"""The heartbeat interval until a node reports its own."""

MIN_REFRESH_GAP_MS = 200
"""Least time between two reads of the keys: nodes' refusals may request one thousands of times a second."""

QUIET_HEARTBEATS = 1.5
"""Heartbeats of silence from all nodes after which the bus is checked; nodes are dead after three."""

MAX_TICK_MS = 250
"""Longest time between two searches for silent or dead nodes, in ms."""

MAX_POLLED = 64
"""Most nodes polled after one search; the others follow after the next, and lookups prefer other nodes until then."""

ASK_LIMIT_S = 3.0
"""Time limit for asking nodes that a decision needs an answer from now."""

FEW = 3
"""Most nodes that a message names."""


class SilentNodePoller:
    """The polls of one router. The hosts in its `memory` are polled while no node is known."""

    def __init__(self, tables: Tables, polls: Polls, memory: RouterMemory, *, clock: Clock) -> None:
        self._tables = tables
        self._polls = polls
        self._silent = SilentNodes(
            tables, polls.poll, most=MAX_POLLED, others_heard=tables.others_heard_since, clock=clock
        )
        self._memory = memory
        self._clock = clock
        self._on_bus_ms: dict[str, float] = {}
        """The time when the bus last carried a heartbeat of each node."""
        self._asked_seeds_ms = float("-inf")

    def heard_on_bus(self, node_id: str, at_ms: float) -> None:
        self._on_bus_ms[node_id] = max(at_ms, self._on_bus_ms.get(node_id, at_ms))

    def unheard(self) -> str | None:
        """Return the fault of a bus without heartbeats of half of the live nodes or more."""
        now_ms = self._clock.monotonic_ms()
        nodes = {node_id: node for node_id, node in self._tables.nodes.items() if self._tables.is_known(node_id)}
        silent = [
            node_id
            for node_id, node in sorted(nodes.items())
            if not self._tables.is_silent(node, now_ms)  # the node has just answered, or sent a heartbeat
            and now_ms - self._on_bus_ms.get(node_id, float("-inf")) > node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
        ]
        if not silent or 2 * len(silent) < len(nodes):
            return None
        named = ", ".join(silent[:FEW]) + (", ..." if len(silent) > FEW else "")
        return f"{len(silent)} of {len(nodes)} nodes are unheard on Redis and answer when asked: {named}"

    async def run(self) -> None:
        """Poll silent nodes, for ever."""
        while True:
            await asyncio.sleep(min(MAX_TICK_MS, _heartbeat_ms(self._tables) / 4) / 1000)
            await self._poll_silent()

    async def ask(self, hosts: Mapping[str, HostInfo]) -> None:
        """Ask these nodes now, for ASK_LIMIT_S at most. The tables have the answers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_LIMIT_S):
                await self._silent.ask(hosts, _heartbeat_ms(self._tables))

    async def _poll_silent(self) -> None:
        tables, now_ms = self._tables, self._clock.monotonic_ms()
        if len(self._on_bus_ms) > len(tables.nodes):
            self._on_bus_ms = {node_id: at_ms for node_id, at_ms in self._on_bus_ms.items() if node_id in tables.nodes}
        await self._silent.ask_due(_heartbeat_ms(tables))
        if not tables.nodes and now_ms - self._asked_seeds_ms >= _heartbeat_ms(tables):
            self._asked_seeds_ms = now_ms
            await self._polls.poll_all(self._memory.hosts)


def _heartbeat_ms(tables: Tables) -> int:
    """Return the shortest heartbeat of the live nodes."""
    return tables.heartbeat_ms(default_ms=HEARTBEAT_MS)


class Agreement:
    """The assignment of `tables`, confirmed by the nodes or not."""

    def __init__(self, tables: Tables, memory: RouterMemory, catalogue: CatalogueFollower, *, clock: Clock) -> None:
        self.wanted = asyncio.Event()
        """Set when the nodes should be asked soon."""
        self._tables = tables
        self._memory = memory
        self._catalogue = catalogue
        self._clock = clock
        self._unconfirmed: Assignment | None = None
        """The remembered assignment, until a node follows it or something else is known."""
        self._doubted_ms = float("-inf")
        self._left_behind_ms: float | None = None
        """The time since when all nodes follow assignments before the one known here."""

    @property
    def needs_keys(self) -> bool:
        """Whether the keys of the bus should be read: a node follows an assignment, and the known one is doubted."""
        nodes = self._tables.nodes.values()
        return self._unconfirmed is not None and any(node.heartbeat.epoch for node in nodes)

    def take(self, assignment: Assignment) -> None:
        """Use an assignment of the cluster, if it is later than the known one."""
        if self._tables.assigned(assignment, self._clock.monotonic_ms(), self._catalogue.place):
            self._unconfirmed = None
            self._memory.note(assignment)
            self._catalogue.news.set()

    def take_remembered(self, assignment: Assignment) -> None:
        """Use a remembered assignment until a node confirms it."""
        if self._tables.assigned(assignment, self._clock.monotonic_ms()):
            self._unconfirmed = assignment

    async def run(self, polls: Polls) -> None:
        """Agree with the nodes after the keys were read. The bus is heard meanwhile: a node may hang."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            await self._agree_with_nodes(polls)

    async def _agree_with_nodes(self, polls: Polls) -> None:
        """Read the assignment from the nodes when they follow a later one: the bus may have lost its keys."""
        beats = [node.heartbeat for node in self._tables.nodes.values()]
        latest, remembered = self._tables.highest(), self._unconfirmed
        if latest > self._tables.order:
            found = await polls.latest_assignment()
            if found is not None:
                self.take(found)
        elif remembered is not None and latest == remembered.order:
            self._unconfirmed = None
        elif remembered is not None and is_from_previous_cluster(remembered, beats):
            found = await polls.latest_assignment()
            if found is not None and self._unconfirmed is remembered:
                log.warning("the known assignment is of a cluster that is gone", extra={"action": "not-remembered"})
                self._tables.assignment = None
                self.take(found)

    def doubt(self, now_ms: float, heartbeat_ms: float) -> None:
        """Treat the known assignment as a remembered one when all nodes followed earlier assignments for one expiry.
        They are a new cluster then: the old one lost its disks and Redis its keys. Checks once per heartbeat.
        """
        if now_ms - self._doubted_ms < heartbeat_ms:
            return
        self._doubted_ms = now_ms
        known, beats = self._tables.assignment, [node.heartbeat for node in self._tables.nodes.values()]
        if known is None or not is_from_previous_cluster(known, beats):
            self._left_behind_ms = None
        elif self._left_behind_ms is None:
            self._left_behind_ms = now_ms
        elif now_ms - self._left_behind_ms > heartbeat_ms * EXPIRY_HEARTBEATS:
            self._unconfirmed = known


class ClusterWatcher:
    """The tasks that update `tables` and the `catalogue`: the `ClusterDelegate` of a router.
    `bus_lost_why` is the reason why no messages arrive from the bus, `None` while they do.
    """

    def __init__(self, gossip: Gossip, tables: Tables, nodes: NodeCalls, memory: RouterMemory, *, clock: Clock) -> None:
        self.bus_lost_why: str | None = "Redis was not reached yet"
        self.catalogue = CatalogueFollower(
            gossip, tables, nodes, memory, bus_lost_why=lambda: self.bus_lost_why, clock=clock
        )
        self.cluster = ClusterFollower(gossip, tables, self, heartbeat_ms=lambda: _heartbeat_ms(tables), clock=clock)
        self._gossip = gossip
        self._tables = tables
        self._clock = clock
        self._memory = memory
        self._heard_ms = clock.monotonic_ms()
        self._refresh_wanted = asyncio.Event()
        self._nodes_moved = False
        self._agreement = Agreement(tables, memory, self.catalogue, clock=clock)
        self._polls = Polls(nodes, tables, heard=self._heard, assigned=self._agreement.take)
        self.silent_nodes = SilentNodePoller(tables, self._polls, memory, clock=clock)

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

    def is_heard_of(self, node_id: str) -> bool:
        """Whether a node sends heartbeats, or answers when it is asked for one."""
        return self._tables.is_heard_of(node_id, self._clock.monotonic_ms())

    def hear(self, heard: Spoken) -> None:
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
        """Do nothing before the assignment is read: it says which nodes are known."""

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        """Take the assignment and the heartbeats of the bus's keys. A node without a key stays: it may still answer."""
        now_ms = self._clock.monotonic_ms()
        if assignment is not None:
            self._agreement.take(assignment)  # first: it says which nodes are known
        for each in seen:
            self._heard(each.heartbeat, each.age_ms)
            self.silent_nodes.heard_on_bus(each.heartbeat.node_id, now_ms - each.age_ms)
        if self.bus_lost_why is not None and self.cluster.is_subscribed:
            log.info("Redis is there", extra={"action": "bus-back", "nodes": len(seen)})
            self.bus_lost_why, self._heard_ms = None, now_ms
            self._tables.bus_back(now_ms)
            self._memory.bus_is_there()
        self._agreement.wanted.set()
        self.catalogue.news.set()

    def bus_lost(self, why: str) -> None:
        """Note that Redis is away."""
        if not self.cluster.is_away:
            log.warning("Redis is away: %s; nodes are asked for their lag", why, extra={"action": "bus-lost"})
        self.bus_lost_why = f"Redis is away: {why}"
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
            if known is None or not self._tables.has_catalogue_digest:  # else one of a thousand a second
                self.catalogue.news.set()

    async def _read_when_wanted(self) -> None:
        """Read the keys when `refresh` is called, and once per heartbeat while Redis is away."""
        while True:
            if self.bus_lost_why is None:
                await self._refresh_wanted.wait()
            self._refresh_wanted.clear()
            await self.cluster.read()
            await asyncio.sleep(
                jittered_s(MIN_REFRESH_GAP_MS if self.bus_lost_why is None else _heartbeat_ms(self._tables))
            )

    async def _keep(self) -> None:
        """Declare silent nodes dead that did not answer. First read the keys again when the bus or this process may
        have caused the silence.
        """
        while True:
            heartbeat_ms, began_ms = _heartbeat_ms(self._tables), self._clock.monotonic_ms()
            tick_ms = min(MAX_TICK_MS, heartbeat_ms / 4)
            await asyncio.sleep(tick_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            paused_ms = now_ms - began_ms - tick_ms  # of the sleep alone: reading the keys may wait for Redis
            if paused_ms > heartbeat_ms:
                log.warning("this process paused for %d ms", paused_ms, extra={"action": "paused"})
                await self.cluster.read()
            elif self.bus_lost_why is None and now_ms - self._heard_ms > heartbeat_ms * QUIET_HEARTBEATS:
                # No heartbeat arrives at all: the bus may hang before its connection breaks.
                self._heard_ms = now_ms
                await self.cluster.read()
            self._tables.expire(self._clock.monotonic_ms())
            self._note_nodes()
            self._agreement.doubt(now_ms, heartbeat_ms)
            if self._agreement.needs_keys:
                self._refresh_wanted.set()

    def _note_nodes(self) -> None:
        if self._nodes_moved:
            self._nodes_moved = False
            self._memory.note_nodes(self._tables, self._gossip.application_id)
