"""Polls of nodes that are silent on the bus: the router drops a node only after it did not answer.

This costs one small request per silent node and heartbeat, a bounded number at the same time. While the bus is known to
be away, all nodes are polled instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.cluster.asking import SilentNodes
from understudy_shared.cluster.polling import Polls

MAX_TICK_MS = 250
"""Longest time between two searches for silent or dead nodes, in ms."""

MAX_POLLED = 64
"""Most nodes polled after one search; the others follow after the next, and lookups prefer other nodes until then."""

FEW = 3
"""Most nodes that a message names."""


class SilentNodePoller:
    """The polls of one router. `heartbeat_ms` is the nodes' interval; `seeds` are polled while no node is known."""

    def __init__(
        self,
        tables: Tables,
        polls: Polls,
        *,
        heartbeat_ms: Callable[[], int],
        seeds: Callable[[], Collection[HostInfo]],
        clock: Clock,
    ) -> None:
        self._tables = tables
        self._polls = polls
        self._silent = SilentNodes(
            tables, polls.poll, most=MAX_POLLED, others_heard=tables.others_heard_since, clock=clock
        )
        self._heartbeat_ms = heartbeat_ms
        self._seeds = seeds
        self._clock = clock
        self._on_bus_ms: dict[str, float] = {}
        """The time at which the bus last carried a heartbeat of each node."""
        self._asked_seeds_ms = float("-inf")

    def heard_on_bus(self, node_id: str, at_ms: float) -> None:
        """Note that the bus carried a heartbeat of this node."""
        self._on_bus_ms[node_id] = max(at_ms, self._on_bus_ms.get(node_id, at_ms))

    def unheard(self) -> str | None:
        """Return the fault when the bus carries no heartbeats of half of the live nodes or more; `None` when it
        does.
        """
        now_ms = self._clock.monotonic_ms()
        nodes = {node_id: node for node_id, node in self._tables.nodes.items() if self._tables.is_known(node_id)}
        silent = [
            node_id
            for node_id, node in sorted(nodes.items())
            if not self._tables.is_silent(node, now_ms)  # the node answered, or sent a heartbeat a moment ago
            and now_ms - self._on_bus_ms.get(node_id, float("-inf")) > node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
        ]
        if not silent or 2 * len(silent) < len(nodes):
            return None
        named = ", ".join(silent[:FEW]) + (", ..." if len(silent) > FEW else "")
        return f"{len(silent)} of {len(nodes)} nodes are unheard on the bus and answer when asked: {named}"

    async def run(self) -> None:
        """Poll silent nodes, for ever."""
        while True:
            await asyncio.sleep(min(MAX_TICK_MS, self._heartbeat_ms() / 4) / 1000)
            if self._tables.bus_lost_why is None:
                await self._poll_silent()

    async def _poll_silent(self) -> None:
        tables, now_ms = self._tables, self._clock.monotonic_ms()
        if len(self._on_bus_ms) > len(tables.nodes):
            self._on_bus_ms = {node_id: at_ms for node_id, at_ms in self._on_bus_ms.items() if node_id in tables.nodes}
        await self._silent.ask_due(self._heartbeat_ms())
        if not tables.nodes and now_ms - self._asked_seeds_ms >= self._heartbeat_ms():
            self._asked_seeds_ms = now_ms
            await self._polls.poll_all(self._seeds())
