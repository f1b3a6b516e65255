"""Runs the assignor while this node holds the lease in Redis, under a term.

Redis checks each write again, so it refuses a holder of the lease that was paused. This module decides when to wait:
nodes that start together should share the tasks from the beginning, a Redis that lost its data must not look like an
empty cluster, and a node that does not know the others' assignment leaves the lease to one that does.

A node is away if it has a place in the assignment, does not live, and may come back within a delay. Every node measures
the delay, not only the assigning one, so that it does not restart when the lease changes hands. A node that starts
later measures from its own start.

Weights are levelled by exchanges of two tasks. Applications check the weights at different times, so that each sees
what the others moved, and begin at most one exchange at a time, while the assignment is at rest. The exchange is an
input of the assignor until it is complete, nodes join, leave or drain, or another node assigns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from understudy_node.cluster.assignor import Assignor, Holdings, Member, members_of
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.weights import UNWEIGHED, Weighed, next_exchange, weights_of
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.base.clock import Clock
from understudy_shared.base.plausible import is_later
from understudy_shared.bus.base import BusError, Fence
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat, Gossip
from understudy_shared.bus.messages import AssignedTask, Assignment, Heartbeat

log = logging.getLogger(__name__)

LEASE_HEARTBEATS = 2
"""Expiry of the lease in heartbeats. The others try once per heartbeat, so a dead holder is replaced within three."""

LOOK_AGAIN_HEARTBEATS = 30
"""Heartbeats between two checks that Redis still has the assignment: a starting node reads it there, and no message
shows that it was deleted or damaged.
"""


LOOK_MS: Final = 120_000


class TaskSet(NamedTuple):
    """All tasks of one layout of one lineage, by their keys."""

    lineage: str
    partitions: int
    keys: Sequence[str]


class Weighing:
    """The weights that one assignor uses, measured from time to time. Its methods never run at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._random = random.Random()  # noqa: S311  # jitter
        self._look_again_ms = float("-inf")
        self._last = UNWEIGHED
        self._circumstances: object = None
        """The term, nodes and tasks that an exchange is for."""
        self._zones: Mapping[str, str] | None = None
        """The nodes that may exchange; None while one is away or drains."""
        self._is_due = False
        """Whether the assignment has not been at rest since the weights were last measured."""

    def look(
        self,
        heartbeats: Iterable[Heartbeat],
        members: Sequence[Member],
        away: Sequence[Member],
        tasks: TaskSet,
        term: int,
    ) -> Weighed:
        """Return the weights, measured again if that is due, and the exchange in progress."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + self._random.uniform(0.5, 1.5) * LOOK_MS
            self._is_due = True
            self._last = Weighed(self._last.look + 1, weights_of(heartbeats, len(tasks.keys)), self._last.exchange)
        if self._circumstances != (circumstances := (term, members, away, tasks)):
            self._circumstances = circumstances
            is_steady = not away and not any(member.draining for member in members)
            self._zones = {member.node_id: member.zone for member in members} if is_steady else None
            self._last = self._last._replace(exchange=None)
        return self._last

    def no_step_left(self, tasks: Mapping[str, AssignedTask]) -> bool:
        """Note that the assignor has no step left in this assignment. Return whether an exchange begins.

        While a replica warms up, an exchange in progress continues.
        """
        if any(each.warmups for each in tasks.values()):
            return False
        exchange, zones = None, self._zones
        if self._is_due and zones is not None and all(zones.keys() >= set(each.holders) for each in tasks.values()):
            exchange = next_exchange(tasks, zones, self._last.weights)
        self._is_due = False
        self._last = self._last._replace(exchange=exchange)
        return exchange is not None


class Away:
    """The nodes that keep a place, and for how long. Call `of` at every heartbeat."""

    def __init__(self, rebalance_delay_ms: int) -> None:
        self._rebalance_delay_ms = rebalance_delay_ms
        self._since_ms: dict[str, float] = {}
        """The time since which each node of the assignment is not a member."""
        self._last: dict[str, Member] = {}
        """Members, and the missing nodes as they were when last members."""

    def of(
        self, known: Assignment, members: Sequence[Member], nodes: Sequence[AgedHeartbeat], now_ms: float
    ) -> list[Member]:
        """Return the nodes that are away and keep their place, by node id.

        `members` may be given tasks; the rest of `nodes` lives, too. A drained node keeps no place, nor does a live
        one that follows another checkpoint. A leaving node keeps its place while its heartbeats announce its
        departure.
        """
        alive = {member.node_id: member for member in members}
        missing = sorted(known.holders - alive.keys())
        self._since_ms = {node_id: self._since_ms.get(node_id, now_ms) for node_id in missing}
        before = self._last
        self._last = {
            node_id: before.get(node_id, Member(node_id, draining=node_id in known.draining)) for node_id in missing
        } | alive
        beats = [each.heartbeat for each in nodes]
        elsewhere = {beat.node_id for beat in beats if beat.lineage not in (None, known.lineage)}
        leaving = {beat.node_id for beat in beats if beat.leaving}
        return [
            self._last[node_id]
            for node_id in missing
            if (node_id in leaving or now_ms - self._since_ms[node_id] < self._rebalance_delay_ms)
            and not self._last[node_id].draining
            and node_id not in elsewhere
        ]


class Leadership:
    """One node's part in assigning. Only the node's beat calls it, never two tasks at once."""

    def __init__(self, gossip: Gossip, settings: ClusterNodeSettings, member_id: MemberId, *, clock: Clock) -> None:
        self.fence: Fence | None = None
        """The lease, while this node assumes that it holds it."""
        self._gossip = gossip
        self._settings = settings
        self._node_id = member_id.node_id
        self._owner = str(member_id)
        self._heartbeat_ms = settings.lag_refresh_ms
        self._expiry_ms = EXPIRY_HEARTBEATS * self._heartbeat_ms
        self._clock = clock
        self._known: Assignment | None = None
        self._stored: Assignment | None = None
        """The assignment in Redis; only meaningful if `_has_read`."""
        self._has_read = False
        self._read_ms = float("-inf")
        self._quiet_until_ms = float("-inf")
        self._behind_since_ms: float | None = None
        self._first_seen: tuple[str, float] | None = None
        """The lineage that waits for its first assignment, and the time since which it waits."""
        self._at_rest: object = None
        """The inputs of the last decision that changed nothing."""
        self._said_at_rest: object = None
        """The parts of the heartbeats that these inputs were made from; None if the inputs must be made again."""
        self._holdings = Holdings(settings.acceptable_recovery_lag)
        self._assignor = Assignor(
            num_standby_replicas=settings.num_standby_replicas,
            max_warmup_replicas=settings.max_warmup_replicas,
            application_id=gossip.application_id,
        )
        self._away = Away(settings.rebalance_delay_ms)
        self._weighing = Weighing(clock)

    def bus_came_back(self) -> None:
        """Forbid assignments for one expiry: the bus was away, and live nodes may not have sent a heartbeat yet."""
        self._quiet_until_ms = self._clock.monotonic_ms() + self._expiry_ms
        self._has_read = False

    def forget(self) -> None:
        """Forget the known assignment: it was forged."""
        self._known, self._has_read, self._behind_since_ms, self._said_at_rest = None, False, None, None

    async def give_up(self) -> None:
        """Give the lease up, so that another node assigns. Raises BusError; the lease is forgotten even then."""
        fence, self.fence = self.fence, None
        if fence is not None:
            await self._gossip.give_lease_up(fence)

    async def turn(
        self,
        *,
        nodes: Sequence[AgedHeartbeat],
        tasks: TaskSet | None,
        highest: tuple[int, int],
        known: Assignment | None,
        began_ms: float,
        unasked: Sequence[str] = (),
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> Assignment | None:
        """Take or keep the lease, and write a new assignment if a step is due. Called at every heartbeat.

        `nodes` are the live ones, this node among them. `highest` is the highest (term, epoch) that any node
        reported, `known` the assignment that this node follows; all are as of `began_ms`, when this heartbeat began.
        Nothing is assigned while there are `unasked` members: silent ones that have not yet failed to answer a
        request. The assignor may take many heartbeats: `meanwhile` is called at each. Returns the written
        assignment. Raises BusError.
        """
        self._learn(known)
        members = [] if tasks is None else members_of(nodes, tasks.lineage)
        away = [] if self._known is None else self._away.of(self._known, members, nodes, self._clock.monotonic_ms())
        if tasks is None or self._node_id not in {member.node_id for member in members}:
            await self.give_up()
            return None
        try:
            if not await self._may_assign(highest) or unasked or self._waits(nodes, tasks.lineage, highest):
                return None
            if self._clock.monotonic_ms() - began_ms >= self._heartbeat_ms:
                return None  # delayed: `highest` may be outdated
            return await self._assign(nodes, members, away, tasks, highest, meanwhile=meanwhile)
        except BusError:
            self._has_read = False  # it is unknown whether the write succeeded
            raise

    @property
    def _order(self) -> tuple[int, int]:
        return (0, 0) if self._known is None else self._known.order

    @property
    def _has_stored_known(self) -> bool:
        return self._stored is not None and self._stored.order == self._order

    def _learn(self, assignment: Assignment | None) -> None:
        if assignment is not None and is_later(assignment.order, self._order):
            self._known, self._said_at_rest = assignment, None
            self._holdings.follow(assignment)

    async def _may_assign(self, highest: tuple[int, int]) -> bool:
        """Whether this node has the lease and knows the others' assignment."""
        if highest > self._order:
            self._learn(await self._gossip.assignment())
        if self._is_behind(highest):
            await self.give_up()
            return False
        above = max(highest[0], self._order[0])
        await self._keep_lease(above)
        if self.fence is None and not await self._take_lease(above):
            return False
        now_ms = self._clock.monotonic_ms()
        if not self._has_read or now_ms - self._read_ms >= LOOK_AGAIN_HEARTBEATS * self._heartbeat_ms:
            self._stored = await self._gossip.assignment()
            self._learn(self._stored)
            self._has_read, self._read_ms = True, now_ms
        return True

    def _is_behind(self, highest: tuple[int, int]) -> bool:
        """Whether a node follows an assignment that is unknown here; after one expiry it counts as lost."""
        now_ms = self._clock.monotonic_ms()
        if highest <= self._order:
            self._behind_since_ms = None
            return False
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        return now_ms - self._behind_since_ms < self._expiry_ms

    async def _keep_lease(self, above: int) -> None:
        """Renew the lease. Give it up if its term is below `above`."""
        fence = self.fence
        if fence is None:
            return
        if fence.term < above:
            await self.give_up()
        elif not await self._gossip.keep_lease(fence, expiry_ms=LEASE_HEARTBEATS * self._heartbeat_ms):
            self.fence = None
            log.warning("lost the lease of term %d", fence.term, extra={"action": "lease-lost", "term": fence.term})

    async def _take_lease(self, above: int) -> bool:
        expiry_ms = LEASE_HEARTBEATS * self._heartbeat_ms
        fence = await self._gossip.take_lease(self._owner, above=above, expiry_ms=expiry_ms)
        if fence is None:
            return False
        self.fence, self._has_read = fence, False
        log.info("assigns under term %d", fence.term, extra={"action": "lease-taken", "term": fence.term})
        return True

    def _waits(self, nodes: Sequence[AgedHeartbeat], lineage: str, highest: tuple[int, int]) -> bool:
        """Whether it is too early to assign: a node may be about to send its first heartbeat."""
        now_ms = self._clock.monotonic_ms()
        is_known = self._known is not None or highest > (0, 0)
        if is_known and now_ms < self._quiet_until_ms:
            return True
        if self._known is not None and self._known.lineage == lineage:
            return False
        if self._first_seen is None or self._first_seen[0] != lineage:
            self._first_seen = (lineage, now_ms)
        all_follow = all(each.heartbeat.lineage == lineage and each.heartbeat.state != "starting" for each in nodes)
        return now_ms - self._first_seen[1] < (self._heartbeat_ms if all_follow else self._expiry_ms)

    async def _assign(
        self,
        nodes: Sequence[AgedHeartbeat],
        members: Sequence[Member],
        away: Sequence[Member],
        tasks: TaskSet,
        highest: tuple[int, int],
        *,
        meanwhile: Callable[[], Awaitable[None]] | None,
    ) -> Assignment | None:
        fence = self.fence
        assert fence is not None, "only the holder of the lease assigns"
        epoch = max(self._order[1], highest[1]) + 1
        # In a thread: thousands of tasks would delay lookups.
        work = asyncio.to_thread(self._next, nodes, members, away, tasks, (fence.term, epoch))
        found = await self._while_keeping_lease(work, fence.term, meanwhile)
        if found is None:
            return None
        if not await self._gossip.write_assignment(found, fence, self._stored):
            log.warning(
                "the assignment was refused: term %d is over",
                found.term,
                extra={"action": "assign-refused", "term": found.term},
            )
            await self.give_up()
            return None
        self._stored = found
        self._learn(found)
        log.info("assigned %d.%d", *found.order, extra={"action": "assign", "term": found.term, "epoch": found.epoch})
        return found

    async def _while_keeping_lease(
        self, work: Awaitable[Assignment | None], term: int, meanwhile: Callable[[], Awaitable[None]] | None
    ) -> Assignment | None:
        """Return the result of work that may take longer than the lease is valid.

        Raises BusError after the work, never before: two threads must not work at once.
        """
        task, error = asyncio.ensure_future(work), None
        try:
            while not (await asyncio.wait((task,), timeout=self._heartbeat_ms / 1000))[0]:
                try:
                    await self._keep_lease(term)
                    if meanwhile is not None:
                        await meanwhile()
                except BusError as failed:
                    error = failed
        finally:
            task.cancel()
        if error is not None:
            raise error
        return task.result()

    def _next(
        self,
        nodes: Sequence[AgedHeartbeat],
        members: Sequence[Member],
        away: Sequence[Member],
        tasks: TaskSet,
        order: tuple[int, int],
    ) -> Assignment | None:
        """Return the next assignment; None if Redis has it already. Reads only state that the waiting turn changes."""
        # The two early returns compare inputs that are derived further each time: heartbeats without news cost
        # no search. Each step needs the results of the one before, which is why they are in one function.
        weighed = self._weighing.look([each.heartbeat for each in nodes], members, away, tasks, order[0])
        said = (tasks, members, away, weighed, [_said(each.heartbeat) for each in nodes])
        if self._has_stored_known and said == self._said_at_rest:
            return None  # usual between two commits: thousands of tasks are not compared
        known = self._known
        endpoints = {each.heartbeat.node_id: each.heartbeat.endpoint for each in nodes}
        changed = self._holdings.look(nodes, {member.node_id for member in members}, tasks.lineage, tasks.partitions)
        question = (self._order, tasks, endpoints, members, away, weighed)
        if self._has_stored_known and not changed and question == self._at_rest:
            self._said_at_rest = said
            return None
        assigned = self._assignor.assign(
            members,
            tasks.keys,
            known.tasks if known is not None and known.lineage == tasks.lineage else {},
            self._holdings,
            away=away,
            changed=changed,
            weighed=weighed,
        )
        named = {node_id for task in assigned.values() for node_id in task.holders}
        found = Assignment(
            application_id=self._gossip.application_id,
            term=order[0],
            epoch=order[1],
            written_by=self._node_id,
            lineage=tasks.lineage,
            partitions=tasks.partitions,
            tasks=assigned,
            members={node_id: endpoints[node_id] for node_id in sorted(named & endpoints.keys())},
            draining=sorted(member.node_id for member in members if member.draining),
        )
        if self._has_stored_known and self._stored is not None and says_the_same(self._stored, found):
            if not self._weighing.no_step_left(found.tasks):
                self._at_rest, self._said_at_rest = question, said
            return None
        return found


def _said(heartbeat: Heartbeat) -> tuple[object, ...]:
    """Return the parts of a heartbeat that an assignment depends on, other than the members: all but ages and
    numbers.
    """
    applied = heartbeat.applied
    return (
        heartbeat.node_id,
        heartbeat.endpoint,
        heartbeat.lineage,
        heartbeat.partitions,
        heartbeat.end_version,
        (heartbeat.term, heartbeat.epoch),
        heartbeat.held,
        (applied.version, applied.state),
        heartbeat.exceptions,
    )


def says_the_same(one: Assignment, other: Assignment) -> bool:
    said = Assignment.model_fields.keys() - {"term", "epoch", "written_by"}
    return all(getattr(one, name) == getattr(other, name) for name in said)
