"""The connections to one node, and the probe that borrows one of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from understudy_router.transport.client_context import ClientContext
from understudy_router.transport.node_requests import Hop
from understudy_router.transport.wire import HopConnection, HopFailure, WireError, WireReply, connect, decoded_reply
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.hop import HopReply

MAX_CONNECTIONS = 2
"""Number of hops in flight per node. With one hop the router idles while the node answers; more make hops small
(decisions/0006)."""


MAX_IDLE = 16
"""Number of connections to a node that wait for hops of any application; those beyond it are closed."""


class ConnectionPool:
    """The connections that are idle, and those that carry a hop. `opening_since_ms` is `None` while no connection is
    being opened. The idle ones belong to all pools of the process for this node.
    """

    def __init__(self, host: HostInfo, context: ClientContext) -> None:
        self.idle = context.idle.begin(host)
        self.busy: dict[HopConnection, Hop] = {}
        self.opening_since_ms: float | None = None
        self.is_closed = False
        self._host = host
        self._context = context

    @property
    def has_room(self) -> bool:
        """Whether the pool may have one more connection."""
        return len(self.busy) + len(self.idle) < MAX_CONNECTIONS

    @property
    def may_send(self) -> bool:
        """Whether there is an idle connection, and one more hop may be in flight."""
        return bool(self.idle) and len(self.busy) < MAX_CONNECTIONS

    def free(self, connection: HopConnection) -> None:
        """Take back a connection whose hop is over."""
        if not connection.is_open or self.is_closed:
            return
        if len(self.idle) < MAX_IDLE:
            self.idle.append(connection)
        else:
            connection.give_up(WireError.RESET, "enough connections are idle")

    def borrow(self) -> HopConnection | None:
        """Take an idle connection that is still open, if there is one."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                return connection
        return None

    def give_back(self, connection: HopConnection) -> None:
        """Return a connection that was borrowed or opened; it is closed when the pool is full."""
        if self.is_closed or not self.has_room:
            connection.give_up(WireError.RESET, "the pool is full")
        elif connection.is_open:
            self.idle.append(connection)

    async def open(self, until_ms: float) -> HopConnection | HopFailure:
        """Open a connection, for a hop or a probe that waits until then."""
        context = self._context
        return await connect(self._host, until_ms - context.clock.monotonic_ms(), context.identity)

    async def refill(self, until_ms: float) -> HopFailure | None:
        """Open an idle connection for requests that wait. Return the failure if it could not be opened."""
        # Opening counts as a question: a node that does not accept connections is silent, too.
        self.opening_since_ms = self._context.clock.monotonic_ms()
        opened = await self.open(until_ms)
        self.opening_since_ms = None
        if isinstance(opened, HopFailure):
            return opened
        self.idle.append(opened)
        return None

    def close_idle(self, why: str) -> None:
        """Close the connections that carry no hop."""
        for connection in self.idle:
            connection.give_up(WireError.RESET, why)
        self.idle.clear()

    def close(self, why: str) -> None:
        """Close all connections; the hops in flight fail."""
        self.is_closed = True
        self._context.idle.end(self._host, why)
        for connection in list(self.busy):
            connection.give_up(WireError.RESET, why)


Probed = float | HopFailure
"""The latency in ms, or the reason why no answer came."""


class ProbeTarget(Protocol):
    """The client whose node is probed."""

    node_id: str
    context: ClientContext
    pool: ConnectionPool

    def heard(self, reply: HopReply, now_ms: float, took_ms: float) -> None: ...
    def flush(self) -> None: ...


class Prober:
    """The probes of one node, sent on demand.

    A probe is a hop without keys: it shows whether and how fast the node answers, over the path of lookups. It does not
    queue: it takes an idle connection, or opens one for itself. One probe is in flight at a time.
    """

    def __init__(self, client: ProbeTarget, tasks: Supervisor) -> None:
        self._client = client
        self._clock = client.context.clock
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
        """Probe the node, and return the future outcome; a probe that is in flight is shared."""
        future: asyncio.Future[Probed] = asyncio.get_running_loop().create_future()
        if not self._asked:
            self._until_ms = until_ms
            self._wanted.set()
            # Most clients never send a probe, and need no task for it.
            if not self._has_task:
                self._has_task = True
                self._tasks.start(f"probe {self._client.node_id}", self._probe_when_wanted())
        self._asked.append(future)
        return future

    def end(self, probed: Probed) -> None:
        """End the probe in flight, if there is one, with this outcome."""
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
                self._client.context.failed(self._client.node_id, decoded, sent=True)
                self.end(decoded)
            else:
                self._client.heard(decoded, now_ms, now_ms - began_ms)
                self.end(now_ms - began_ms)
            if connection is not None:
                self._client.pool.give_back(connection)
                self._client.flush()

    async def _exchange(self) -> tuple[HopConnection | None, WireReply | HopFailure]:
        """Return the reply and its connection. A stale connection is replaced once."""
        connection = self._client.pool.borrow()
        if connection is not None:
            outcome = await self._send(connection)
            if not isinstance(outcome, HopFailure):
                return connection, outcome
            if not outcome.is_stale:
                return None, outcome
        opened = await self._client.pool.open(self._until_ms)
        if isinstance(opened, HopFailure):
            return None, opened
        outcome = await self._send(opened)
        return None if isinstance(outcome, HopFailure) else opened, outcome

    async def _send(self, connection: HopConnection) -> WireReply | HopFailure:
        """Send a hop without keys. A connection that still owes its reply at the deadline is closed."""
        replied: asyncio.Future[WireReply | HopFailure] = asyncio.get_running_loop().create_future()

        def done(_: HopConnection, outcome: WireReply | HopFailure) -> None:
            if not replied.done():
                replied.set_result(outcome)

        left_ms = max(1.0, self._until_ms - self._clock.monotonic_ms())
        context = self._client.context
        connection.send(context.encode(int(left_ms)), done, context.identity)
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await replied
        except TimeoutError:
            return HopFailure(WireError.TIMEOUT, "no reply to a probe in time")
        finally:
            # The timeout cancels the future, and the reply may still come: no other hop may read it as its own.
            if replied.cancelled():
                connection.give_up(WireError.TIMEOUT, "no reply to a probe in time")
