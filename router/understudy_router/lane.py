"""The way to one node: what is asked of it within a turn of the loop leaves as one request.

A lane keeps a few connections. While all of them carry a hop, asks wait in a bounded queue and travel together with the
next: a busy node is asked in larger hops, an idle one at once. Nothing is decided here about who else could be asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

import orjson

from understudy_router.asks import Ask, Hop, HopFailure, take
from understudy_router.wire import HopConnection, WireError, WireFailure, WireReply
from understudy_shared.clock import Clock
from understudy_shared.hop import BadHopError, HopReply, decode_reply
from understudy_shared.supervise import Supervisor
from understudy_shared.words import HostInfo

MAX_CONNECTIONS = 2
"""Hops in flight per node: with one the router idles while the node answers, more make hops small (decisions/0006)."""

MAX_WAITING_KEYS = 16_384
"""Keys that wait for one node; one more is refused as overloaded. About 4 MB of small keys."""

OVERLOADED = "overloaded"


class Known(NamedTuple):
    """What a hop tells of the world as this router knows it."""

    end_version: int
    term: int
    epoch: int


class Listener(Protocol):
    """Who wants to know how hops go."""

    def known(self) -> Known: ...
    def answered(self, node_id: str, reply: HopReply) -> None: ...
    def failed(self, node_id: str, failure: HopFailure) -> None: ...


class HopCounts:
    """Totals for the metrics."""

    def __init__(self) -> None:
        self.hops = 0
        self.keys = 0
        self.seconds = 0.0
        self.failed = 0
        self.retried = 0


class Lane:
    """The way to one node at one address."""

    def __init__(
        self, node_id: str, host: HostInfo, *, application_id: str, listener: Listener, counts: HopCounts, clock: Clock
    ) -> None:
        self.node_id = node_id
        self.host = host
        self._application_id = application_id
        self._listener = listener
        self._counts = counts
        self._clock = clock
        self._waiting: deque[Ask] = deque()
        self._waiting_keys = 0
        self._idle: list[HopConnection] = []
        self._busy: dict[HopConnection, Hop] = {}
        self._flush_is_due = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._connect_wanted = asyncio.Event()
        self._connect_until_ms = 0.0
        self._tasks = Supervisor()
        self._tasks.start(f"connect to {node_id}", self._connect_when_wanted())
        self.last_used_ms = clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"Lane({self.node_id}, {len(self._busy)} hops in flight, {self._waiting_keys} keys wait)"

    @property
    def dead(self) -> str | None:
        return self._tasks.dead

    @property
    def load(self) -> int:
        """Keys that wait or travel."""
        return self._waiting_keys + sum(hop.keys for hop in self._busy.values())

    def ask(self, ask: Ask) -> None:
        """Send it with all that is asked of this node in this turn. Its future always gets a result."""
        if self._closed:
            ask.finish(HopFailure(WireError.REFUSED, "the way to this node was closed"))
            return
        if self._waiting_keys + len(ask.keys) > MAX_WAITING_KEYS:
            ask.finish(HopFailure(OVERLOADED, f"{self._waiting_keys} keys wait for this node"))
            return
        self._waiting.append(ask)
        self._waiting_keys += len(ask.keys)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def expire(self, now_ms: float) -> None:
        """Fail what waited for too long, and close the connections whose hop took too long."""
        if any(ask.until_ms <= now_ms for ask in self._waiting):
            late = [ask for ask in self._waiting if ask.until_ms <= now_ms]
            self._keep_waiting([ask for ask in self._waiting if ask.until_ms > now_ms])
            self._failed(late, HopFailure(WireError.TIMEOUT, "it waited for its turn until its time was over"))
        for connection, hop in list(self._busy.items()):
            if hop.until_ms <= now_ms:
                connection.give_up(WireError.TIMEOUT, f"no reply within {now_ms - hop.sent_ms:.0f} ms")
            else:
                for ask in hop.asks:
                    if ask.until_ms <= now_ms:
                        ask.finish(HopFailure(WireError.TIMEOUT, "no reply in time"))

    async def close(self) -> None:
        """Fail what is left and close the connections."""
        self._closed = True
        await self._tasks.stop()
        for connection in [*self._idle, *self._busy]:
            connection.give_up(WireError.RESET, "the way to this node was closed")
        self._idle.clear()
        self._fail_waiting(HopFailure(WireError.REFUSED, "the way to this node was closed"))

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._waiting and self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self._send(connection)
        if self._waiting and len(self._busy) < MAX_CONNECTIONS:
            self._connect_wanted.set()

    def _send(self, connection: HopConnection) -> None:
        asks = take(self._waiting)
        now_ms = self.last_used_ms = self._clock.monotonic_ms()
        hop = Hop(asks, now_ms)
        self._waiting_keys -= hop.keys
        self._busy[connection] = hop
        known = self._listener.known()
        body = hop.encode(
            application_id=self._application_id, end_version=known.end_version, term=known.term, epoch=known.epoch
        )
        connection.send(body, self._done)

    def _done(self, connection: HopConnection, outcome: WireReply | WireFailure) -> None:
        hop = self._busy.pop(connection)
        self._counts.hops += 1
        self._counts.keys += hop.keys
        self._counts.seconds += (self._clock.monotonic_ms() - hop.sent_ms) / 1000
        if isinstance(outcome, WireFailure):
            self._lost(connection, hop, outcome)
        else:
            self._replied(hop, outcome)
        if connection.is_open and not self._closed:
            self._idle.append(connection)
        self._flush()

    def _replied(self, hop: Hop, reply: WireReply) -> None:
        if reply.status != 200:
            self._failed(hop.asks, _refusal(reply))
            return
        try:
            decoded = decode_reply(reply.body)
        except BadHopError as error:
            self._failed(hop.asks, HopFailure(WireError.BAD_REPLY, str(error)))
            return
        if len(decoded.outcomes) != hop.keys:
            detail = f"{len(decoded.outcomes)} outcomes for {hop.keys} keys"
            self._failed(hop.asks, HopFailure(WireError.BAD_REPLY, detail))
            return
        self._listener.answered(self.node_id, decoded)
        for ask, outcomes in hop.shared_out(decoded.outcomes):
            ask.finish(outcomes)

    def _lost(self, connection: HopConnection, hop: Hop, failure: WireFailure) -> None:
        """No reply. What went out on a connection that had gone stale meanwhile is sent once more, on a fresh one."""
        is_stale = failure.error is WireError.RESET and connection.used > 0 and not failure.heard
        if is_stale and not self._closed and not any(ask.retried for ask in hop.asks):
            self._counts.retried += 1
            for ask in hop.asks:
                ask.retried = True
            for other in self._idle:  # as old as the one that was stale
                other.give_up(WireError.RESET, "another connection to this node was stale")
            self._idle.clear()
            self._keep_waiting([*hop.asks, *self._waiting])
            return
        if failure.error is WireError.TOO_LARGE and len(hop.asks) > 1:  # each may be small enough by itself
            for ask in hop.asks:
                ask.alone = True
            self._keep_waiting([*hop.asks, *self._waiting])
            return
        self._failed(hop.asks, HopFailure(failure.error, failure.detail))

    def _failed(self, asks: list[Ask], failure: HopFailure) -> None:
        self._counts.failed += 1
        self._listener.failed(self.node_id, failure)
        for ask in asks:
            ask.finish(failure)

    def _keep_waiting(self, asks: list[Ask]) -> None:
        self._waiting = deque(asks)
        self._waiting_keys = sum(len(ask.keys) for ask in asks)

    def _fail_waiting(self, failure: HopFailure) -> None:
        asks = list(self._waiting)
        self._keep_waiting([])
        if asks:
            self._failed(asks, failure)

    async def _connect_when_wanted(self) -> None:
        while True:
            await self._connect_wanted.wait()
            self._connect_wanted.clear()
            if self._waiting and len(self._busy) + len(self._idle) < MAX_CONNECTIONS:
                await self._connect()

    async def _connect(self) -> None:
        timeout_s = max(0.001, (max(ask.until_ms for ask in self._waiting) - self._clock.monotonic_ms()) / 1000)
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: HopConnection(self.host), self.host.host, self.host.port
                )
        except TimeoutError:
            self._cannot_connect(HopFailure(WireError.TIMEOUT, "no connection in time"))
        except (OSError, UnicodeError) as error:
            self._cannot_connect(HopFailure(WireError.REFUSED, f"cannot connect: {error}"))
        else:
            self._idle.append(connection)
            self._flush()

    def _cannot_connect(self, failure: HopFailure) -> None:
        if not self._busy:  # else they go with the next hop on a connection that works
            self._fail_waiting(failure)


def _refusal(reply: WireReply) -> HopFailure:
    """A node that answered with a problem instead of outcomes."""
    try:
        problem = orjson.loads(reply.body)
        slug, detail = str(problem["type"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        slug, detail = "", reply.body[:200].decode(errors="replace")
    known = reply.status == 429 or slug == OVERLOADED
    return HopFailure(OVERLOADED if known else WireError.BAD_REPLY, f"status {reply.status}: {detail}")
