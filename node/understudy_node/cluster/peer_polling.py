"""Polls other nodes over HTTP for messages that the bus does not carry to this node.

The assignor polls a silent member before it counts as dead, because the bus or the network may cause the silence.
Only the node with the lease polls, and only the nodes of its assignment: no other node moves tasks.

A node that alone is cut off from the bus asks one other node per heartbeat for a later assignment.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from understudy_node.cluster.context import MemberContext
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.asking import SilentNodes
from understudy_shared.cluster.silence import ANSWER_DEADLINE_MS

log = logging.getLogger(__name__)

MAX_POLLED = 32
"""Most nodes polled at the same time, each on its own connection; the rest follow after the next search."""


class PeerPoller:
    """The polls of one node. `assigns` returns whether this node has the lease."""

    def __init__(
        self,
        context: MemberContext,
        *,
        assigns: Callable[[], bool],
        take: Callable[[Assignment], None],
    ) -> None:
        """Set the callbacks. `take` receives a later assignment."""
        self._neighbours = context.neighbours
        self._calls = context.calls
        self._heartbeat_ms = context.heartbeat_ms
        self._assigns = assigns
        self._bus_state = context.bus_state
        self._take = take
        self._random = random.Random()  # noqa: S311  # chooses a node, and needs no secrecy
        self._changed = context.changed
        self._clock = context.clock
        self._silent = SilentNodes(
            context.neighbours,
            self._ask,
            most=MAX_POLLED,
            # The holder of a lease in Redis is not cut off itself, so one hung peer of two counts as dead, too.
            others_heard=lambda node_id, since_ms: True,
            clock=context.clock,
            but=context.node_id,
        )

    async def run(self) -> None:
        """Poll silent members, until cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_ms / 4 / 1000)
            polls = self._assigns() and self._neighbours.assignment is not None
            if polls and await self._silent.ask_due(self._heartbeat_ms):
                self._changed.set()

    async def catch_up(self) -> None:
        """Follow later assignments of other nodes while the bus is away, until cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_ms * self._random.uniform(0.8, 1.2) / 1000)
            members = self._neighbours.members()
            if self._bus_state.causes and members:
                await self._follow_later(self._random.choice(sorted(members.items()))[1].host_info())

    async def _follow_later(self, host: HostInfo) -> None:
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_MS / 1000):
                heartbeat = await self._calls.heartbeat(host)
            if is_later((heartbeat.term, heartbeat.epoch), self._neighbours.order):
                self._take(await self._calls.assignment(host))
        except (UnderstudyError, TimeoutError) as error:
            log.debug("%s: %s", host, error or "no answer in time", extra={"action": "ask-failed"})

    async def _ask(self, host: HostInfo, deadline_ms: float) -> str | None:
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                heartbeat = await self._calls.heartbeat(host)
        except (UnderstudyError, TimeoutError) as error:
            log.debug("%s: %s", host, error or "no answer in time", extra={"action": "ask-failed"})
            return None
        self._neighbours.heard(heartbeat, age_ms=0, now_ms=self._clock.monotonic_ms())
        return heartbeat.node_id
