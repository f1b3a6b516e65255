"""A node's membership in its cluster: composes its beat, its messages, its listening, and its assignment.

One background task sends heartbeats (and assigns, while this node has the lease), one listens; the others ask nodes
and write files. No task blocks a lookup. While the bus is away the node keeps its last assignment and reports itself
degraded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from understudy_node.cluster.beat import Beat
from understudy_node.cluster.bus_state import BusState
from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.following import AssignmentFollower
from understudy_node.cluster.heartbeat import MemberId, MemberStatus, State
from understudy_node.cluster.history_check import HistoryCheck
from understudy_node.cluster.listening import NodeListener
from understudy_node.cluster.load import LoadMeter, ProcessLoad
from understudy_node.cluster.neighbour_applications import log_other_applications
from understudy_node.cluster.neighbours import Neighbours
from understudy_node.cluster.own_messages import OwnMessages
from understudy_node.cluster.peer_polling import poll_silent_members
from understudy_node.cluster.placement import Placement
from understudy_node.cluster.remembering import Remembering
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.node import Node
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.masking import masked
from understudy_shared.base.supervise import Supervisor
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Assignment, Catalogue, Heartbeat
from understudy_shared.cluster.follower import ClusterFollower
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.remembered import Memory, Remembered
from understudy_shared.cluster.seeds import parse_seeds

log = logging.getLogger(__name__)


class ClusterMember:
    """One node in the cluster of its application: the companion of its `Node` (see `understudy_node.http.app`)."""

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
        assignment is not kept. `identity` authenticates this node to other nodes. `process_load` is that of a process
        with several applications, where the bus of `gossip` stays open when this member stops: the others use it.
        None: the member is alone in its process.

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
        self._changed = asyncio.Event()
        self._bus_state = BusState()
        self._calls = NodeCalls(settings.application, gossip.auth, identity)
        self._neighbours = Neighbours(
            self.node_id, refuse=gossip.refuse, history=lambda: (node.lineage, node.end.version)
        )
        self._context = context = MemberContext(
            node=node,
            gossip=gossip,
            calls=self._calls,
            neighbours=self._neighbours,
            bus_state=self._bus_state,
            changed=self._changed,
            member_id=member_id,
            heartbeat_ms=settings.lag_refresh_ms,
            clock=clock,
        )
        self._placement = Placement(gossip, settings, member_id, clock=clock)
        self._check = HistoryCheck(context)
        self._memory = Memory(remembered)
        self._follower = AssignmentFollower(context, self._memory, check=self._check)
        self._load = LoadMeter(node, process_load or ProcessLoad())
        self._own = OwnMessages(context, zone=settings.zone, load=self._load)
        self._remembering = Remembering(
            context, self._memory, seeds=parse_seeds(settings.seed), take=self._follower.follow
        )
        listener = NodeListener(
            context,
            follower=self._follower,
            remembering=self._remembering,
            own=self._own,
            bus_came_back=self._placement.bus_came_back,
        )
        self.cluster = ClusterFollower(
            gossip, self._neighbours, listener, heartbeat_ms=lambda: context.heartbeat_ms, clock=clock
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
        """Start the background tasks, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks.start("listen", self.cluster.run())
        self._tasks.start("beat", self.beat.run())
        polling = poll_silent_members(self._context, assigns=lambda: self.has_lease, take=self._remembering.offer)
        self._tasks.start("ask nodes that are silent", polling)
        self._tasks.start("remember", self._memory.keep())
        self._tasks.start("go on without the bus", self.cluster.go_on_without_the_bus())
        if self._is_alone:
            others = log_other_applications(self.gossip, where=self._shown_redis)
            self._tasks.start("look for other applications", others)

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
        await self._calls.close()
        await self._memory.flush()

    @property
    def assignment(self) -> Assignment | None:
        """The assignment that this node follows; None before there is one."""
        return self._neighbours.assignment

    @property
    def has_lease(self) -> bool:
        """Whether this node has the lease to assign."""
        return self._placement.fence is not None

    @property
    def refused(self) -> Mapping[str, int]:
        """Documents from the bus that were not used, by kind."""
        return self.gossip.refused

    @property
    def dead(self) -> str | None:
        """The reason why this process cannot go on, None while it can."""
        return self._tasks.dead

    def causes(self) -> Mapping[str, str]:
        """Return which functions of the cluster fail although lookups work, and why, by cause."""
        return {
            **self._bus_state.causes,
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
        self._changed.set()

    def drain(self, draining: bool) -> None:
        """Have the cluster move this node's tasks away, or cancel that."""
        if draining != self.draining:
            log.warning("draining" if draining else "draining no more", extra={"action": "drain", "drain": draining})
        self.draining = draining
        self._changed.set()

    def heartbeat(self) -> Heartbeat:
        """Return the next heartbeat, of the present state."""
        degraded = sorted({**self.node.causes(), **self.causes()})
        status = MemberStatus(self._state(), self._neighbours.order, self.beat.leaving, degraded, self._check.found)
        return self._own.heartbeat(status)

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """Return the digest and the catalogue of the served generation; None before there is one."""
        return self._own.catalogue()

    def _state(self) -> State:
        if self.beat.has_failed or self.node.dead or self._tasks.dead or self.beat.has_rival:
            return "failed"
        if self.beat.outvoted or self._check.refused:
            return "failed"
        if self.draining:
            return "draining"
        return "starting" if self.node.generation is None else "serving"
