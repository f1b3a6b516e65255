"""Polls other nodes over HTTP for what the bus does not carry to this node.

The assignor polls a silent member before it counts as dead, because the bus or the network may cause the silence. Only
the node with the lease polls, and only the members of its assignment: no other node moves tasks.

A node that alone is cut off from the bus asks one other node per heartbeat for a later assignment.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from understudy_node.cluster.neighbours import Neighbours
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.silence import ANSWER_DEADLINE_MS, answer_deadline_ms, counts_against

log = logging.getLogger(__name__)

MAX_POLLED = 32
"""Most nodes polled at the same time, each on its own connection; the rest follows after the next search."""


class PeerPoller:
    """Polls for one node. `assigns`: this node has the lease."""

    def __init__(
        self,
        neighbours: Neighbours,
        gossip: Gossip,
        *,
        node_id: str,
        heartbeat_ms: int,
        assigns: Callable[[], bool],
        is_cut_off: Callable[[], bool],
        take: Callable[[Assignment], None],
        changed: Callable[[], None],
        clock: Clock,
        identity: ClusterIdentity | None = None,
    ) -> None:
        """`take` gets a later assignment. `changed` is called when a node newly did not answer. `identity` is shown to
        other nodes.
        """
        self._neighbours = neighbours
        self._calls = NodeCalls(gossip.application_id, gossip.auth, identity)
        self._heartbeat_ms = heartbeat_ms
        self._node_id = node_id
        self._assigns = assigns
        self._is_cut_off = is_cut_off
        self._take = take
        self._random = random.Random()  # noqa: S311  # which of many, not a secret
        self._changed = changed
        self._clock = clock

    async def run(self) -> None:
        """Poll silent members, for ever."""
        while True:
            await asyncio.sleep(self._heartbeat_ms / 4 / 1000)
            if not self._assigns() or self._neighbours.assignment is None:
                continue
            now_ms = self._clock.monotonic_ms()
            to_ask = self._neighbours.to_ask(now_ms, heartbeat_ms=self._heartbeat_ms, but=self._node_id)
            await asyncio.gather(*(self._poll(node_id, host) for node_id, host in list(to_ask.items())[:MAX_POLLED]))

    async def catch_up(self) -> None:
        """Follow later assignments of other nodes while the bus is away, for ever."""
        while True:
            await asyncio.sleep(self._heartbeat_ms * self._random.uniform(0.8, 1.2) / 1000)
            members = self._neighbours.members()
            if self._is_cut_off() and members:
                await self._follow_later(self._random.choice(sorted(members.items()))[1].host_info())

    async def close(self) -> None:
        """Close the connections, after `run` has ended."""
        await self._calls.close()

    async def _follow_later(self, host: HostInfo) -> None:
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_MS / 1000):
                heartbeat = await self._calls.heartbeat(host)
            if is_later((heartbeat.term, heartbeat.epoch), self._neighbours.order):
                self._take(await self._calls.assignment(host))
        except (UnderstudyError, TimeoutError) as error:
            log.debug("%s: %s", host, error or "no answer in time", extra={"action": "ask-failed"})

    async def _poll(self, node_id: str, host: HostInfo) -> None:
        began_ms = self._clock.monotonic_ms()
        self._neighbours.silence.asked(node_id, began_ms)
        deadline_ms = answer_deadline_ms(self._heartbeat_ms)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                heartbeat = await self._calls.heartbeat(host)
        except (UnderstudyError, TimeoutError) as error:
            log.debug("%s: %s", host, error or "no answer in time", extra={"action": "ask-failed"})
            took_ms = self._clock.monotonic_ms() - began_ms
            # The holder of a lease in Redis is not cut off itself, so one hung peer of two counts, too.
            if not counts_against(took_ms, deadline_ms=deadline_ms, others_heard=True):
                return
        else:
            self._neighbours.heard(heartbeat, age_ms=0, now_ms=self._clock.monotonic_ms())
            if heartbeat.node_id == node_id:
                return
        if self._neighbours.did_not_answer(node_id, began_ms):
            self._changed()
