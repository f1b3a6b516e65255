"""Polls nodes over HTTP for their heartbeat and their assignment, when the bus does not carry these.

One node that answers is enough: its assignment names the other members, and these are polled in the same round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.view import ClusterView

log = logging.getLogger(__name__)

MAX_POLLS = 16
"""Most nodes polled at the same time."""


class Polls:
    """The polls of one process. Heartbeats go to `heard`, later assignments than that of `view` to `assigned`."""

    def __init__(
        self,
        calls: NodeCalls,
        view: ClusterView,
        *,
        heard: Callable[[Heartbeat], object],
        assigned: Callable[[Assignment], object],
        at_once: int = MAX_POLLS,
    ) -> None:
        """Set the callbacks. At most `at_once` nodes are polled at the same time."""
        self._calls = calls
        self._view = view
        self._heard = heard
        self._assigned = assigned
        self._polls = asyncio.Semaphore(at_once)
        self._fetches = asyncio.Lock()
        self._random = random.Random()  # noqa: S311  # which of many, not a secret

    async def poll(self, host: HostInfo, deadline_ms: float | None = None, expected: str | None = None) -> str | None:
        """Read a node's heartbeat, and its assignment if that is later than the one known here.

        Return the id of the node that answered; `None` when its heartbeat did not come within the deadline. What
        another node than the `expected` one says is dropped: an address may have gone to another cluster.
        """
        answered: str | None = None
        async with self._polls:
            try:
                async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                    heartbeat = await self._calls.heartbeat(host)
                answered = heartbeat.node_id
                if expected not in (None, answered):
                    return answered
                self._heard(heartbeat)
                async with self._fetches:  # one of the nodes that follow a later one is enough
                    if is_later((heartbeat.term, heartbeat.epoch), self._view.order):
                        self._assigned(await self._calls.assignment(host))
            except (UnderstudyError, TimeoutError) as error:
                log.debug("%s: %s", host, error or "no answer in time", extra={"action": "poll-failed"})
        return answered

    async def poll_all(self, others: Collection[HostInfo]) -> None:
        """Poll every known node, the `others`, and the nodes that their assignments name."""
        asked: set[HostInfo] = set()
        while new := (self._known() | set(others)) - asked:
            asked |= new
            await asyncio.gather(*(self.poll(host) for host in new))

    async def latest_assignment(self) -> Assignment | None:
        """Read the latest assignment that a heartbeat names, from a node that follows it; return `None` when it cannot
        be read.
        """
        beats, latest = [node.heartbeat for node in self._view.nodes.values()], self._view.highest()
        if latest == (0, 0):
            return None
        host = self._random.choice([beat for beat in beats if (beat.term, beat.epoch) == latest]).endpoint.host_info()
        try:
            return await self._calls.assignment(host)
        except UnderstudyError as error:
            log.debug("%s", error, extra={"action": "poll-failed"})
            return None

    def _known(self) -> set[HostInfo]:
        # Nodes that died lately too: their silence may have been a fault of the bus. Thousands of others may be forged.
        view = self._view
        endpoints = [node.heartbeat.endpoint for node_id, node in view.nodes.items() if view.is_known(node_id)]
        endpoints += [dead.heartbeat.endpoint for node_id, dead in view.dead.items() if view.is_known(node_id)]
        if view.assignment is not None:
            endpoints += view.assignment.members.values()
        return {endpoint.host_info() for endpoint in endpoints}
