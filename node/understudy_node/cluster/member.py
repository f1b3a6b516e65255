"""A node's membership in its cluster: composes what it says, what it hears, what it follows and what it assigns.

One background task sends heartbeats (and assigns, while this node has the lease), one listens; the others ask nodes
and write files. None blocks a lookup. While the bus is away the node keeps its last assignment and reports itself
degraded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from pydantic import ValidationError

from understudy_node.cluster.bus_state import BusState
from understudy_node.cluster.following import AssignmentFollower
from understudy_node.cluster.listening import BusListener
from understudy_node.cluster.neighbours import Neighbours, outvoted
from understudy_node.cluster.own_messages import MemberStatus, OwnMessages, State
from understudy_node.cluster.peer_polling import PeerPoller
from understudy_node.cluster.placement import Layout, Placement
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.node import Node
from understudy_shared.bus.base import Bus, BusError, BusRefusedError
from understudy_shared.bus.gossip import Gossip, Seen
from understudy_shared.clock import Clock
from understudy_shared.messages import Assignment, Catalogue, Heartbeat
from understudy_shared.remembered import Remembered
from understudy_shared.seeds import parse_seeds
from understudy_shared.supervise import Supervisor

log = logging.getLogger(__name__)

MIN_BEAT_GAP_MS = 100
"""Least time between two heartbeats: a new version is published at once, and a batch in step costs one message."""

SETTLE_MS = 10
"""A batch reaches the tasks of a node within milliseconds of each other: one heartbeat for all of them."""

PAUSE_HEARTBEATS = 2
"""A turn that is this late shows that the process was paused and heard nothing of the others."""

LEAVE_TIMEOUT_S = 1.0
"""Time for the heartbeat that announces the departure; it is due within MIN_BEAT_GAP_MS."""


class ClusterMember:
    """One node in the cluster of its application: the companion of its `Node` (see `understudy_node.http.app`)."""

    def __init__(
        self,
        node: Node,
        bus: Bus,
        settings: ClusterNodeSettings,
        *,
        node_id: str,
        incarnation: str,
        clock: Clock,
        remembered: Remembered | None = None,
    ) -> None:
        """`remembered` is where it keeps its assignment for a start without the bus; None: nowhere.

        Raises SettingsError for malformed seeds.
        """
        self.node = node
        self.node_id = node_id
        self.draining = False
        self.gossip = Gossip(bus, settings.application)
        self._bus = bus
        self._heartbeat_ms = heartbeat_ms = settings.lag_refresh_ms
        self._clock = clock
        self._neighbours = Neighbours(self.gossip.refuse)
        self._tasks = Supervisor()
        self._leaving = False
        self._has_said_leaving = asyncio.Event()
        self._has_failed = False
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bus_state = BusState()
        self._turned_ms = clock.monotonic_ms()
        self._has_rival = False
        self._outvoted: str | None = None
        self._placement = Placement(
            self.gossip,
            node_id=node_id,
            incarnation=incarnation,
            heartbeat_ms=heartbeat_ms,
            num_standby_replicas=settings.num_standby_replicas,
            max_warmup_replicas=settings.max_warmup_replicas,
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            rebalance_delay_ms=settings.rebalance_delay_ms,
            clock=clock,
        )
        self._follower = AssignmentFollower(
            node,
            self.gossip,
            node_id=node_id,
            heartbeat_ms=heartbeat_ms,
            remembered=remembered,
            seeds=parse_seeds(settings.seed),
            changed=self._changed.set,
        )
        self._own = OwnMessages(
            node,
            self.gossip,
            node_id=node_id,
            incarnation=incarnation,
            zone=settings.zone,
            heartbeat_ms=heartbeat_ms,
            clock=clock,
        )
        self.listener = BusListener(
            node,
            self.gossip,
            self._neighbours,
            self._follower,
            self._own,
            self._bus_state,
            heartbeat_ms=heartbeat_ms,
            clock=clock,
            bus_came_back=self._placement.bus_came_back,
            changed=self._changed.set,
        )
        self._peers = PeerPoller(
            self._neighbours,
            settings.application,
            heartbeat_ms=heartbeat_ms,
            members=self._follower.members,
            assigns=lambda: self._placement.fence is not None,
            is_cut_off=lambda: bool(self._bus_state.causes),
            order=lambda: self._follower.order,
            take=self._follower.follow,
            changed=self.changed,
            clock=clock,
        )

    def start(self) -> None:
        """Begin to beat and to listen, on the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._tasks.start("listen", self.listener.run())
        self._tasks.start("beat", self._beat_while_alive())
        self._tasks.start("ask nodes that are silent", self._peers.run())
        self._tasks.start("follow without the bus", self._peers.catch_up())
        self._tasks.start("remember", self._follower.remembering.keep())
        self._tasks.start("go on without the bus", self._follower.remembering.go_on_without_the_bus())

    async def leave(self) -> None:
        """Announce the departure and give up the lease. The node still answers and keeps its replicas."""
        log.info("leaving", extra={"action": "leaving"})
        self._leaving = True
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._has_said_leaving.wait()

    async def stop(self) -> None:
        """In order: end the tasks, say farewell, give the lease up, close the bus."""
        await self._tasks.stop()
        try:
            async with asyncio.timeout(2.0):
                await self.gossip.leave(self._own.farewell())
                await self._placement.give_up()
        except (BusError, TimeoutError) as error:
            log.warning("left without a farewell: %s", error, extra={"action": "farewell-failed"})
        await self._bus.close()
        await self._peers.close()
        await self._follower.remembering.close()

    @property
    def assignment(self) -> Assignment | None:
        """The assignment that this node follows; None before there is one."""
        return self._follower.assignment

    @property
    def refused(self) -> Mapping[str, int]:
        """Documents from the bus that were not used, by kind."""
        return self.gossip.refused

    @property
    def dead(self) -> str | None:
        """Why this process cannot go on, None while it can."""
        return self._tasks.dead

    def causes(self) -> Mapping[str, str]:
        """What of the cluster does not work although lookups do, and why, by cause."""
        return {**self._bus_state.causes, **self._own.causes()}

    def not_ready(self) -> list[str]:
        """Why this node should not be sent readers, beyond what the node itself says."""
        reasons = [self.dead] if self.dead else []
        if self._leaving:
            reasons.append("leaving: it answers for a moment more")
        if self._has_rival:
            reasons.append(f"another process of the cluster is {self.node_id}: give each node an id of its own")
        if self._outvoted is not None:
            reasons.append(self._outvoted)
        if self.assignment is None:
            reasons.append("no assignment is known yet")
        return reasons

    def changed(self) -> None:
        """Something in the heartbeat has changed; called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    def drain(self, draining: bool) -> None:
        """Ask the cluster to move this node's tasks away, or take that back."""
        if draining != self.draining:
            log.warning("draining" if draining else "draining no more", extra={"action": "drain", "drain": draining})
        self.draining = draining
        self._changed.set()

    def heartbeat(self) -> Heartbeat:
        """How this node is now."""
        degraded = sorted({**self.node.causes(), **self.causes()})
        return self._own.heartbeat(MemberStatus(self._state(), self._leaving, self._follower.order, degraded))

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """The digest and the catalogue of what is served; None before anything is."""
        return self._own.catalogue()

    def _state(self) -> State:
        if self._has_failed or self.node.dead or self._tasks.dead or self._has_rival or self._outvoted:
            return "failed"
        if self.draining:
            return "draining"
        return "starting" if self.node.generation is None else "serving"

    async def _beat_while_alive(self) -> None:
        """Send a last heartbeat if the beat dies, so that routers and the assignor need not wait for the expiry."""
        try:
            await self._beat()
        except Exception:
            self._has_failed = True
            with contextlib.suppress(Exception):  # the cause of death may strike again
                await self.gossip.beat(self.heartbeat())
                await self._placement.give_up()
            raise

    async def _beat(self) -> None:
        while True:
            started_ms = self._clock.monotonic_ms()
            self._changed.clear()
            await self._turn()
            gap_ms = MIN_BEAT_GAP_MS - (self._clock.monotonic_ms() - started_ms)
            if gap_ms > 0:
                await asyncio.sleep(gap_ms / 1000)
            left_ms = self._heartbeat_ms - (self._clock.monotonic_ms() - started_ms)
            try:
                async with asyncio.timeout(max(0.0, left_ms) / 1000):
                    await self._changed.wait()
                await asyncio.sleep(SETTLE_MS / 1000)
            except TimeoutError:
                pass

    async def _turn(self) -> None:
        """Send a heartbeat, and assign if this node holds the lease."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._turned_ms > PAUSE_HEARTBEATS * self._heartbeat_ms:
            self.listener.require_reading()  # after a pause of our own every node looks dead
        self._turned_ms = now_ms
        await self.listener.read_if_required()
        self._follower.apply()
        self._own.unsaid = None
        self._neighbours.know(self.assignment, lineage=self.node.lineage, end_version=self.node.end.version)
        own = self.heartbeat()
        try:
            self._note_rival(not await self.gossip.beat(own))
            await self._own.write_catalogue(now_ms)
            self._neighbours.heard(own, age_ms=0, now_ms=now_ms)
            if self._follower.drop_forged(self._neighbours, now_ms):
                self.listener.require_reading()
                self._placement.forget()
            nodes = self._neighbours.alive(now_ms)
            self._outvoted = outvoted(own, self._neighbours.voters(nodes))
            await self._place(self._neighbours.proven(nodes, self.node_id))
            self._bus_state.published(None)
        except BusError as error:
            self.listener.bus_failed()
            self._bus_state.published(error)
            self._follower.remembering.bus_is_away()
            if isinstance(error, BusRefusedError):  # publishing may work where writing is refused: lag stays known
                with contextlib.suppress(BusError):
                    await self.gossip.say(self.heartbeat())
        if own.leaving:
            self._has_said_leaving.set()

    async def _place(self, nodes: list[Seen]) -> None:
        """Assign, if this node may and its view of the cluster can be trusted."""
        if self._leaving or self._has_rival or self._outvoted or not self.listener.is_current:
            await self._placement.give_up()
            return
        try:
            written = await self._placement.turn(
                nodes=nodes,
                layout=self._layout(),
                highest=self._neighbours.highest(),
                known=self.assignment,
                began_ms=self._turned_ms,
                unasked=self._neighbours.unasked(self._follower.members(), self._clock.monotonic_ms()),
            )
        except ValidationError as error:
            self._own.cannot_say("assignment", error)
            return
        if written is not None:
            self._follower.follow(written)

    def _layout(self) -> Layout | None:
        generation = self.node.pending or self.node.generation
        tasks = self.node.tasks()
        if generation is None or not tasks:
            return None
        return generation.lineage, generation.layout.partitions, tasks

    def _note_rival(self, has_rival: bool) -> None:
        if has_rival and not self._has_rival:
            log.error("another process of the cluster is %s", self.node_id, extra={"action": "identity-conflict"})
        self._has_rival = has_rival
