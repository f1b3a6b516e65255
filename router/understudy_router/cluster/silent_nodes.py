"""Asks nodes that the bus tells nothing of: a node is left out only after it did not answer.

Costs one small request per silent node and heartbeat, a bounded number at the same time. While the bus is known to be
away everybody is asked anyway (watching.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from understudy_router.cluster.polling import Polls
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.clock import Clock
from understudy_shared.silence import LastWord
from understudy_shared.words import HostInfo

MAX_TICK_MS = 250
"""Between two looks for silent nodes."""

MAX_ASKED = 64
"""In one look; the rest is asked in the next, and until then asked last by readers."""

ANSWER_DEADLINE_MS = 1000
"""For a heartbeat that is asked for, or one heartbeat's time where that is shorter."""

MIN_ANSWER_DEADLINE_MS = 200

FEW = 3
"""Nodes that a sentence names."""


class SilentNodePoller:
    """Of one router. `heartbeat_ms` tells the nodes' heartbeat, `seeds` whom to ask when nobody is known."""

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
        self._heartbeat_ms = heartbeat_ms
        self._seeds = seeds
        self._clock = clock
        self._on_bus_ms: dict[str, float] = {}
        """When each was last heard on the bus itself."""
        self._asked_seeds_ms = float("-inf")

    def heard_on_bus(self, node_id: str, at_ms: float) -> None:
        """The bus still carries what this node says."""
        self._on_bus_ms[node_id] = max(at_ms, self._on_bus_ms.get(node_id, at_ms))

    def unheard(self) -> str | None:
        """What is wrong when the bus tells nothing of half of the nodes that live, or more. None when it does."""
        nodes, now_ms = self._tables.nodes, self._clock.monotonic_ms()
        silent = [
            node_id
            for node_id, node in sorted(nodes.items())
            if not self._tables.is_silent(node, now_ms)  # it has answered, or spoke a moment ago
            and now_ms - self._on_bus_ms.get(node_id, float("-inf")) > node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
        ]
        if not silent or 2 * len(silent) < len(nodes):
            return None
        named = ", ".join(silent[:FEW]) + (", ..." if len(silent) > FEW else "")
        return f"{len(silent)} of {len(nodes)} nodes are unheard on the bus and answer when asked: {named}"

    async def run(self) -> None:
        """Ask whoever is silent, for ever."""
        while True:
            await asyncio.sleep(min(MAX_TICK_MS, self._heartbeat_ms() / 4) / 1000)
            if self._tables.bus_lost_why is None:
                await self._ask_the_silent()

    async def _ask_the_silent(self) -> None:
        tables, now_ms = self._tables, self._clock.monotonic_ms()
        hosts, words = self._known(now_ms)
        tables.silence.keep(hosts)
        self._on_bus_ms = {node_id: at_ms for node_id, at_ms in self._on_bus_ms.items() if node_id in tables.nodes}
        due = tables.silence.due(words, now_ms=now_ms)[:MAX_ASKED]
        await asyncio.gather(*(self._send_to(node_id, hosts[node_id]) for node_id in due))
        if not tables.nodes and now_ms - self._asked_seeds_ms >= self._heartbeat_ms():
            self._asked_seeds_ms = now_ms
            await self._polls.ask_everybody(self._seeds())

    def _known(self, now_ms: float) -> tuple[dict[str, HostInfo], dict[str, LastWord]]:
        """Where each node listens, and when it was heard of last. Those that said farewell come back by themselves."""
        tables, heartbeat_ms = self._tables, self._heartbeat_ms()
        hosts: dict[str, HostInfo] = {}
        words: dict[str, LastWord] = {}
        if tables.assignment is not None:
            for node_id, endpoint in tables.assignment.members.items():
                hosts[node_id], words[node_id] = endpoint.host_info(), LastWord(float("-inf"), heartbeat_ms)
        for node_id, dead in tables.dead.items():
            hosts[node_id] = dead.heartbeat.endpoint.host_info()
            if dead.said_farewell:
                words.pop(node_id, None)
            else:
                words[node_id] = LastWord(float("-inf"), dead.heartbeat.heartbeat_ms)
        for node_id, node in tables.nodes.items():
            hosts[node_id] = node.heartbeat.endpoint.host_info()
            words[node_id] = LastWord(node.said_ms, node.heartbeat.heartbeat_ms)
        return hosts, words

    async def _send_to(self, node_id: str, host: HostInfo) -> None:
        began_ms = self._clock.monotonic_ms()
        self._tables.silence.asked(node_id, began_ms)
        deadline_ms = max(MIN_ANSWER_DEADLINE_MS, min(ANSWER_DEADLINE_MS, self._heartbeat_ms()))
        if node_id not in await self._polls.ask(host, deadline_ms=deadline_ms):
            self._tables.did_not_answer(node_id, began_ms)
