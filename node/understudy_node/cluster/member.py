"""One application's part in its cluster: it reports what it waits for, claims its node id, and becomes a member.

A member sends heartbeats and assigns in one background task, and listens in another; others ask nodes and write files.
No task blocks a lookup. While Redis is away the node keeps its last assignment and reports itself degraded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from understudy_node.cluster.context import BusState, MemberContext, MemberId, Neighbours
from understudy_node.cluster.heartbeat import LoadMeter, MemberStatus, OwnMessages, ProcessLoad, State, least_heartbeat
from understudy_node.cluster.heartbeat_loop import AssignmentFollower, Beat
from understudy_node.cluster.history_check import HistoryCheck
from understudy_node.cluster.leader import Leadership
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked, masked_location
from understudy_shared.base.plausible import is_later
from understudy_shared.base.texts import clipped, did_you_mean, named
from understudy_shared.base.words import HostInfo, Lineage
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat, Applications, Gossip, Spoken
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Announcement, Assignment, Catalogue, CommitHint, Farewell, Heartbeat
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.follower import ClusterFollower, Polls, SilentNodes
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.view import ANSWER_DEADLINE_MS
from understudy_shared.cluster.without_bus import Memory, Remembered, parse_seeds

log = logging.getLogger(__name__)


class Remembering:
    """The assignment that one node gets without the bus. `take` receives assignments, and may refuse them."""

    def __init__(
        self, context: MemberContext, memory: Memory, *, seeds: Collection[HostInfo], take: Callable[[Assignment], None]
    ) -> None:
        self._node = context.node
        self._neighbours = context.neighbours
        self._memory = memory
        self._hosts = frozenset(seeds)
        """The nodes to ask at a start: the seeds, and the nodes of the remembered assignment."""
        self._take = take
        self._polls = Polls(context.calls, context.neighbours, heard=self._heard, assigned=self.offer)
        self._random = random.Random()  # noqa: S311  # chooses a node, and needs no secrecy
        self._settled = False
        """Whether the bus was read, or the latest assignment that a node told of, since this process started."""
        self._heard_order = (0, 0)
        """The latest (term, epoch) that a node of this lineage follows."""
        self._recalled = False
        self._refused = ""

    async def bus_is_there(self, stored: Assignment | None) -> None:
        """Note that the bus was read, and `stored` is its assignment. The remembered one counts if it is not older."""
        if not self._settled:
            self._settled = True
            await self._recall(stored)

    async def ask_others(self) -> None:
        """Ask for a later assignment: at a start all nodes that may have one, then one member at a time."""
        await self._recall()
        members = [endpoint.host_info() for _, endpoint in sorted(self._neighbours.members().items())]
        asked = self._hosts - {self._node.host}
        if self._settled:
            asked = frozenset({self._random.choice(members)} if members else ())
        await asyncio.gather(*(self._polls.poll(host, ANSWER_DEADLINE_MS) for host in asked))
        order = self._neighbours.order
        self._settled |= self._neighbours.assignment is not None and (0, 0) < self._heard_order <= order

    def offer(self, assignment: Assignment) -> None:
        """Take an assignment if it is of the lineage that this node follows."""
        if assignment.lineage == self._node.lineage:
            self._take(assignment)
            return
        why = f"is of lineage {assignment.lineage}; the checkpoint's is {self._node.lineage}"
        if why != self._refused:
            log.warning("assignment %d.%d %s", *assignment.order, why, extra={"action": "other-lineage"})
        self._refused = why

    def _heard(self, heartbeat: Heartbeat) -> None:
        # It does not go into the view: a few nodes would look like the whole cluster.
        if heartbeat.lineage == self._node.lineage:
            self._heard_order = max(self._heard_order, (heartbeat.term, heartbeat.epoch))

    async def _recall(self, stored: Assignment | None = None) -> None:
        if self._recalled:
            return
        self._recalled = True
        remembered = await self._memory.load(Assignment)
        if remembered is not None:
            self._hosts |= {endpoint.host_info() for endpoint in remembered.members.values()}
            if stored is None or not is_later(stored.order, remembered.order):
                self.offer(remembered)


RETRY_S = 5.0


MAX_POLLED = 32
"""Most nodes polled at the same time, each on its own connection; the rest follow after the next search."""


def alone_text(application_id: str, found: Applications, *, where: str) -> str | None:
    """Return the log text for a node that is the only one of its application, if there are others; else None (pure)."""
    others = [*found.others(application_id), *found.without_nodes(application_id)]
    if not others or found.nodes.get(application_id, 0) > 1:
        return None
    return (
        f"this is the only node of application {application_id!r} on {where}; "
        f"others there: {named(map(clipped, others), 5)}. "
        f"{did_you_mean(application_id, others)}"
    ).rstrip()


class ClusterMember:
    """One node in the cluster of its application."""

    def __init__(
        self,
        node: Node,
        gossip: Gossip,
        settings: ClusterNodeSettings,
        member_id: MemberId,
        *,
        clock: Clock,
        remembered: Remembered | None = None,
        identity: ClusterIdentity | None = None,
        process_load: ProcessLoad | None = None,
    ) -> None:
        """Set the parts of the member. `remembered` keeps its assignment for a start without the bus; None: the
        assignment is not kept. `identity` authenticates this node to other nodes. `process_load` is the load of a
        process with several applications. There the bus of `gossip` stays open when this member stops: the others use
        it. None: the member is alone in its process.

        Raises SettingsError for malformed seeds.
        """
        # All parts are made here, each from those before it: what a part gets is all that it can reach.
        self.node = node
        self.node_id = member_id.node_id
        self.draining = False
        self.num_standby_replicas = settings.num_standby_replicas
        self.gossip = gossip
        self._is_alone = process_load is None
        self._shown_redis = masked(settings.redis)
        self._tasks = Supervisor()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes = False
        """Whether the loop will be woken, so that a further change need not wake it."""
        self._context = context = MemberContext(
            node=node,
            gossip=gossip,
            calls=NodeCalls(settings.application, identity),
            neighbours=Neighbours(self.node_id, refuse=gossip.refuse, history=lambda: (node.lineage, node.end.version)),
            bus_state=BusState(),
            changed=asyncio.Event(),
            member_id=member_id,
            heartbeat_ms=settings.lag_refresh_ms,
            clock=clock,
        )
        self._placement = Leadership(gossip, settings, member_id, clock=clock)
        self._check = HistoryCheck(context)
        self._memory = Memory(remembered)
        self._follower = AssignmentFollower(context, self._memory, check=self._check)
        self._load = LoadMeter(node, process_load or ProcessLoad())
        self._own = OwnMessages(context, zone=settings.zone, load=self._load)
        self._remembering = Remembering(
            context, self._memory, seeds=parse_seeds(settings.seed), take=self._follower.follow
        )
        self.cluster = ClusterFollower(
            gossip, context.neighbours, self, heartbeat_ms=lambda: context.heartbeat_ms, clock=clock
        )
        self.beat = Beat(
            context,
            follower=self._follower,
            check=self._check,
            own=self._own,
            cluster=self.cluster,
            placement=self._placement,
            heartbeat=self.heartbeat,
        )

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks.start("listen", self.cluster.run())
        self._tasks.start("beat", self.beat.run())
        self._tasks.start("ask nodes that are silent", self._poll_silent_members())
        self._tasks.start("remember", self._memory.keep())
        self._tasks.start("continue without the bus", self.cluster.go_on_without_the_bus())
        if self._is_alone:
            self._tasks.start("look for other applications", self._log_other_applications())

    # ---- the `ClusterDelegate` of its follower

    def hear(self, heard: Spoken) -> None:
        context = self._context
        match heard:
            case Heartbeat():
                if self._own.refute(heard):
                    context.changed.set()
                context.heard(heard)
            case Farewell():
                context.neighbours.left(heard, context.clock.monotonic_ms())
                context.changed.set()
            case Assignment():
                self._follower.follow(heard)
            case CommitHint():
                context.node.wake()
            case Announcement():
                context.node.announce(heard)

    def take_nodes(self, seen: list[AgedHeartbeat]) -> None:
        self._context.neighbours.read(seen, now_ms=self._context.clock.monotonic_ms())

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        context = self._context
        announcement = await context.gossip.announcement()
        self._placement.bus_came_back()
        self._own.bus_came_back()
        context.bus_state.subscribed(None)
        # The remembered assignment comes first: it shows whether the one in Redis is forged.
        await self._remembering.bus_is_there(assignment)
        if assignment is not None:
            self._follower.follow(assignment)
        if announcement is not None:
            context.gossip.handle(announcement, self.hear)
        context.changed.set()

    def bus_lost(self, why: str) -> None:
        self._context.bus_state.subscribed(why)

    async def ask_others(self) -> None:
        await self._remembering.ask_others()

    # ---- its life and its state

    async def leave(self) -> None:
        """Announce the departure and give up the lease. The node still answers and keeps its replicas."""
        log.info("leaving", extra={"action": "leaving"})
        await self.beat.leave()

    async def stop(self) -> None:
        """End the tasks, say farewell, give the lease up, and close the bus if it is its own, in this order."""
        await self._tasks.stop()
        self._load.stop()
        try:
            async with asyncio.timeout(2.0):
                await self.gossip.leave(self._own.farewell())
                await self._placement.give_up()
        except (BusError, TimeoutError) as error:
            log.warning("left without a farewell: %s", error, extra={"action": "farewell-failed"})
        if self._is_alone:
            await self.gossip.close()
        await self._context.calls.close()
        await self._memory.flush()

    @property
    def assignment(self) -> Assignment | None:
        return self._context.neighbours.assignment

    @property
    def has_lease(self) -> bool:
        return self._placement.fence is not None

    @property
    def refused(self) -> Mapping[str, int]:
        return self.gossip.refused

    @property
    def dead(self) -> str | None:
        return self._tasks.dead

    def causes(self) -> Mapping[str, str]:
        """Return which functions of the cluster fail while lookups work, and why, by cause."""
        return {
            **self._context.bus_state.causes,
            **self._own.causes(),
            **self._check.causes(),
            **self.gossip.auth.causes(),
        }

    def not_ready(self) -> list[str]:
        """Return why this node should not get requests, beyond the reasons of the node itself."""
        reasons = [self.dead] if self.dead else []
        if self.beat.leaving:
            reasons.append("leaving: it answers for a moment more")
        if self.beat.has_rival:
            reasons.append(
                f"another process of the cluster uses node id {self.node_id}: give each node an id of its own"
            )
        if self.beat.outvoted is not None:
            reasons.append(self.beat.outvoted)
        if self._check.refused is not None:
            reasons.append(self._check.refused)
        elif self._check.doubt is not None:
            reasons.append(f"this node answers nothing before it is known to follow no fork: {self._check.doubt}")
        if self.assignment is None:
            reasons.append("no assignment is known yet")
        return reasons

    def changed(self) -> None:
        """Send the next heartbeat soon, because its content has changed. Called from any thread; a thousand tasks
        wake the loop once.
        """
        if self._loop is not None and not self._wakes and not self._loop.is_closed():
            self._wakes = True
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._wakes = False  # first, so that a change from here on wakes the loop again
        self._context.changed.set()

    def drain(self, draining: bool) -> None:
        if draining != self.draining:
            log.warning("draining" if draining else "draining no more", extra={"action": "drain", "drain": draining})
        self.draining = draining
        self._context.changed.set()

    def heartbeat(self) -> Heartbeat:
        degraded = sorted({**self.node.causes(), **self.causes()})
        status = MemberStatus(
            self._state(), self._context.neighbours.order, self.beat.leaving, degraded, self._check.found
        )
        return self._own.heartbeat(status)

    def catalogue(self) -> tuple[str, Catalogue] | None:
        return self._own.catalogue()

    def _state(self) -> State:
        if self.beat.has_failed or self.node.dead or self._tasks.dead or self.beat.has_rival:
            return "failed"
        if self.beat.outvoted or self._check.refused:
            return "failed"
        if self.draining:
            return "draining"
        return "starting" if self.node.generation is None else "serving"

    async def _poll_silent_members(self) -> None:
        """Poll silent members while this node has the lease: no other node moves tasks."""
        context, offer = self._context, self._remembering.offer
        polls = Polls(context.calls, context.neighbours, heard=context.heard, assigned=offer, at_once=MAX_POLLED)
        silent = SilentNodes(
            context.neighbours,
            polls.poll,
            most=MAX_POLLED,
            # The holder of a lease in Redis is not cut off itself, so one hung peer of two counts as dead, too.
            others_heard=lambda node_id, since_ms: True,
            clock=context.clock,
            but=self.node_id,
        )
        while True:
            await asyncio.sleep(context.heartbeat_ms / 4 / 1000)
            polls_now = self.has_lease and self.assignment is not None
            if polls_now and await silent.ask_due(context.heartbeat_ms):
                context.changed.set()

    async def _log_other_applications(self) -> None:
        """Look once the bus is available; then wait for the end of the process."""
        while True:
            try:
                found = await self.gossip.applications()
                break
            except BusError:  # the member logs that Redis is away
                await asyncio.sleep(RETRY_S)
        text = alone_text(self.gossip.application_id, found, where=self._shown_redis)
        if text is not None:
            log.info("%s", text, extra={"action": "other-applications"})
        await asyncio.Event().wait()


MAX_WHY_CHARS = 500


class IdentityError(UnderstudyError):
    """Another process of the cluster uses this node's id."""


class Clusters:
    """The part of a process in the clusters of its applications."""

    def __init__(self, settings: ClusterNodeSettings, bus: Bus | None = None) -> None:
        self.bus = bus or RedisBus(settings.redis_url)
        self.load = ProcessLoad() if settings.is_fleet else None
        """The load of several applications; None: there is only one, and its member closes the bus."""
        self.draining = False
        """Whether all applications drain, those that come later, too."""

    def membership(self, settings: NodeSettings, host: HostInfo, identity: ClusterIdentity, clock: Clock) -> Membership:
        assert isinstance(settings, ClusterNodeSettings), "like the process's settings"
        return Membership(settings, host, self, identity, clock)


class Membership:
    """One application's part in its cluster, under the node id and the address of the process. Work on another loop
    than the member's gets a bus of its own.
    """

    def __init__(
        self, settings: ClusterNodeSettings, host: HostInfo, clusters: Clusters, identity: ClusterIdentity, clock: Clock
    ) -> None:
        self.member: ClusterMember | None = None
        self.settings = settings
        self._host = host
        self._clusters = clusters
        self._claimed = self._new_id()
        self._identity = identity.within(settings.application)
        self._clock = clock

    @asynccontextmanager
    async def waiting(self, why: Callable[[], str], bus: Bus | None = None) -> AsyncIterator[None]:
        """Send heartbeats that report what this node waits for, and a farewell at the end."""
        member_id = self._new_id()
        gossip = self._gossip(self._auth(member_id), bus)
        tasks = Supervisor()
        tasks.start("say what is waited for", self._say(gossip, member_id, why))
        try:
            yield
        finally:
            await tasks.stop()
            farewell = Farewell(
                application_id=self.settings.application, node_id=member_id.node_id, incarnation=member_id.incarnation
            )
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(1):
                    await gossip.leave(farewell)

    def other_bus(self) -> Bus:
        """Return a bus for another loop. The caller closes it."""
        return RedisBus(self.settings.redis_url)

    async def claim(self, node: Node, bus: Bus | None = None) -> None:
        """Take the node id for a new incarnation. Raises IdentityError when another process keeps using it: the entry
        of one that died expires by itself. While Redis is away the claim is skipped.
        """
        self._claimed = self._new_id()
        gossip = self._gossip(self._auth(self._claimed), bus)
        first = self._heartbeat(self._claimed, lineage=node.lineage)
        try:
            for _ in range(EXPIRY_HEARTBEATS + 2):
                if await gossip.beat(first):
                    return
                await asyncio.sleep(first.heartbeat_ms / 1000)
        except BusError as error:
            log.warning("%s; waiting for it", error, extra={"action": "bus-lost"})
            return
        raise IdentityError(
            f"another process of the cluster uses node id {first.node_id}",
            where=f"application {first.application_id}",
            fix="Give each node an id of its own with --node-id, or stop the other process",
        )

    def join(self, node: Node) -> ClusterMember:
        """Return the member, which is not started, with the id that was claimed."""
        auth = self._auth(self._claimed)
        self.member = ClusterMember(
            node,
            self._gossip(auth),  # one of its own: the claim's refusals are not counted as the member's
            self.settings,
            self._claimed,
            clock=self._clock,
            remembered=Remembered(node.settings.data_directory / "cluster", self.settings.application, auth),
            identity=self._identity,
            process_load=self._clusters.load,
        )
        self.member.draining = self._clusters.draining
        return self.member

    async def _say(self, gossip: Gossip, member_id: MemberId, why: Callable[[], str]) -> None:
        """Send heartbeats. While Redis is away they are lost, and the next one is tried."""
        number = 0
        while True:
            number += 1
            heartbeat = self._heartbeat(member_id, sequence=number, waits_for=why()[:MAX_WHY_CHARS])
            try:
                if not await gossip.beat(heartbeat):
                    log.error(
                        "another process of the cluster uses node id %s",
                        heartbeat.node_id,
                        extra={"action": "identity-conflict"},
                    )
            except BusError as error:
                log.debug("a heartbeat is lost: %s", error)
            await asyncio.sleep(heartbeat.heartbeat_ms / 1000)

    def _heartbeat(
        self, member_id: MemberId, *, sequence: int = 0, lineage: Lineage | None = None, waits_for: str | None = None
    ) -> Heartbeat:
        return least_heartbeat(
            self.settings,
            self._host,
            member_id,
            state="starting",
            sequence=sequence,
            lineage=lineage,
            zone=self.settings.zone or None,
            checkpoint=masked_location(self.settings.checkpoint),
            waits_for=waits_for,
        )

    def _new_id(self) -> MemberId:
        return MemberId(self.settings.node_id or f"{self._host.host}-{self._host.port}", uuid.uuid4().hex)

    def _auth(self, member_id: MemberId) -> MessageAuth:
        return self.settings.message_auth(self.settings.application, sender=member_id.node_id)

    def _gossip(self, auth: MessageAuth, bus: Bus | None = None) -> Gossip:
        return Gossip(bus or self._clusters.bus, self.settings.application, auth)
