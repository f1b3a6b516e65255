"""The beat of a node: at each turn it sends a heartbeat, judges the heartbeats that it received, and assigns while
it has the lease.

It decides whether this node may act for its application: not while another process uses its node id, most nodes follow
another checkpoint, the cluster follows another history of it, or it is leaving, and not before it has read the bus.

Only nodes that may assign need to hear all heartbeats. In a large cluster every node that hears all heartbeats costs
Redis a thousand messages a second. So apart from the node with the lease only a few listen, ready to take the lease:
the first by a hash of the ids, which spreads them over zones and machines. The others keep what they know of the nodes,
and read the keys from time to time. That shows them that they follow another checkpoint or history than the others, or
that all listening nodes are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import zlib
from collections.abc import Callable, Collection

from pydantic import ValidationError

from understudy_node.cluster.assignor import duties_of
from understudy_node.cluster.context import MemberContext, outvoted
from understudy_node.cluster.heartbeat import OwnMessages
from understudy_node.cluster.history_check import HistoryCheck
from understudy_node.cluster.leader import Leadership, TaskSet
from understudy_shared.bus.base import BusError, BusRefusedError
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.follower import ClusterFollower
from understudy_shared.cluster.without_bus import Memory

log = logging.getLogger(__name__)


class AssignmentFollower:
    """The assignment that this node follows, from `neighbours`. `memory` keeps it for the next start."""

    def __init__(self, context: MemberContext, memory: Memory, *, check: HistoryCheck) -> None:
        self._memory = memory
        self._node = context.node
        self._gossip = context.gossip
        self._neighbours = context.neighbours
        self._node_id = context.node_id
        self._heartbeat_ms = context.heartbeat_ms
        self._check = check
        self._changed = context.changed
        self._applied: tuple[object, ...] = ()
        self._ahead_since_ms: float | None = None
        """The time when this node's assignment first looked too far ahead of all others."""

    def follow(self, assignment: Assignment) -> None:
        if self._neighbours.follow(assignment):
            self._memory.note(assignment)
            self.apply()
            self._changed.set()

    def apply(self) -> None:
        """Give the node the tasks of its assignment; no tasks if the assignment is of another history."""
        assignment = self._neighbours.assignment
        if assignment is None or not self._check.is_admitted:
            return
        applies = (assignment.order, assignment.lineage == self._node.lineage and self._check.may_hold)
        if applies == self._applied:
            return
        self._applied = applies
        duties = duties_of(assignment.tasks, self._node_id) if applies[1] else {}
        log.info(
            "assignment %d.%d: %d tasks", assignment.term, assignment.epoch, len(duties), extra={"action": "assigned"}
        )
        self._node.assign(duties, partitions=assignment.partitions if applies[1] else None)

    def drop_forged(self, now_ms: float) -> bool:
        """Drop the assignment if all others were far below it for one expiry. Return True if it was dropped."""
        if not self._neighbours.is_far_ahead():
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = now_ms
        elif now_ms - self._ahead_since_ms > EXPIRY_HEARTBEATS * self._heartbeat_ms:
            why = "assignment {}.{} was forged: all others are far below it".format(*self._neighbours.order)
            self._gossip.refuse("assignment", why)
            self._neighbours.assignment, self._ahead_since_ms = None, None
            return True
        return False


MIN_BEAT_GAP_MS = 100
"""Least time between two heartbeats: a new version is published at once, and all tasks of a batch share one message."""

SETTLE_MS = 10
"""Time for a batch to reach all tasks of a node, which takes milliseconds: one heartbeat reports all of them."""

PAUSE_HEARTBEATS = 2
"""The delay of a turn that shows that the process was paused and heard nothing of the others."""

LEAVE_TIMEOUT_S = 1.0
"""Time for the heartbeat that announces the departure; it is due within MIN_BEAT_GAP_MS."""


MAX_LISTENERS = 16
"""The number of nodes that hear all heartbeats: a cluster of so many works as if all did."""

LOOK_HEARTBEATS = 120
"""Heartbeats between two readings of the nodes' keys by a node that does not listen: at a thousand nodes they cost
Redis a thirtieth of a core.
"""

LEASE_LOOK_HEARTBEATS = 10


def is_among_first(node_id: str, nodes: Collection[str], most: int) -> bool:
    """Whether fewer than `most` of the nodes come before this one, by the hash of the ids."""
    own = _rank(node_id)
    return sum(_rank(each) < own for each in nodes) < most


def _rank(node_id: str) -> tuple[int, str]:
    return zlib.crc32(node_id.encode()), node_id


class HeartbeatListening:
    """The choice of one node whether it listens to all heartbeats. Only the node's beat calls it."""

    def __init__(self, context: MemberContext, cluster: ClusterFollower, *, needs_all: Callable[[], bool]) -> None:
        self._context = context
        self._neighbours = context.neighbours
        self._cluster = cluster
        self._needs_all = needs_all
        self._look_ms = self._look_for_lease_ms = float("-inf")
        """The times of the next readings, while this node does not listen."""
        self._was_free = False

    async def turn(self, now_ms: float) -> None:
        """Start or stop listening; without listening, read the keys when that is due. Raises BusError."""
        if self._is_listener():
            self._cluster.hear_heartbeats(True)
            self._look_ms, self._look_for_lease_ms = self._later(now_ms), self._later(now_ms, LEASE_LOOK_HEARTBEATS)
            return
        self._cluster.hear_heartbeats(False)
        self._neighbours.reset_heartbeat_ages(now_ms)  # silence proves nothing here
        if now_ms >= self._look_for_lease_ms:
            self._look_for_lease_ms = self._later(now_ms, LEASE_LOOK_HEARTBEATS)
            is_free = await self._context.gossip.lease_holder() is None
            if is_free and self._was_free:
                self._look_ms = now_ms
            self._was_free = is_free
        if now_ms >= self._look_ms:
            self._look_ms = self._later(now_ms)
            await self._cluster.read_nodes()

    def _is_listener(self) -> bool:
        """Whether this node needs all heartbeats, is one of the first, or has no place in the assignment yet."""
        neighbours, own_id = self._neighbours, self._context.node_id
        assignment = neighbours.assignment
        if assignment is None or own_id not in assignment.members or self._needs_all():
            return True
        return is_among_first(own_id, assignment.members.keys() & neighbours.nodes.keys(), MAX_LISTENERS)

    def _later(self, now_ms: float, heartbeats: int = LOOK_HEARTBEATS) -> float:
        """Return the time after about so many heartbeats: all nodes stop listening at the same assignment."""
        return now_ms + heartbeats * self._context.heartbeat_ms * random.uniform(0.5, 1.5)  # noqa: S311  # jitter


class Beat:
    """The beat of one node. `has_rival` and `outvoted` say why it must not act for its application."""

    def __init__(
        self,
        context: MemberContext,
        *,
        follower: AssignmentFollower,
        check: HistoryCheck,
        own: OwnMessages,
        cluster: ClusterFollower,
        placement: Leadership,
        heartbeat: Callable[[], Heartbeat],
    ) -> None:
        """Set the parts of the beat.

        `heartbeat` builds the next heartbeat; a turn begins once per heartbeat, or on a change.
        """
        self.leaving = False
        self.has_failed = False
        self.has_rival = False
        self.outvoted: str | None = None
        self._context = context
        self._neighbours = context.neighbours
        self._follower = follower
        self._check = check
        self._own = own
        self._cluster = cluster
        self._placement = placement
        self._heartbeat = heartbeat
        self._listening = HeartbeatListening(
            context, cluster, needs_all=lambda: placement.fence is not None or not check.is_admitted
        )
        self._turned_ms = context.clock.monotonic_ms()
        self._has_said_leaving = asyncio.Event()

    async def leave(self) -> None:
        """Announce the departure and give up the lease, within LEAVE_TIMEOUT_S."""
        self.leaving = True
        self._context.changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._has_said_leaving.wait()

    async def run(self) -> None:
        """Run until cancelled. If the beat fails, send a last heartbeat, so that routers and the assignor do not
        wait for the expiry.
        """
        try:
            await self._beat()
        except Exception:
            self.has_failed = True
            with contextlib.suppress(Exception):  # the last heartbeat may fail for the same reason
                await self._context.gossip.beat(self._heartbeat())
                await self._placement.give_up()
            raise

    async def _beat(self) -> None:
        while True:
            started_ms = self._context.clock.monotonic_ms()
            self._context.changed.clear()
            await self.turn()
            gap_ms = MIN_BEAT_GAP_MS - (self._context.clock.monotonic_ms() - started_ms)
            if gap_ms > 0:
                await asyncio.sleep(gap_ms / 1000)
            left_ms = self._context.heartbeat_ms - (self._context.clock.monotonic_ms() - started_ms)
            try:
                async with asyncio.timeout(max(0.0, left_ms) / 1000):
                    await self._context.changed.wait()
                await asyncio.sleep(SETTLE_MS / 1000)
            except TimeoutError:
                pass

    async def turn(self) -> None:
        """Send a heartbeat, and assign if this node holds the lease."""
        now_ms = self._context.clock.monotonic_ms()
        if now_ms - self._turned_ms > PAUSE_HEARTBEATS * self._context.heartbeat_ms:
            self._cluster.require_reading()  # after a pause of this process every node looks dead
        self._turned_ms = now_ms
        await self._cluster.read_if_required()
        self._own.unsaid = None
        await self._check.compare(now_ms, is_current=self._cluster.is_current)
        self._follower.apply()
        own = self._heartbeat()
        try:
            self._note_rival(not await self._context.gossip.beat(own))
            await self._own.write_catalogue(now_ms)
            await self._listening.turn(now_ms)
            self._neighbours.heard(own, age_ms=0, now_ms=now_ms)
            if self._follower.drop_forged(now_ms):
                self._cluster.require_reading()
                self._placement.forget()
            nodes = self._neighbours.proven(self._neighbours.alive(now_ms))
            self.outvoted = outvoted(own, nodes)
            if self._check.judge(own, now_ms):
                self._context.changed.set()  # the next heartbeat reports it, and the tasks change
            await self._place(nodes)
            self._context.bus_state.published(None)
        except BusError as error:
            self._cluster.call_failed()
            self._context.bus_state.published(error)
            self._check.go_on_alone()
            if isinstance(error, BusRefusedError):  # publishing may still work: lag stays known
                with contextlib.suppress(BusError):
                    await self._context.gossip.say(self._heartbeat())
        if own.leaving:
            self._has_said_leaving.set()

    async def _place(self, nodes: list[AgedHeartbeat]) -> None:
        """Assign, if this node may and its view of the cluster can be trusted."""
        is_heard = not self.has_rival and self._context.gossip.auth.missing_key() is None  # by holders of the key
        may_assign = is_heard and not self.outvoted and self._check.may_assign(nodes)
        hears_all = self._cluster.hears_heartbeats and self._cluster.is_current
        if self.leaving or not may_assign or not hears_all:
            await self._placement.give_up()
            return
        try:
            written = await self._placement.turn(
                nodes=self._check.assignable(nodes),
                tasks=self._tasks(),
                highest=self._neighbours.highest(),
                known=self._neighbours.assignment,
                began_ms=self._turned_ms,
                unasked=self._neighbours.unasked(self._context.clock.monotonic_ms()),
                meanwhile=self._beat_meanwhile,
            )
        except ValidationError as error:
            self._own.cannot_say("assignment", error)
            return
        if written is not None:
            self._follower.follow(written)

    async def _beat_meanwhile(self) -> None:
        """Send a heartbeat while the assignor works: this node shows that it lives, and hears the others."""
        self._turned_ms = self._context.clock.monotonic_ms()
        self._note_rival(not await self._context.gossip.beat(self._heartbeat()))

    def _tasks(self) -> TaskSet | None:
        generation = self._context.node.pending or self._context.node.generation
        tasks = self._context.node.tasks()
        if generation is None or not tasks:
            return None
        return TaskSet(generation.lineage, generation.layout.partitions, tasks)

    def _note_rival(self, has_rival: bool) -> None:
        if has_rival and not self.has_rival:
            log.error(
                "another process of the cluster uses node id %s",
                self._context.node_id,
                extra={"action": "identity-conflict"},
            )
        self.has_rival = has_rival
