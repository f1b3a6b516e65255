"""Connection pool and batcher for one node: lookups of one loop tick share a request, called a hop.

A client keeps a few connections. While all of them carry a hop, requests wait in a bounded queue and travel together
with the next one: a busy node gets larger hops. While requests come one by one, each is sent at once instead of at the
end of its loop tick. The client never chooses another node: it reports delays, and `forwarding` decides.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from understudy_router.transport.node_requests import Delay, Hop, NodeRequest, RequestQueue
from understudy_router.transport.patience import Patience
from understudy_router.transport.probe import Prober
from understudy_router.transport.wire import (
    OVERLOADED,
    HopConnection,
    HopFailure,
    WireError,
    WireReply,
    connect,
    decoded_reply,
)
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.hop import HopGroup, HopReply, HopRequest, HopTrace, encode_request
from understudy_shared.server.request_counts import DURATION_BOUNDS_MS
from understudy_shared.telemetry.histogram import Histogram

MAX_CONNECTIONS = 2
"""Hops in flight per node. With one the router idles while the node answers; more make hops small (decisions/0006)."""

FULL_KEYS = 64
"""So many keys that wait are sent before their loop tick ends: the node begins while the router parses the rest."""

LONE_HOPS = 4
"""After so many hops of one request, without another request meanwhile, the next request does not wait for others."""

_CLOSED = HopFailure(WireError.REFUSED, "the client of this node was closed")


class Known(NamedTuple):
    """What each hop tells the node: the newest end and the latest assignment that this router knows."""

    end_version: int
    term: int
    epoch: int


class Listener(Protocol):
    """Notified of the result of each hop."""

    def known(self) -> Known: ...

    def answered(self, node_id: str, reply: HopReply, took_ms: float) -> None: ...

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        """A hop failed. `sent` is False when nothing was sent, which says nothing about the node."""

    def silent(self, node_id: str, for_ms: float) -> None:
        """A node has answered nothing for so long, while others did. Called once until it answers again."""


class HopCounts:
    """Counters for the metrics."""

    def __init__(self) -> None:
        self.duration_ms = Histogram(DURATION_BOUNDS_MS)
        self.keys = 0
        self.failed = 0
        self.retried = 0
        self.silences = 0


class NodeClient:
    """The client of one node at one address. `heard_ms` is when the node last answered anything; `identity` is what it
    is shown.
    """

    def __init__(
        self,
        node_id: str,
        host: HostInfo,
        *,
        application_id: str,
        listener: Listener,
        counts: HopCounts,
        patience: Patience,
        clock: Clock,
        identity: ClusterIdentity | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.identity = identity or ClusterIdentity(None, application_id)
        self.heard_ms = -math.inf
        self.is_silent = False
        """Whether the node was reported silent and has answered nothing since."""
        self.carries_traces = False
        """Whether a request with a trace may wait or be in flight: else none is looked for."""
        self._application_id = application_id
        self._listener = listener
        self._counts = counts
        self._patience = patience
        self._clock = clock
        self._waiting = RequestQueue()
        self._idle: list[HopConnection] = []
        self._busy: dict[HopConnection, Hop] = {}
        self._flush_is_due = False
        self._lone_hops = 0
        """Hops in a row that carried one request, while no other request came."""
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._connect_wanted = asyncio.Event()
        self._connecting_since_ms: float | None = None
        self._tasks = Supervisor()
        self._tasks.start(f"connect to {node_id}", self._connect_when_wanted())
        self._prober = Prober(self, self._tasks, clock=clock)
        self.last_used_ms = clock.monotonic_ms()

    def __repr__(self) -> str:
        silent = ", silent" if self.is_silent else ""
        return f"NodeClient({self.node_id}, {len(self._busy)} hops in flight, {self._waiting.keys} keys wait{silent})"

    @property
    def dead(self) -> str | None:
        return self._tasks.dead

    @property
    def load(self) -> int:
        """Keys that wait or are in flight."""
        return self._waiting.keys + sum(hop.keys for hop in self._busy.values())

    @property
    def is_unused(self) -> bool:
        """Whether nothing waits, nothing is in flight, and no connection is being opened."""
        return not self._busy and not self._waiting and self._connecting_since_ms is None

    def submit(self, request: NodeRequest) -> None:
        """Send a request, together with others of this loop tick when requests do not come one by one. It always gets
        its outcomes.
        """
        if self._closed:
            request.finish(_CLOSED)
            return
        if not self._waiting.append(request):
            request.finish(HopFailure(OVERLOADED, f"{self._waiting.keys} keys wait for this node"))
            return
        if self._idle and self._waiting.keys >= FULL_KEYS:
            self._flush()
            return
        if self._flush_is_due:
            return
        if self._busy:
            self._lone_hops = 0
        elif self._lone_hops >= LONE_HOPS and self._idle:
            self._flush()
            return
        self._flush_is_due = True
        self._loop.call_soon(self._flush)

    def drop(self, request: NodeRequest) -> None:
        """Cancel a request. If it waits it is never sent; if it is in flight its hop goes on for the other requests."""
        self._waiting.drop(request)

    def probe(self, until_ms: float) -> asyncio.Future[float | HopFailure]:
        """Send an empty hop past the queue. Resolves to its latency in ms, or why there is no answer."""
        self.last_used_ms = self._clock.monotonic_ms()
        if self._closed:
            future: asyncio.Future[float | HopFailure] = self._loop.create_future()
            future.set_result(_CLOSED)
            return future
        return self._prober.probe(until_ms)

    @property
    def is_probed(self) -> bool:
        """Whether a probe is in flight."""
        return self._prober.is_busy

    def quiet_since_ms(self) -> float | None:
        """Since when the node owes a reply or a connection and has sent nothing; None when it owes nothing."""
        asked_ms = min((hop.sent_ms for hop in self._busy.values()), default=math.inf)
        if self._connecting_since_ms is not None:
            asked_ms = min(asked_ms, self._connecting_since_ms)
        return None if asked_ms == math.inf else max(asked_ms, self.heard_ms)

    def fall_silent(self, for_ms: float) -> None:
        """Report the node as silent, once until it answers again: other nodes answered meanwhile."""
        self.is_silent = True
        self._counts.silences += 1
        self._listener.silent(self.node_id, for_ms)

    def expire(self, now_ms: float) -> None:
        """Fail requests whose deadline passed, and close connections whose hop has no reader left."""
        if late := self._waiting.take_late(now_ms):
            self._failed(
                late, HopFailure(WireError.TIMEOUT, "it waited for a connection until its deadline"), sent=False
            )
        for connection, hop in list(self._busy.items()):
            if hop.first_until_ms > now_ms:
                continue
            if hop.is_over(now_ms):
                connection.give_up(WireError.TIMEOUT, f"no reply within {now_ms - hop.sent_ms:.0f} ms")
                continue
            for request in hop.requests:
                if request.until_ms <= now_ms:
                    request.finish(HopFailure(WireError.TIMEOUT, "no reply in time"))

    def report_delay(self, now_ms: float, *, overdue_ms: float, allowance: float) -> float:
        """Report delays: to all readers while the node is silent, else to those that wait for too long.

        A wait is too long after the hedge delay while `allowance` keys may still be hedged, and after `overdue_ms` in
        any case. Returns what is left of the allowance.
        """
        # The groups of `_all_requests` are sorted by age, so one look at the first skips a group that is young enough.
        if self.is_silent:
            for requests in self._all_requests():
                for request in requests:
                    request.report_delay(Delay.SILENT)
            return allowance
        active_ms, other_ms = self._patience.hedge_ms(is_active=True), self._patience.hedge_ms(is_active=False)
        first_ms = now_ms - min(active_ms, other_ms, overdue_ms)
        for requests in self._all_requests():
            if not requests or requests[0].asked_ms > first_ms:
                continue
            for request in requests:
                waited_ms = now_ms - request.asked_ms
                is_long = waited_ms >= (active_ms if request.is_active else other_ms) and len(request.keys) <= allowance
                if request.delay is None and request.is_wanted and (is_long or waited_ms >= overdue_ms):
                    allowance -= len(request.keys)
                    request.report_delay(Delay.SLOW)
        return allowance

    async def close(self) -> None:
        """Fail the requests that are left and close the connections."""
        self._closed = True
        await self._tasks.stop()
        self._prober.fail(_CLOSED)
        for connection in [*self._idle, *self._busy]:
            connection.give_up(WireError.RESET, "the client of this node was closed")
        self._idle.clear()
        self._fail_waiting(_CLOSED, sent=False)

    # ---- used by the prober

    def borrow(self) -> HopConnection | None:
        """Take an idle connection that is still open, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def give_back(self, connection: HopConnection) -> None:
        """Return a connection to the pool; it is closed when the pool is full."""
        if self._closed or len(self._busy) + len(self._idle) >= MAX_CONNECTIONS:
            connection.give_up(WireError.RESET, "the pool is full")
        elif connection.is_open:
            self._idle.append(connection)
            self._flush()

    def empty_hop(self, deadline_ms: int) -> bytes:
        """The body of a hop without keys."""
        return self._encode(deadline_ms, ())

    def heard(self, reply: HopReply, now_ms: float, took_ms: float) -> None:
        """The node answered, so it is not silent."""
        self.heard_ms = now_ms
        self.is_silent = False
        self._listener.answered(self.node_id, reply, took_ms)

    def unheard(self, failure: HopFailure) -> None:
        """The node did not answer a probe."""
        self._counts.failed += 1
        self._listener.failed(self.node_id, failure, sent=True)

    # ---- sending and receiving

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._waiting and self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._send(connection)
        if self._waiting and len(self._busy) < MAX_CONNECTIONS:
            self._connect_wanted.set()

    def _send(self, connection: HopConnection) -> None:
        requests = self._waiting.take()
        if not requests:
            self._idle.append(connection)
            return
        now_ms = self.last_used_ms = self._clock.monotonic_ms()
        hop = Hop(requests, now_ms)
        self._busy[connection] = hop
        traces = hop.traces if self.carries_traces else ()
        if not traces and not self._waiting and len(self._busy) == 1:
            self.carries_traces = False
        connection.send(self._encode(hop.deadline_ms, hop.groups, traces), self._done)

    def _done(self, connection: HopConnection, outcome: WireReply | HopFailure) -> None:
        hop = self._busy.pop(connection)
        now_ms = self._clock.monotonic_ms()
        self._counts.duration_ms.observe(now_ms - hop.sent_ms)
        self._counts.keys += hop.keys
        self._lone_hops = self._lone_hops + 1 if len(hop.requests) == 1 and not self._waiting else 0
        first = hop.requests[0]
        self._patience.took(now_ms - first.asked_ms, is_active=first.is_active)
        if isinstance(outcome, HopFailure):
            self._lost(hop, outcome)
        else:
            self._replied(hop, outcome, now_ms)
        if connection.is_open and not self._closed:
            self._idle.append(connection)
        self._flush()

    def _replied(self, hop: Hop, reply: WireReply, now_ms: float) -> None:
        decoded = decoded_reply(reply, keys=hop.keys)
        if isinstance(decoded, HopFailure):
            self.heard_ms = now_ms  # any reply proves that it is not silent
            self.is_silent = False
            self._failed(hop.requests, decoded, sent=True)
            return
        self.heard(decoded, now_ms, now_ms - hop.sent_ms)
        for request, outcomes in hop.shared_out(decoded.outcomes):
            request.finish(outcomes)

    def _lost(self, hop: Hop, failure: HopFailure) -> None:
        """No reply came. A hop that met a stale keep-alive connection is sent once more, on a fresh one."""
        if failure.is_stale and not self._closed and not any(request.retried for request in hop.requests):
            self._counts.retried += 1
            for request in hop.requests:
                request.retried = True
            for other in self._idle:  # they idled as long as the stale one
                other.give_up(WireError.RESET, "another connection to this node was stale")
            self._idle.clear()
            self._waiting.put_back(hop.requests)
            return
        if failure.reason == WireError.TOO_LARGE and len(hop.requests) > 1:  # each reply may be small enough by itself
            for request in hop.requests:
                request.alone = True
            self._waiting.put_back(hop.requests)
            return
        self._failed(hop.requests, failure, sent=not self._closed)

    def _failed(self, requests: Sequence[NodeRequest], failure: HopFailure, *, sent: bool) -> None:
        self._counts.failed += 1
        self._listener.failed(self.node_id, failure, sent=sent)
        for request in requests:
            request.finish(failure)

    def _all_requests(self) -> list[Sequence[NodeRequest]]:
        """All requests in groups; the first of each group has waited longest."""
        return [self._waiting.requests, *(hop.requests for hop in self._busy.values())]

    def _fail_waiting(self, failure: HopFailure, *, sent: bool) -> None:
        if requests := self._waiting.take_all():
            self._failed(requests, failure, sent=sent)

    def _encode(self, deadline_ms: int, groups: Sequence[HopGroup], traces: Sequence[HopTrace] = ()) -> bytes:
        end_version, term, epoch = self._listener.known()
        request = HopRequest(self._application_id, end_version, term, epoch, deadline_ms, groups, traces=traces)
        return encode_request(request)

    async def _connect_when_wanted(self) -> None:
        while True:
            await self._connect_wanted.wait()
            self._connect_wanted.clear()
            if self._waiting and len(self._busy) + len(self._idle) < MAX_CONNECTIONS:
                await self._connect()

    async def _connect(self) -> None:
        now_ms = self._connecting_since_ms = self._clock.monotonic_ms()
        connection = await connect(
            self.host, max(request.until_ms for request in self._waiting.requests) - now_ms, self.identity
        )
        self._connecting_since_ms = None
        if isinstance(connection, HopConnection):
            self._idle.append(connection)
            self._flush()
        elif not self._busy:  # else the requests go with the next hop of a connection that works
            self._fail_waiting(connection, sent=True)
