"""Finds the assignment for a start without the bus: the node's own last one, else that of a node it can ask.

Only an assignment of the checkpoint's lineage that is later than the one in use is followed, so it never replaces
that of the bus. Its (term, epoch) still counts after Redis lost its data.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection

from understudy_node.node import Node
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.remembered import Memory, Remembered

log = logging.getLogger(__name__)

MAX_ASKED = 16
"""Most nodes asked at the same time."""


class Remembering:
    """The remembered assignment of one node. `take` receives assignments, and may refuse them."""

    def __init__(
        self,
        node: Node,
        calls: NodeCalls,
        *,
        remembered: Remembered | None,
        seeds: Collection[HostInfo],
        heartbeat_ms: int,
        take: Callable[[Assignment], None],
    ) -> None:
        """Set the sources. `remembered` is the folder for assignments; without one they are not kept."""
        self._node = node
        self._memory = None if remembered is None else Memory(remembered)
        self._seeds = frozenset(seeds)
        self._heartbeat_ms = heartbeat_ms
        self._take = take
        self._calls = calls
        self._asks = asyncio.Semaphore(MAX_ASKED)
        self._random = random.Random()  # noqa: S311  # jitter
        self._away = asyncio.Event()
        self._settled = False
        self._recalled = False
        self._refused = ""
        self._members: frozenset[HostInfo] = frozenset()
        """The nodes of the remembered assignment."""

    def note(self, assignment: Assignment) -> None:
        """Keep an assignment for the next start."""
        if self._memory is not None:
            self._memory.note(assignment)

    def bus_is_away(self) -> None:
        """Note that a call to the bus failed. If the bus was never reached, ask other nodes."""
        if not self._settled:
            self._away.set()

    async def bus_is_there(self, stored: Assignment | None) -> None:
        """Note that the bus was read, and `stored` is its assignment. The remembered one counts if it is not older."""
        if not self._settled:
            self._settled = True
            self._away.clear()
            await self._recall(stored)

    async def keep(self) -> None:
        """Write noted assignments, until cancelled."""
        if self._memory is None:
            await asyncio.Event().wait()
        else:
            await self._memory.keep()

    async def go_on_without_the_bus(self) -> None:
        """Load the remembered assignment, and ask other nodes once per heartbeat until one answers or the bus does."""
        while True:
            await self._away.wait()
            await self._recall()
            if await self._ask_others():
                self._away.clear()
                self._settled = True
            else:
                await asyncio.sleep(self._heartbeat_ms * self._random.uniform(0.8, 1.2) / 1000)

    async def close(self) -> None:
        """Write the assignment that still waits, after the tasks have ended."""
        if self._memory is not None:
            await self._memory.flush()

    async def _recall(self, stored: Assignment | None = None) -> None:
        if self._recalled or self._memory is None:
            return
        self._recalled = True
        remembered = await self._memory.load(Assignment)
        if remembered is not None:
            self._members = frozenset(endpoint.host_info() for endpoint in remembered.members.values())
            if stored is None or not is_later(stored.order, remembered.order):
                self._offer(remembered, "remembered")

    async def _ask_others(self) -> bool:
        """Ask seeds and remembered nodes. Return whether one of them has an assignment of this lineage."""
        hosts = (self._seeds | self._members) - {self._node.host}
        assignments = await asyncio.gather(*(self._ask(host) for host in hosts))
        taken = [self._offer(assignment, "of another node") for assignment in assignments if assignment is not None]
        return any(taken)

    async def _ask(self, host: HostInfo) -> Assignment | None:
        async with self._asks:
            try:
                return await self._calls.assignment(host)
            except UnderstudyError as error:
                log.debug("%s", error, extra={"action": "ask-failed"})
                return None

    def _offer(self, assignment: Assignment, how: str) -> bool:
        """Take an assignment if it is of the lineage that this node follows."""
        lineage = self._node.lineage
        if assignment.lineage != lineage:
            why = f"is of lineage {assignment.lineage}; the checkpoint's is {lineage}"
            if why != self._refused:
                log.warning("assignment %d.%d, %s, %s", *assignment.order, how, why, extra={"action": "other-lineage"})
            self._refused = why
            return False
        self._take(assignment)
        return True
