"""The client of one node: lookups of one loop tick share a request, called a hop.

A client keeps a few connections. While all of them carry a hop, requests wait in a bounded queue and travel together
with the next one: a busy node gets larger hops. While requests come one by one, each is sent at once instead of at the
end of its loop tick. The client never chooses another node: it reports delays, and `forwarding` decides.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from understudy_router.transport.client_context import OVERLOADED, ClientContext, decoded_reply
from understudy_router.transport.node_requests import Delay, Hop, NodeRequest, RequestQueue
from understudy_shared.base.background import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.wire import HopFailure, WireConnection, WireError, WireReply, connect
from understudy_shared.questions.lookup.hop import HopReply

FULL_KEYS = 64
"""Number of waiting keys that are sent before their loop tick ends: the node begins while the router parses the
rest.
"""

LONE_HOPS = 4
"""Number of hops in a row that carried one request, without another request meanwhile, after which the next request
does not wait for others."""

_CLOSED = HopFailure(WireError.REFUSED, "the client of this node was closed")


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
        self.busy: dict[WireConnection, Hop] = {}
        self.opening_since_ms: float | None = None
        self.is_closed = False
        self._host = host
        self._context = context

    @property
    def has_room(self) -> bool:
        """Whether the pool may have one more connection."""
        return len(self.busy) + len(self.idle) < MAX_CONNECTIONS

    def free(self, connection: WireConnection) -> None:
        """Take back a connection after its hop."""
        if not connection.is_open or self.is_closed:
            return
        if len(self.idle) < MAX_IDLE:
            self.idle.append(connection)
        else:
            connection.give_up(WireError.RESET, "enough connections are idle")

    def borrow(self) -> WireConnection | None:
        """Take an idle connection that is still open, if there is one."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                return connection
        return None

    def give_back(self, connection: WireConnection) -> None:
        """Return a connection that was borrowed or opened; it is closed when the pool is full."""
        if self.is_closed or not self.has_room:
            connection.give_up(WireError.RESET, "the pool is full")
        elif connection.is_open:
            self.idle.append(connection)

    async def open(self, until_ms: float) -> WireConnection | HopFailure:
        """Open a connection, for a hop or a probe that waits until then."""
        context = self._context
        return await connect(self._host, (until_ms - context.clock.monotonic_ms()) / 1000, context.identity)

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


class Prober:
    """The probes of one node, sent on demand.

    A probe is a hop without keys: it shows whether and how fast the node answers, over the path of lookups. It does not
    queue: it takes an idle connection, or opens one for itself. One probe is in flight at a time.
    """

    def __init__(self, client: NodeClient, tasks: Supervisor) -> None:
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

    async def _exchange(self) -> tuple[WireConnection | None, WireReply | HopFailure]:
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

    async def _send(self, connection: WireConnection) -> WireReply | HopFailure:
        """Send a hop without keys. A connection that still owes its reply at the deadline is closed."""
        left_ms = max(1.0, self._until_ms - self._clock.monotonic_ms())
        context = self._client.context
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await connection.exchange(context.encode(int(left_ms)), context.identity)
        except TimeoutError:
            return HopFailure(WireError.TIMEOUT, "no reply to a probe in time")


class NodeClient:
    """The client of one node at one address. `heard_ms` is when the node last sent any answer."""

    def __init__(self, node_id: str, host: HostInfo, context: ClientContext) -> None:
        self.node_id = node_id
        self.host = host
        self.context = context
        self.pool = ConnectionPool(host, context)
        self.heard_ms = -math.inf
        self.is_silent = False
        """Whether the node was reported silent and has not answered since."""
        self.last_used_ms = context.clock.monotonic_ms()
        self._waiting = RequestQueue()
        self._flush_is_due = False
        self._lone_hops = 0
        """Hops in a row that carried one request, while no other request came."""
        self._loop = asyncio.get_running_loop()
        self._connect_wanted = asyncio.Event()
        self._tasks = Supervisor()
        self._tasks.start(f"connect to {node_id}", self._connect_when_wanted())
        self._prober = Prober(self, self._tasks)

    def __repr__(self) -> str:
        hops, silent = len(self.pool.busy), ", silent" if self.is_silent else ""
        return f"NodeClient({self.node_id}, {hops} hops in flight, {self._waiting.keys} keys wait{silent})"

    @property
    def dead(self) -> str | None:
        return self._tasks.dead

    @property
    def load(self) -> int:
        """The number of keys that wait or are in flight."""
        return self._waiting.keys + sum(hop.keys for hop in self.pool.busy.values())

    @property
    def is_unused(self) -> bool:
        """Whether no request waits, no hop is in flight, and no connection is being opened."""
        return not self.pool.busy and not self._waiting.requests and self.pool.opening_since_ms is None

    def submit(self, request: NodeRequest) -> None:
        """Send a request, with others of this loop tick unless they come one by one. Each gets its outcomes."""
        if self.pool.is_closed:
            request.finish(_CLOSED)
            return
        if not self._waiting.append(request):
            request.finish(HopFailure(OVERLOADED, f"{self._waiting.keys} keys wait for this node"))
            return
        if self.pool.idle and self._waiting.keys >= FULL_KEYS:
            self.flush()
            return
        if self._flush_is_due:
            return
        # Requests overlap again, so it pays to wait for the others of this loop tick.
        if self.pool.busy:
            self._lone_hops = 0
        elif self._lone_hops >= LONE_HOPS and self.pool.idle:
            self.flush()
            return
        self._flush_is_due = True
        self._loop.call_soon(self.flush)

    def drop(self, request: NodeRequest) -> None:
        """Cancel a request. It is no longer sent; a hop in flight continues for the other requests."""
        self._waiting.drop(request)

    def probe(self, until_ms: float) -> asyncio.Future[float | HopFailure]:
        """Send an empty hop past the queue. The future resolves to its latency in ms, or to the failure."""
        self.last_used_ms = self.context.clock.monotonic_ms()
        if self.pool.is_closed:
            future: asyncio.Future[float | HopFailure] = self._loop.create_future()
            future.set_result(_CLOSED)
            return future
        return self._prober.probe(until_ms)

    @property
    def is_probed(self) -> bool:
        """Whether a probe is in flight."""
        return self._prober.is_busy

    def quiet_since_ms(self) -> float | None:
        """Return since when the node owes a reply or a connection and is silent; None when it owes nothing."""
        asked_ms = min((hop.sent_ms for hop in self.pool.busy.values()), default=math.inf)
        if self.pool.opening_since_ms is not None:
            asked_ms = min(asked_ms, self.pool.opening_since_ms)
        # A node that owes a reply is not silent while it answers other requests.
        return None if asked_ms == math.inf else max(asked_ms, self.heard_ms)

    def fall_silent(self, for_ms: float) -> None:
        """Report the node as silent, once until it answers again: other nodes answered meanwhile."""
        self.is_silent = True
        self.context.counts.silences += 1
        self.context.listener.silent(self.node_id, for_ms)

    def expire(self, now_ms: float) -> None:
        """Fail requests past their deadline, and close connections with a hop that has no reader left."""
        late = HopFailure(WireError.TIMEOUT, "it waited for a connection until its deadline")
        self._failed(self._waiting.take_late(now_ms), late, sent=False)
        for connection, hop in list(self.pool.busy.items()):
            # Nearly every hop: no deadline in it has passed, so its requests need no check.
            if hop.first_until_ms > now_ms:
                continue
            if hop.is_over(now_ms):
                connection.give_up(WireError.TIMEOUT, f"no reply within {now_ms - hop.sent_ms:.0f} ms")
                continue
            # Some readers stopped waiting; the hop continues for the others.
            for request in hop.requests:
                if request.until_ms <= now_ms:
                    request.finish(HopFailure(WireError.TIMEOUT, "no reply in time"))

    def report_delay(self, now_ms: float, *, overdue_ms: float, allowance: float) -> float:
        """Report delays: to all readers while the node is silent, else to those that wait for too long.

        A wait is too long after the hedge delay while `allowance` keys may still be hedged, and after `overdue_ms` in
        any case. Return the part of the allowance that is left.
        """
        # The groups of `_all_requests` are sorted by age, so checking the first skips a group that is young enough.
        if self.is_silent:
            for requests in self._all_requests():
                for request in requests:
                    request.report_delay(Delay.SILENT)
            return allowance
        patience = self.context.patience
        active_ms, other_ms = patience.hedge_ms(is_active=True), patience.hedge_ms(is_active=False)
        first_ms = now_ms - min(active_ms, other_ms, overdue_ms)
        for requests in self._all_requests():
            if not requests or requests[0].asked_ms > first_ms:
                continue
            for request in requests:
                waited_ms = now_ms - request.asked_ms
                is_long = waited_ms >= (active_ms if request.is_active else other_ms) and len(request.keys) <= allowance
                if request.delay is None and request.is_wanted and (is_long or waited_ms >= overdue_ms):
                    # The budget is paid when a hedge is sent: one tick must not promise more than there is.
                    allowance -= len(request.keys)
                    request.report_delay(Delay.SLOW)
        return allowance

    async def close(self) -> None:
        """Fail the requests that are left, and close the connections."""
        self.pool.is_closed = True
        # First the task that opens connections, or it opens another after the close.
        await self._tasks.stop()
        self._prober.end(_CLOSED)
        self.pool.close(_CLOSED.detail)
        self._failed(self._waiting.take_all(), _CLOSED, sent=False)

    # ---- sending and receiving

    def heard(self, reply: HopReply, now_ms: float, took_ms: float) -> None:
        """Note that the node answered, so it is not silent."""
        self.heard_ms = now_ms
        self.is_silent = False
        self.context.listener.answered(self.node_id, reply, now_ms, took_ms)

    def flush(self) -> None:
        """Send waiting requests while there are idle connections."""
        self._flush_is_due = False
        waiting, idle, busy = self._waiting, self.pool.idle, self.pool.busy
        while waiting.requests and idle and len(busy) < MAX_CONNECTIONS:
            connection = idle.pop()
            # The node may have closed it while it was idle; such a one is only forgotten.
            if connection.is_open:
                self._send(connection)
        if waiting.requests and len(busy) < MAX_CONNECTIONS:
            self._connect_wanted.set()

    def _send(self, connection: WireConnection) -> None:
        requests = self._waiting.take()
        if not requests:
            self.pool.idle.append(connection)
            return
        now_ms = self.last_used_ms = self.context.clock.monotonic_ms()
        hop = Hop(requests, now_ms)
        self.pool.busy[connection] = hop
        traces = hop.traces if hop.is_traced else ()
        left_ms = max(1, int(hop.until_ms - now_ms))  # of the reader with the latest deadline
        body = self.context.encode(left_ms, hop.groups, traces)
        connection.send(body, self._done, self.context.identity)

    def _done(self, connection: WireConnection, outcome: WireReply | HopFailure) -> None:
        hop = self.pool.busy.pop(connection)
        now_ms = self.context.clock.monotonic_ms()
        self.context.counts.duration_ms.observe(now_ms - hop.sent_ms)
        self.context.counts.keys += hop.keys
        self._lone_hops = self._lone_hops + 1 if len(hop.requests) == 1 and not self._waiting.requests else 0
        # The oldest request stands for the hop: its time in the queue is part of what a reader waits.
        first = hop.requests[0]
        self.context.patience.took(now_ms - first.asked_ms, is_active=first.is_active)
        if isinstance(outcome, HopFailure):
            self._lost(hop, outcome)
        else:
            self._replied(hop, outcome, now_ms)
        # Free only now: requests that these outcomes cause leave together with those that wait.
        self.pool.free(connection)
        if self._waiting.requests:
            self.flush()

    def _replied(self, hop: Hop, reply: WireReply, now_ms: float) -> None:
        decoded = decoded_reply(reply, keys=hop.keys)
        self.heard_ms = now_ms  # any reply proves that the node is not silent
        self.is_silent = False
        if isinstance(decoded, HopFailure):
            self._failed(hop.requests, decoded, sent=True)
            return
        self.context.listener.answered(self.node_id, decoded, now_ms, now_ms - hop.sent_ms)
        hop.finish(decoded.outcomes)

    def _lost(self, hop: Hop, failure: HopFailure) -> None:
        """Handle a hop without a reply. After a stale connection it is sent once more, on a fresh one."""
        if failure.is_stale and not self.pool.is_closed and not any(request.retried for request in hop.requests):
            self.context.counts.retried += 1
            for request in hop.requests:
                request.retried = True
            self.pool.close_idle(
                "another connection to this node was stale"
            )  # the others idled as long, so they are stale too
            self._waiting.put_back(hop.requests)
            return
        if failure.reason == WireError.TOO_LARGE and len(hop.requests) > 1:  # each reply may be small enough by itself
            for request in hop.requests:
                request.alone = True
            self._waiting.put_back(hop.requests)
            return
        self._failed(hop.requests, failure, sent=not self.pool.is_closed)

    def _failed(self, requests: Sequence[NodeRequest], failure: HopFailure, *, sent: bool) -> None:
        if requests:
            self.context.failed(self.node_id, failure, sent=sent)
        for request in requests:
            request.finish(failure)

    def _all_requests(self) -> list[Sequence[NodeRequest]]:
        """Return all requests in groups; the first of each group has waited longest."""
        return [self._waiting.requests, *(hop.requests for hop in self.pool.busy.values())]

    async def _connect_when_wanted(self) -> None:
        while True:
            await self._connect_wanted.wait()
            # One task opens all connections, one after the other: a node that is down sees no burst of attempts.
            self._connect_wanted.clear()
            if not self._waiting.requests or not self.pool.has_room:
                self.flush()  # a client of another application may have freed a connection
                continue
            # The most patient request decides: it can use a connection that comes too late for the others.
            failure = await self.pool.refill(max(request.until_ms for request in self._waiting.requests))
            if failure is None:
                self.flush()
            elif not self.pool.busy:  # else the requests go with the next hop of a connection that works
                self._failed(self._waiting.take_all(), failure, sent=True)
