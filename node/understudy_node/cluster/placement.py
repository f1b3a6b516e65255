"""Who assigns: whichever node has the lease, under a term that Redis checks at every write.

`turn` is called with every heartbeat. All that decides is pure (`assignor.assign`); this takes and keeps the lease,
gathers what the decision needs, and writes what is new. It never writes because it believes that it has the lease: the
bus compares the fence in the same step, and a refusal means that the office is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from understudy_node.cluster.assignor import Member, Replica, assign
from understudy_shared.bus.base import BusError, Fence
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Gossip, Seen
from understudy_shared.clock import Clock
from understudy_shared.messages import Applied, AssignedTask, Assignment, Heartbeat

log = logging.getLogger(__name__)

Layout = tuple[str, int, Sequence[str]]
"""Lineage, shuffle partitions, and the tasks."""

MAX_RECENT = 8
"""Assignments remembered to understand heartbeats of nodes that have not heard of the last one."""

_MEMBER_STATES = frozenset({"serving", "draining"})


class Placement:
    """The office of assigning, as one node sees it."""

    def __init__(
        self,
        gossip: Gossip,
        *,
        node_id: str,
        incarnation: str,
        heartbeat_ms: int,
        num_standby_replicas: int,
        max_warmup_replicas: int,
        acceptable_recovery_lag: int,
        clock: Clock,
    ) -> None:
        self.fence: Fence | None = None
        self._gossip = gossip
        self._node_id = node_id
        self._owner = f"{node_id}/{incarnation}"
        self._heartbeat_ms = heartbeat_ms
        self._expiry_ms = heartbeat_ms * EXPIRY_HEARTBEATS
        self._num_standby_replicas = num_standby_replicas
        self._max_warmup_replicas = max_warmup_replicas
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._clock = clock
        self._quiet_until_ms = 0.0
        self._first_member_ms: float | None = None
        self._recent: dict[tuple[int, int], Assignment] = {}
        self._written_ms = -self._expiry_ms * 1.0

    def bus_came_back(self) -> None:
        """The bus was away: nodes may not have registered yet, so nothing is assigned for one expiry."""
        self._quiet_until_ms = self._clock.monotonic_ms() + self._expiry_ms

    async def give_up(self) -> None:
        """Let somebody else assign."""
        fence, self.fence = self.fence, None
        if fence is not None:
            await self._gossip.give_lease_up(fence)

    async def turn(
        self, *, nodes: Sequence[Seen], layout: Layout | None, highest: tuple[int, int], known: Assignment | None
    ) -> Assignment | None:
        """Take or keep the lease, and write the next assignment if there is one. Raises BusError."""
        if layout is None:
            return None
        try:
            stored = await self._gossip.assignment() if self.fence is None else known
            latest = _latest(stored, known)
            self._remember(latest)
            top = max(highest, (0, 0) if latest is None else latest.order)
            await self._hold(top[0])
            if self.fence is None or not self._may_assign(nodes, latest, top):
                return None
            return await self._write(nodes, layout, latest, top)
        except BusError:
            self.fence = None
            raise

    async def _hold(self, above: int) -> None:
        """Keep the lease, or try to take it."""
        if self.fence is not None and not await self._gossip.keep_lease(self.fence, expiry_ms=self._expiry_ms):
            log.warning("the lease is another's now", extra={"action": "lease-lost"})
            self.fence = None
        if self.fence is None:
            self.fence = await self._gossip.take_lease(self._owner, above=above, expiry_ms=self._expiry_ms)
            if self.fence is not None:
                log.info("this node assigns now", extra={"action": "lease-taken", "term": self.fence.term})

    def _may_assign(self, nodes: Sequence[Seen], latest: Assignment | None, top: tuple[int, int]) -> bool:
        """Whether who is there is known well enough. Nodes that start together are to share from the beginning."""
        now_ms = self._clock.monotonic_ms()
        if latest is None and top == (0, 0):
            if self._first_member_ms is None and any(_is_member(seen.heartbeat) for seen in nodes):
                self._first_member_ms = now_ms
            starting = any(seen.heartbeat.state == "starting" for seen in nodes)
            if self._first_member_ms is None:
                return False
            waited_ms = now_ms - self._first_member_ms
            return waited_ms >= (self._expiry_ms if starting else self._heartbeat_ms)
        if now_ms < self._quiet_until_ms:
            return False
        # One step at a time: what follows is decided when everybody has taken up the last one, or had time enough.
        followed = latest is not None and all(
            (seen.heartbeat.term, seen.heartbeat.epoch) == latest.order
            for seen in nodes
            if _is_member(seen.heartbeat) and seen.heartbeat.node_id in latest.members
        )
        return followed or now_ms - self._written_ms >= self._expiry_ms

    def _remember(self, assignment: Assignment | None) -> None:
        """Heartbeats speak of the assignment that their node follows, which may be the one before."""
        if assignment is not None and assignment.order not in self._recent:
            self._recent[assignment.order] = assignment
            while len(self._recent) > MAX_RECENT:
                del self._recent[min(self._recent)]

    async def _write(
        self, nodes: Sequence[Seen], layout: Layout, latest: Assignment | None, top: tuple[int, int]
    ) -> Assignment | None:
        assert self.fence is not None
        lineage, partitions, tasks = layout
        members = [seen.heartbeat for seen in nodes if _is_member(seen.heartbeat) and seen.heartbeat.lineage == lineage]
        if not members:
            return None
        same = latest is not None and (latest.lineage, latest.partitions) == (lineage, partitions)
        previous: Mapping[str, AssignedTask] = latest.tasks if latest is not None and same else {}
        found = assign(
            [Member(beat.node_id, beat.zone or "", beat.state == "draining") for beat in members],
            tasks,
            previous,
            _held(members, tasks, self._recent, self._acceptable_recovery_lag),
            num_standby_replicas=self._num_standby_replicas,
            max_warmup_replicas=self._max_warmup_replicas,
        )
        draining = sorted(beat.node_id for beat in members if beat.state == "draining")
        if latest is not None and same and found == dict(latest.tasks) and draining == latest.draining:
            return None
        assignment = Assignment(
            application_id=self._gossip.application_id,
            term=self.fence.term,
            epoch=top[1] + 1,
            written_by=self._node_id,
            lineage=lineage,
            partitions=partitions,
            tasks=found,
            members={beat.node_id: beat.endpoint for beat in members},
            draining=draining,
        )
        if await self._gossip.write_assignment(assignment, self.fence):
            self._written_ms = self._clock.monotonic_ms()
            return assignment
        log.warning("an assignment was refused: the lease is another's", extra={"action": "lease-lost"})
        self.fence = None
        return None


def _latest(*assignments: Assignment | None) -> Assignment | None:
    return max((each for each in assignments if each is not None), key=lambda each: each.order, default=None)


def _is_member(heartbeat: Heartbeat) -> bool:
    """Whether a node may be given tasks."""
    return heartbeat.state in _MEMBER_STATES and heartbeat.lineage is not None


def _held(
    members: Sequence[Heartbeat],
    tasks: Sequence[str],
    recent: Mapping[tuple[int, int], Assignment],
    acceptable_recovery_lag: int,
) -> dict[str, list[Replica]]:
    """What the nodes say they have, by task."""
    end = max((beat.end_version for beat in members), default=0)
    held: dict[str, list[Replica]] = {task: [] for task in tasks}
    for beat in members:
        for task in tasks:
            applied = _applied(beat, task, recent.get((beat.term, beat.epoch)))
            if applied is not None and applied.version is not None:
                caught_up = end - applied.version <= acceptable_recovery_lag
                held[task].append(Replica(beat.node_id, caught_up, applied.version))
    return held


def _applied(beat: Heartbeat, task: str, followed: Assignment | None) -> Applied | None:
    """How far a node is with a task; None when it says nothing about it."""
    if task in beat.exceptions:
        return beat.exceptions[task]
    if beat.held is not None:
        return beat.applied if task in beat.held else None
    duty = None if followed is None else followed.tasks.get(task)
    return beat.applied if duty is not None and beat.node_id in duty.holders else None
