"""The body of a reply as it comes, for event loops: the rest of what `StreamTransport` opened.

A reader that is slow stops the connection, so that the server notices and little is held here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import cast

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send
from understudy.client.transports.base import LATE
from understudy.client.transports.trust import failure_text
from understudy.client.transports.wire import StreamParser, request_bytes

MAX_HELD_BYTES = 256 * 1024
"""Bytes that wait for their reader before the connection is read no more."""


class LiveStream(asyncio.Protocol):
    """A connection with one request, whose reply is read while it comes."""

    def __init__(self, max_reply_bytes: int) -> None:
        self._parser = StreamParser(max_reply_bytes)
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
        self._lose(Failure(FailureKind.CUT, "the stream was closed"))
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
