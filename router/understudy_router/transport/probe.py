"""A probe is a hop without keys: it shows whether and how fast a node answers, over the path of lookups.

A probe does not queue: it takes an idle connection, or opens one for itself. One at a time per node.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from understudy_router.transport.wire import HopConnection, HopFailure, WireError, WireReply, connect, decoded_reply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.hop import HopReply

Probed = float | HopFailure
"""The latency in ms, or why there is no answer."""


class ProbeTarget(Protocol):
    """The client whose node is probed."""

    node_id: str
    host: HostInfo
    identity: ClusterIdentity

    def borrow(self) -> HopConnection | None: ...
    def give_back(self, connection: HopConnection) -> None: ...
    def empty_hop(self, deadline_ms: int) -> bytes: ...
    def heard(self, reply: HopReply, now_ms: float, took_ms: float) -> None: ...
    def unheard(self, failure: HopFailure) -> None: ...


class Prober:
    """Probes one node on demand."""

    def __init__(self, way: ProbeTarget, tasks: Supervisor, *, clock: Clock) -> None:
        self._way = way
        self._clock = clock
        self._wanted = asyncio.Event()
        self._asked: list[asyncio.Future[Probed]] = []
        self._until_ms = 0.0
        self._tasks = tasks
        self._has_task = False

    @property
    def is_busy(self) -> bool:
        """Whether a probe is in flight."""
        return bool(self._asked)

    def probe(self, until_ms: float) -> asyncio.Future[Probed]:
        """The outcome of a probe; a probe that is in flight is shared."""
        future: asyncio.Future[Probed] = asyncio.get_running_loop().create_future()
        if not self._asked:
            self._until_ms = until_ms
            self._wanted.set()
            if not self._has_task:
                self._has_task = True
                self._tasks.start(f"probe {self._way.node_id}", self._probe_when_wanted())
        self._asked.append(future)
        return future

    def fail(self, failure: HopFailure) -> None:
        """End the probe in flight with a failure: the client closes."""
        self._tell(failure)

    def _tell(self, probed: Probed) -> None:
        asked, self._asked = self._asked, []
        for future in asked:
            if not future.done():
                future.set_result(probed)

    async def _probe_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            began_ms = self._clock.monotonic_ms()
            connection, outcome = await self._exchange()
            now_ms = self._clock.monotonic_ms()
            decoded = outcome if isinstance(outcome, HopFailure) else decoded_reply(outcome, keys=0)
            if isinstance(decoded, HopFailure):
                self._way.unheard(decoded)
                self._tell(decoded)
            else:
                self._way.heard(decoded, now_ms, now_ms - began_ms)
                self._tell(now_ms - began_ms)
            if connection is not None:
                self._way.give_back(connection)

    async def _exchange(self) -> tuple[HopConnection | None, WireReply | HopFailure]:
        """The reply and its connection. A stale connection is replaced once."""
        connection = self._way.borrow()
        if connection is not None:
            outcome = await self._send(connection)
            if not isinstance(outcome, HopFailure):
                return connection, outcome
            if not outcome.is_stale:
                return None, outcome
        opened = await connect(self._way.host, self._until_ms - self._clock.monotonic_ms(), self._way.identity)
        if isinstance(opened, HopFailure):
            return None, opened
        outcome = await self._send(opened)
        return None if isinstance(outcome, HopFailure) else opened, outcome

    async def _send(self, connection: HopConnection) -> WireReply | HopFailure:
        """Send a hop without keys. A connection that still owes its reply at the end is closed."""
        replied: asyncio.Future[WireReply | HopFailure] = asyncio.get_running_loop().create_future()

        def done(_: HopConnection, outcome: WireReply | HopFailure) -> None:
            if not replied.done():
                replied.set_result(outcome)

        left_ms = max(1.0, self._until_ms - self._clock.monotonic_ms())
        connection.send(self._way.empty_hop(int(left_ms)), done)
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await replied
        except TimeoutError:
            return HopFailure(WireError.TIMEOUT, "no reply to a probe in time")
        finally:
            if replied.cancelled():
                connection.give_up(WireError.TIMEOUT, "no reply to a probe in time")
