"""Asking the nodes themselves for what the bus does not tell: how they are, and which assignment they follow.

One node that answers is enough: it names the members of its assignment, and these are asked in the same round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection

from understudy_router.cluster.tables import Tables
from understudy_shared.errors import UnderstudyError
from understudy_shared.http.node_calls import NodeCalls
from understudy_shared.messages import Assignment, Heartbeat
from understudy_shared.words import HostInfo

log = logging.getLogger(__name__)

MAX_POLLS = 16
"""Nodes asked at the same time."""


class Polls:
    """Asks nodes; what they say goes to `heard` and `assigned`."""

    def __init__(
        self,
        nodes: NodeCalls,
        tables: Tables,
        *,
        heard: Callable[[Heartbeat], None],
        assigned: Callable[[Assignment], None],
    ) -> None:
        self._nodes = nodes
        self._tables = tables
        self._heard = heard
        self._assigned = assigned
        self._polls = asyncio.Semaphore(MAX_POLLS)
        self._fetches = asyncio.Lock()
        self._random = random.Random()  # noqa: S311  # which of many, not a secret

    async def ask_everybody(self, others: Collection[HostInfo]) -> None:
        """Ask every node that is known, by the assignment, by its word or among `others`, and whom these name."""
        asked: set[HostInfo] = set()
        while new := (self._known() | set(others)) - asked:
            asked |= new
            await asyncio.gather(*(self.ask(host) for host in new))

    async def ask_the_latest(self) -> Assignment | None:
        """The assignment of a node that follows the latest of all that are heard; None when none can be had now."""
        beats = [node.heartbeat for node in self._tables.nodes.values()]
        latest = max(((beat.term, beat.epoch) for beat in beats), default=(0, 0))
        if latest == (0, 0):
            return None
        host = self._random.choice([beat for beat in beats if (beat.term, beat.epoch) == latest]).endpoint.host_info()
        try:
            return await self._nodes.assignment(host)
        except UnderstudyError as error:
            log.debug("%s", error, extra={"action": "poll-failed"})
            return None

    def _known(self) -> set[HostInfo]:
        # Those that died lately too: silence on a bus that was about to go says little.
        endpoints = [node.heartbeat.endpoint for node in self._tables.nodes.values()]
        endpoints += [node.heartbeat.endpoint for node in self._tables.dead.values()]
        if self._tables.assignment is not None:
            endpoints += self._tables.assignment.members.values()
        return {endpoint.host_info() for endpoint in endpoints}

    async def ask(self, host: HostInfo, *, deadline_ms: float | None = None) -> tuple[str, ...]:
        """A node's heartbeat, by its own word; and its assignment, if that is later than the one known here.

        Who answered; nobody, where the heartbeat did not come within the deadline.
        """
        answered: tuple[str, ...] = ()
        async with self._polls:
            try:
                async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                    heartbeat = await self._nodes.heartbeat(host)
                answered = (heartbeat.node_id,)
                self._heard(heartbeat)
                async with self._fetches:  # of all that follow a later one, the first is enough
                    known = self._tables.assignment
                    if (heartbeat.term, heartbeat.epoch) > ((0, 0) if known is None else known.order):
                        self._assigned(await self._nodes.assignment(host))
            except (UnderstudyError, TimeoutError) as error:
                log.debug("%s: %s", host, error or "no answer in time", extra={"action": "poll-failed"})
        return answered
