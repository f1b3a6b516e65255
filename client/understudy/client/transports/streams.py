"""The default transport of `AsyncClient`: HTTP/1.1 by protocols of asyncio, kept open between calls.

It uses protocols, not stream readers: each reply is one callback and one future. A cancelled call closes its
connection, so that no half reply stays in it. A slow reader of a stream pauses the connection, so that the server
notices and little is held here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import cast

from understudy.client.core.exchange import Endpoint, Failure, FailureKind, Opened, Reply, Send
from understudy.client.credentials import Trust, failure_text
from understudy.client.transports.base import (
    CLOSED,
    LATE,
    ReplyHeads,
    ReplyParser,
    StreamParser,
    request_bytes,
)

MAX_IDLE = 64
"""Connections to one server that are kept; more may be in use."""

MAX_HELD_BYTES = 256 * 1024
"""Bytes that wait for their reader before the connection is read no more."""


class LiveStream(asyncio.Protocol):
    """A connection with one request and a streamed reply."""

    def __init__(self) -> None:
        self._parser = StreamParser()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: Failure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send the request, and return its reply: with status 200 its head, and this stream."""
        parser = self._parser
        if self._transport is not None:  # else it is lost already
            self._transport.write(request_bytes(send))
        while True:
            if parser.failure is None and parser.headers is not None:
                return parser.opened(self)
            outcome = parser.reply or parser.failure or self._lost
            if outcome is not None:
                return outcome
            if not await self._hears(send.deadline_s):
                return LATE

    async def receive(self, deadline_s: float) -> bytes | Failure:
        """See `AsyncStream`."""
        parser = self._parser
        while True:
            if data := parser.take():
                self._go_on()
                return data
            ended = parser.ended()
            if ended is None:
                ended = self._lost
            if ended is not None:
                return ended
            if not await self._hears(deadline_s):
                return LATE

    def close(self) -> None:
        """See `AsyncStream`."""
        transport, self._transport = self._transport, None
        self._lose(CLOSED)
        if transport is None or self._loop is None:
            return
        with suppress(RuntimeError):  # no loop runs here
            if asyncio.get_running_loop() is self._loop:
                transport.abort()
                return
        with suppress(RuntimeError):  # the loop is closed: the connection ends with the transport
            self._loop.call_soon_threadsafe(transport.abort)

    async def _hears(self, deadline_s: float) -> bool:
        """Wait until something happens; return False where nothing did by then."""
        assert self._loop is not None
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, deadline_s - monotonic()), _release, waiter)
        try:
            await waiter
            return self._waiter is not waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            _release(waiter)

    def _lose(self, failure: Failure) -> None:
        if self._lost is None:
            self._lost = failure
        self._wake()

    def _go_on(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        if self._transport is not None and self._parser.held > MAX_HELD_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(self._parser.end() if exc is None else Failure(FailureKind.CUT, failure_text(exc)))


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class StreamTransport:
    """Connections of one event loop to the servers. Another loop, or a forked child, opens its own."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._known = ReplyHeads()
        self._idle: dict[Endpoint, deque[_StreamConnection]] = {}
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"StreamTransport({sum(map(len, self._idle.values()))} idle)"

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        loop = asyncio.get_running_loop()
        connection = self._take(send.endpoint, loop)
        if connection is None:
            made = connection = _StreamConnection()
            failure = await self._connect(send, lambda: made)
            if failure is not None:
                return failure
        try:
            outcome = await connection.exchange(send, self._known, loop)
        except BaseException:
            connection.abort()
            raise
        if connection.is_open:
            self._keep(send.endpoint, connection)
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.STALE:
            self._drop(send.endpoint)  # the server has left: the others are as old
        return outcome

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request, by a connection of its own, and return its reply by its deadline: with status 200 its head,
        and an `AsyncStream` of the rest.
        """
        stream = LiveStream()
        opened: Opened | Reply | Failure | None = None
        try:
            opened = await self._connect(send, lambda: stream) or await stream.open(send)
            return opened
        finally:
            if not isinstance(opened, Opened):
                stream.close()

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        for endpoint in list(self._idle):
            self._drop(endpoint)

    def _take(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> _StreamConnection | None:
        if loop is not self._loop or self._pid != os.getpid():
            self._idle, self._loop, self._pid = {}, loop, os.getpid()
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    def _keep(self, endpoint: Endpoint, connection: _StreamConnection) -> None:
        idle = self._idle.setdefault(endpoint, deque())
        if len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.abort()

    def _drop(self, endpoint: Endpoint) -> None:
        for connection in self._idle.pop(endpoint, ()):
            connection.abort()

    async def _connect(self, send: Send, make: Callable[[], asyncio.Protocol]) -> Failure | None:
        """Connect the protocol that `make` returns; return the failure where that cannot be done."""
        endpoint = send.endpoint
        context = self._trust.context() if endpoint.scheme == "https" else None
        try:
            async with asyncio.timeout(max(0.001, send.deadline_s - monotonic())):
                await asyncio.get_running_loop().create_connection(
                    make,
                    endpoint.host,
                    endpoint.port,
                    ssl=context,
                    server_hostname=None if context is None else endpoint.server_name,
                )
        except TimeoutError:
            return Failure(FailureKind.NOT_SENT, "no connection in time")
        except (OSError, ValueError) as error:
            return Failure(FailureKind.NOT_SENT, f"cannot connect: {failure_text(error)}")
        return None


class _StreamConnection(asyncio.Protocol):
    """A connection, with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: ReplyParser | None = None
        self._known: ReplyHeads | None = None
        """The known heads until the first bytes of a reply come."""
        self._done: asyncio.Future[Reply | Failure] | None = None
        self._is_used = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, send: Send, known: ReplyHeads, loop: asyncio.AbstractEventLoop) -> Reply | Failure:
        """Return what came of a request."""
        assert self._transport is not None
        self._known, self._parser, self._done = known, ReplyParser(known), loop.create_future()
        self._transport.write(request_bytes(send))
        timer = loop.call_later(max(0.001, send.deadline_s - monotonic()), self._expire)
        try:
            return await self._done
        finally:
            timer.cancel()
            self._is_used = True
            self._parser = self._done = None

    def abort(self) -> None:
        """Close the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or self._done is None or self._done.done():
            self.abort()  # bytes that answer no request
            return
        known, self._known = self._known, None
        reply = None if known is None else known.reply(data)
        if reply is not None:
            self._finish(reply)
            return
        parser.feed(data)
        outcome = parser.reply or parser.failure
        if outcome is not None:
            if not parser.keeps_alive:
                self.abort()
            self._finish(outcome)

    def eof_received(self) -> bool:
        return False  # the transport closes itself, and says so by connection_lost

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        parser = self._parser
        if parser is None:
            return
        failure = parser.end() if exc is None else Failure(FailureKind.CUT, failure_text(exc))
        is_stale = self._is_used and not parser.heard
        self._finish(Failure(FailureKind.STALE, failure.why) if is_stale else failure)

    def _expire(self) -> None:
        heard = 0 if self._parser is None else self._parser.heard
        self.abort()
        self._finish(Failure(FailureKind.TIMEOUT, f"no reply in time, {heard} bytes of one came"))

    def _finish(self, outcome: Reply | Failure) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(outcome)
