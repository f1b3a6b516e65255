"""Asks nodes that are silent on Redis for their heartbeat: only a node that does not answer either is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.suspects import answer_deadline_ms, counts_against
from understudy_shared.cluster.view import ClusterView


class SilentNodes:
    """The requests of one process to silent nodes. `ask(host, deadline_ms, node_id)` puts the heartbeat of this node
    into the view, and returns the id of the node that answered; None if no node did.
    """

    def __init__(
        self,
        view: ClusterView,
        ask: Callable[[HostInfo, float, str], Awaitable[str | None]],
        *,
        most: int,
        others_heard: Callable[[str, float], bool],
        clock: Clock,
        but: str | None = None,
    ) -> None:
        """Set the limits: at most `most` nodes are asked at a time, and never the node `but`.

        `others_heard` returns whether other nodes were heard since a time: otherwise this process or its network may
        be at fault.
        """
        self._view = view
        self._ask = ask
        self._most = most
        self._others_heard = others_heard
        self._clock = clock
        self._but = but

    async def ask_due(self, heartbeat_ms: int) -> bool:
        """Ask the nodes that are due. Return whether any of them did not answer for the first time."""
        due = self._view.to_ask(self._clock.monotonic_ms(), heartbeat_ms=heartbeat_ms, but=self._but)
        return await self.ask(dict(list(due.items())[: self._most]), heartbeat_ms)

    async def ask(self, hosts: Mapping[str, HostInfo], heartbeat_ms: int) -> bool:
        """Ask these nodes, silent or not. Return whether any of them did not answer for the first time."""
        return any(await asyncio.gather(*(self._ask_one(each, host, heartbeat_ms) for each, host in hosts.items())))

    async def _ask_one(self, node_id: str, host: HostInfo, heartbeat_ms: int) -> bool:
        began_ms, deadline_ms = self._clock.monotonic_ms(), answer_deadline_ms(heartbeat_ms)
        self._view.silence.asked(node_id, began_ms)
        if await self._ask(host, deadline_ms, node_id) == node_id:
            return False
        took_ms = self._clock.monotonic_ms() - began_ms
        others_heard = self._others_heard(node_id, began_ms - heartbeat_ms)
        counts = counts_against(took_ms, deadline_ms=deadline_ms, others_heard=others_heard)
        return counts and self._view.did_not_answer(node_id, began_ms)
