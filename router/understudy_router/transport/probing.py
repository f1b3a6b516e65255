"""Probes suspect and quarantined nodes, so that no reader has to try whether they recovered.

A probe is an empty hop over the path of lookups. Its result reaches the tables as that of every hop does; here it is
only sent and given up in time. While all nodes are healthy nothing is sent.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from understudy_router.cluster.tables import Tables
from understudy_router.transport.wire import HopFailure
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo

MAX_PROBES = 16
"""Probes in flight at the same time, one per node."""

MIN_TICK_MS, MAX_TICK_MS = 10, 250
"""Limits of the time between two checks for due probes, which is a quarter of a heartbeat."""


class ProbeSender(Protocol):
    """Sends probes to nodes."""

    def probe(self, node_id: str, host: HostInfo) -> asyncio.Future[float | HopFailure]: ...


class Probing:
    """The probes in flight."""

    def __init__(self, tables: Tables, sender: ProbeSender, *, deadline_ms: float, clock: Clock) -> None:
        self._tables = tables
        self._sender = sender
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._random = random.Random()  # noqa: S311  # jitter
        self._sent: dict[str, tuple[asyncio.Future[float | HopFailure], float]] = {}
        """The probes in flight by node id, and when each is given up."""

    def __repr__(self) -> str:
        return f"Probing({sorted(self._sent)})"

    async def run(self) -> None:
        """Send due probes for ever; runs as a background task."""
        while True:
            tick_ms = self._tables.heartbeat_ms(default_ms=MAX_TICK_MS) / 4
            await asyncio.sleep(min(MAX_TICK_MS, max(MIN_TICK_MS, tick_ms)) / 1000)
            self.turn(self._clock.monotonic_ms())

    def turn(self, now_ms: float) -> None:
        """Forget probes that are done or late, and send those that are due."""
        for node_id, (future, until_ms) in list(self._sent.items()):
            if future.done() or now_ms >= until_ms:
                future.cancel()
                del self._sent[node_id]
        for node_id in self._tables.health.due(now_ms):
            if len(self._sent) >= MAX_PROBES:
                return
            if node_id not in self._sent:
                self._send(node_id, now_ms)

    def _send(self, node_id: str, now_ms: float) -> None:
        heartbeat = self._tables.nodes[node_id].heartbeat
        jitter = self._random.uniform(0.8, 1.2)
        self._tables.health.probe_sent(node_id, now_ms, heartbeat_ms=heartbeat.heartbeat_ms, jitter=jitter)
        future = self._sender.probe(node_id, heartbeat.endpoint.host_info())
        self._sent[node_id] = (future, now_ms + self._deadline_ms)
