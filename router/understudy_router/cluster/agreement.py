"""The agreement between the assignment that a router knows and the one that its nodes follow.

The bus may have lost its keys, and what is remembered may be of a cluster that is gone. Then the nodes know better.
"""

from __future__ import annotations

import asyncio
import logging

from understudy_router.cluster.catalogue_follower import CatalogueFollower
from understudy_router.cluster.remembering import RouterMemory, is_from_previous_cluster
from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.polling import Polls

log = logging.getLogger(__name__)


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
        """Agree with the nodes, which `polls` ask, after the keys were read. The bus is listened to meanwhile: a node
        may hang.
        """
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
        They are a new cluster then: the old one lost its disks and Redis its keys. Looks once for each heartbeat.
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
