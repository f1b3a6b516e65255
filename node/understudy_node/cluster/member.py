"""A node's membership in its cluster: it sends heartbeats, hears those of others, and holds its assigned tasks.

Two background tasks: one beats (and, while it has the lease, assigns), one listens. Neither ever blocks a lookup. While
the bus is away the node goes on with the last assignment and reports itself degraded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from understudy_node.cluster.asking import Asking
from understudy_node.cluster.assignor import duties_of
from understudy_node.cluster.bus_state import BusState
from understudy_node.cluster.catalogue import CatalogueWriter
from understudy_node.cluster.heartbeat import heartbeat_of, least_heartbeat
from understudy_node.cluster.neighbour_applications import log_other_applications
from understudy_node.cluster.neighbours import Neighbours, outvoted
from understudy_node.cluster.placement import Placement
from understudy_node.cluster.remembering import Remembering
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.degraded import OWN_MESSAGE
from understudy_node.node import Node
from understudy_shared.bus.base import Back, Bus, BusError, BusRefusedError, Lost
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Gossip, Seen, Spoken
from understudy_shared.clock import Clock
from understudy_shared.masking import masked
from understudy_shared.messages import Announcement, Assignment, Catalogue, CommitHint, Endpoint, Farewell, Heartbeat
from understudy_shared.plausible import Succession, is_plausible_order, succession
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

BACK_SPREAD_HEARTBEATS = 0.25
"""Nodes that lost the bus together read its keys, and beat, within so long of each other."""


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
        self.assignment: Assignment | None = None
        self.draining = False
        self.gossip = Gossip(bus, settings.application)
        self._bus = bus
        self._settings = settings
        self._incarnation = incarnation
        self._clock = clock
        self._neighbours = Neighbours(self.gossip.refuse)
        self._tasks = Supervisor()
        self._leaving = False
        self._has_said_leaving = asyncio.Event()
        self._has_failed = False
        self._placement = Placement(
            self.gossip,
            node_id=node_id,
            incarnation=incarnation,
            heartbeat_ms=settings.lag_refresh_ms,
            num_standby_replicas=settings.num_standby_replicas,
            max_warmup_replicas=settings.max_warmup_replicas,
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            rebalance_delay_ms=settings.rebalance_delay_ms,
            clock=clock,
        )
        self._asking = Asking(
            self._neighbours,
            settings.application,
            heartbeat_ms=settings.lag_refresh_ms,
            members=self._members,
            assigns=lambda: self._placement.fence is not None,
            is_cut_off=lambda: bool(self._bus_state.causes),
            order=lambda: (0, 0) if self.assignment is None else self.assignment.order,
            take=self._take,
            changed=self.changed,
            clock=clock,
        )
        self._remembering = Remembering(
            node,
            settings.application,
            remembered=remembered,
            seeds=parse_seeds(settings.seed),
            heartbeat_ms=settings.lag_refresh_ms,
            take=self._take,
        )
        self._random = random.Random()  # noqa: S311  # jitter
        self._was_away = False
        self._sequence = 0
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bus_state = BusState()
        self._subscribed = False
        self._must_read = False
        self._turned_ms = clock.monotonic_ms()
        self._rival = False
        self._outvoted: str | None = None
        self._unsaid: str | None = None
        """Why a document of this node cannot be said, None when all can."""
        self._ahead_since_ms: float | None = None
        """Since when all others follow what lies far behind the assignment that is followed here."""
        self._catalogue = CatalogueWriter(node, self.gossip)
        self._applied: tuple[object, ...] = ()

    def start(self) -> None:
        """Begin to beat and to listen, on the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._tasks.start("listen", self._listen())
        self._tasks.start("beat", self._beat_while_alive())
        self._tasks.start("ask nodes that are silent", self._asking.run())
        self._tasks.start("follow without the bus", self._asking.catch_up())
        self._tasks.start("remember", self._remembering.keep())
        self._tasks.start("go on without the bus", self._remembering.go_on_without_the_bus())
        self._tasks.start(
            "look for other applications", log_other_applications(self.gossip, where=masked(self._settings.redis))
        )

    async def leave(self) -> None:
        """Announce the departure and give up the lease. It answers on and keeps its replicas."""
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
                await self.gossip.leave(
                    Farewell(
                        application_id=self.gossip.application_id, node_id=self.node_id, incarnation=self._incarnation
                    )
                )
                await self._placement.give_up()
        except (BusError, TimeoutError) as error:
            log.warning("left without a farewell: %s", error, extra={"action": "farewell-failed"})
        await self._bus.close()
        await self._asking.close()
        await self._remembering.close()

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
        unsaid = {} if self._unsaid is None else {OWN_MESSAGE: self._unsaid}
        return {**self._bus_state.causes, **unsaid}

    def not_ready(self) -> list[str]:
        """Why this node should not be sent readers, beyond what the node itself says."""
        reasons = [self.dead] if self.dead else []
        if self._leaving:
            reasons.append("leaving: it answers for a moment more")
        if self._rival:
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
        self._sequence += 1
        try:
            return self._full_heartbeat()
        except ValidationError as error:
            self._cannot_say("heartbeat", error)
            return least_heartbeat(
                self.node,
                node_id=self.node_id,
                incarnation=self._incarnation,
                sequence=self._sequence,
                endpoint=Endpoint(host=self.node.host.host, port=self.node.host.port),
                state=self._state(),
                heartbeat_ms=self._settings.lag_refresh_ms,
            )

    def _full_heartbeat(self) -> Heartbeat:
        catalogue = self.catalogue()
        return heartbeat_of(
            self.node,
            node_id=self.node_id,
            incarnation=self._incarnation,
            sequence=self._sequence,
            endpoint=Endpoint(host=self.node.host.host, port=self.node.host.port),
            zone=self._settings.zone or None,
            state=self._state(),
            leaving=self._leaving,
            heartbeat_ms=self._settings.lag_refresh_ms,
            term=0 if self.assignment is None else self.assignment.term,
            epoch=0 if self.assignment is None else self.assignment.epoch,
            catalogue=None if catalogue is None else catalogue[0],
            now_ms=self._clock.monotonic_ms(),
            degraded=sorted({**self.node.causes(), **self.causes()}),
        )

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """The name and the catalogue of what is served; None before there is anything."""
        return self._catalogue.now()

    def _state(self) -> Literal["starting", "serving", "draining", "failed"]:
        if self._has_failed or self.node.dead or self._tasks.dead or self._rival or self._outvoted:
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
            left_ms = self._settings.lag_refresh_ms - (self._clock.monotonic_ms() - started_ms)
            try:
                async with asyncio.timeout(max(0.0, left_ms) / 1000):
                    await self._changed.wait()
                await asyncio.sleep(SETTLE_MS / 1000)
            except TimeoutError:
                pass

    async def _turn(self) -> None:
        """Send a heartbeat, and assign if this node holds the lease."""
        now_ms = self._clock.monotonic_ms()
        # After a pause of our own every node looks dead, so read the keys before judging.
        self._must_read |= now_ms - self._turned_ms > PAUSE_HEARTBEATS * self._settings.lag_refresh_ms
        self._turned_ms = now_ms
        if self._must_read and self._subscribed:
            await self._read_all()
        self._apply()
        self._unsaid = None
        self._neighbours.know(self.assignment, lineage=self.node.lineage, end_version=self.node.end.version)
        own = self.heartbeat()
        try:
            self._rival_seen(not await self.gossip.beat(own))
            await self._tell_catalogue(now_ms)
            self._neighbours.heard(own, age_ms=0, now_ms=now_ms)
            self._doubt(now_ms)
            nodes = self._neighbours.alive(now_ms)
            self._outvoted = outvoted(own, self._neighbours.voters(nodes))
            await self._place(self._neighbours.proven(nodes, self.node_id))
            self._bus_state.published(None)
        except BusError as error:
            self._must_read = self._was_away = True  # while the bus did not answer, no node was heard
            self._bus_state.published(error)
            self._remembering.bus_is_away()
            if isinstance(error, BusRefusedError):  # what may not be written can be said: lag stays known
                with contextlib.suppress(BusError):
                    await self.gossip.say(self.heartbeat())
        if own.leaving:
            self._has_said_leaving.set()

    async def _tell_catalogue(self, now_ms: float) -> None:
        try:
            await self._catalogue.tell(now_ms)
        except ValidationError as error:
            self._cannot_say("catalogue", error)

    def _cannot_say(self, kind: str, error: ValidationError) -> None:
        """A document of ours that nobody would take. The next turn tries again, with what is known then."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or kind
        self._unsaid = f"this node cannot say its {kind}: {place} is wrong: {first['msg']}"
        self.gossip.refuse(f"own-{kind}", self._unsaid)

    def _doubt(self, now_ms: float) -> None:
        """An assignment that all others are far behind, for an expiry, was forged: what they follow is read again."""
        if not self._neighbours.is_far_ahead(self.node_id):
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = now_ms
        elif now_ms - self._ahead_since_ms > EXPIRY_HEARTBEATS * self._settings.lag_refresh_ms:
            assert self.assignment is not None
            why = "assignment {}.{} was forged: all others are far behind it".format(*self.assignment.order)
            self.gossip.refuse("assignment", why)
            self.assignment, self._ahead_since_ms, self._must_read = None, None, True
            self._placement.forget()

    async def _place(self, nodes: list[Seen]) -> None:
        """Assign, if this node may and its view of the cluster can be trusted."""
        if self._leaving or self._rival or self._outvoted or self._must_read or not self._subscribed:
            await self._placement.give_up()
            return
        try:
            written = await self._placement.turn(
                nodes=nodes,
                layout=self._layout(),
                highest=self._neighbours.highest(),
                known=self.assignment,
                began_ms=self._turned_ms,
                unasked=self._neighbours.unasked(self._members(), self._clock.monotonic_ms()),
            )
        except ValidationError as error:
            self._cannot_say("assignment", error)
            return
        if written is not None:
            self._take(written)

    def _members(self) -> Mapping[str, Endpoint]:
        """Who has tasks by the assignment that is followed, but for this node."""
        members = {} if self.assignment is None else self.assignment.members
        return {node_id: endpoint for node_id, endpoint in members.items() if node_id != self.node_id}

    def _layout(self) -> tuple[str, int, list[str]] | None:
        generation = self.node.pending or self.node.generation
        tasks = self.node.tasks()
        if generation is None or not tasks:
            return None
        return generation.lineage, generation.layout.partitions, tasks

    async def _listen(self) -> None:
        async for heard in self.gossip.listen():
            match heard:
                case Lost():
                    self._subscribed = False  # calls may succeed before it stands again: silence proves nothing then
                    self._was_away = True
                    self._bus_state.subscribed(heard.why)
                case Back():
                    if self._was_away:
                        spread_ms = BACK_SPREAD_HEARTBEATS * self._settings.lag_refresh_ms
                        await asyncio.sleep(self._random.uniform(0, spread_ms) / 1000)
                    self._subscribed = True
                    await self._read_all()
                case _:
                    self.gossip.handle(heard, self._hear)

    def _hear(self, heard: Spoken) -> None:
        now_ms = self._clock.monotonic_ms()
        match heard:
            case Heartbeat():
                self._refute(heard)
                self._neighbours.heard(heard, age_ms=0, now_ms=now_ms)
            case Farewell():
                self._neighbours.left(heard)
                self._changed.set()
            case Assignment():
                self._take(heard)
            case CommitHint():
                self.node.wake()
            case Announcement():
                self.node.announce(heard)

    def _refute(self, heard: Heartbeat) -> None:
        """Somebody speaks in this process' name, with a number that this process has not reached: go past it."""
        if (heard.node_id, heard.incarnation) != (self.node_id, self._incarnation):
            return
        beat_ms = self._settings.lag_refresh_ms
        if heard.sequence > self._sequence:
            self.gossip.refuse("heartbeat", f"a heartbeat in this node's own name, numbered {heard.sequence}")
            if succession(heard.sequence, self._sequence, later_ms=0, heartbeat_ms=beat_ms) is Succession.NEWER:
                self._sequence = heard.sequence
            self._changed.set()

    async def _read_all(self) -> None:
        """Read all keys. With a standing subscription no later message is missed."""
        try:
            seen = await self.gossip.nodes(known=self._neighbours.holders)
            self._neighbours.read(seen, now_ms=self._clock.monotonic_ms())
            assignment, announcement = await self.gossip.assignment(), await self.gossip.announcement()
        except BusError as error:
            self._must_read = True  # with the next heartbeat
            self._bus_state.subscribed(str(error))
            return
        self._must_read = self._was_away = False
        self._placement.bus_came_back()
        self._catalogue.bus_came_back()
        self._bus_state.subscribed(None)
        await self._remembering.bus_is_there()  # first: the remembered assignment shows which one is forged
        if assignment is not None:
            self._take(assignment)
        if announcement is not None:
            self.gossip.handle(announcement, self._hear)
        self._changed.set()

    def _rival_seen(self, rival: bool) -> None:
        if rival and not self._rival:
            log.error("another process of the cluster is %s", self.node_id, extra={"action": "identity-conflict"})
        self._rival = rival

    def _take(self, assignment: Assignment) -> None:
        """Follow an assignment, unless a later one is followed already."""
        known = (0, 0) if self.assignment is None else self.assignment.order
        if assignment.order <= known:
            return
        if not is_plausible_order(assignment.order, known):
            self.gossip.refuse("assignment", "assignment {}.{}, where {}.{} is known".format(*assignment.order, *known))
            return
        self.assignment = assignment
        self._remembering.note(assignment)
        self._apply()
        self._changed.set()

    def _apply(self) -> None:
        """Give the node its tasks: those of its assignment, none when that is of another lineage."""
        assignment = self.assignment
        if assignment is None:
            return
        applies = (assignment.order, assignment.lineage == self.node.lineage)
        if applies == self._applied:
            return
        self._applied = applies
        duties = duties_of(assignment.tasks, self.node_id) if applies[1] else {}
        log.info(
            "assignment %d.%d: %d tasks", assignment.term, assignment.epoch, len(duties), extra={"action": "assigned"}
        )
        self.node.assign(duties, partitions=assignment.partitions if applies[1] else None)
