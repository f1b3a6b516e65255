"""Finds the assignment while the bus is away: the node's own last one, else that of a node it can ask.

Only an assignment of the checkpoint's lineage that is later than the one in use is followed, so it never replaces
that of the bus. Its (term, epoch) still counts after Redis lost its data.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection

from understudy_node.cluster.context import MemberContext
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.polling import Polls
from understudy_shared.cluster.remembered import Memory
from understudy_shared.cluster.silence import ANSWER_DEADLINE_MS

log = logging.getLogger(__name__)


class Remembering:
    """The assignment that one node gets without the bus. `take` receives assignments, and may refuse them."""

    def __init__(
        self,
        context: MemberContext,
        memory: Memory,
        *,
        seeds: Collection[HostInfo],
        take: Callable[[Assignment], None],
    ) -> None:
        """Set the sources: `memory` and the seeds."""
        self._node = context.node
        self._neighbours = context.neighbours
        self._memory = memory
        self._hosts = frozenset(seeds)
        """The nodes to ask at a start: the seeds, and the nodes of the remembered assignment."""
        self._take = take
        self._polls = Polls(context.calls, context.neighbours, heard=self._heard, assigned=self.offer)
        self._random = random.Random()  # noqa: S311  # chooses a node, and needs no secrecy
        self._settled = False
        """Whether the bus was read, or the latest assignment of which a node told, since the start of this process."""
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
