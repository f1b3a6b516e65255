"""Transports to a server in memory: the bytes of HTTP, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from understudy.client.core.exchange import Failure, FailureKind, Reply, Send
from understudy.client.transports.base import MAX_REPLY_BYTES
from understudy.client.transports.wire import ReplyParser, request_bytes
from understudy.testing.seam import MemoryConnection


class Connect(Protocol):
    """The function that opens a connection. Raises ConnectionRefusedError."""

    def __call__(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> MemoryConnection: ...


class MemoryTransport:
    """A transport that blocks. Each exchange has a connection of its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        came: SimpleQueue[bytes | None] = SimpleQueue()
        parser = ReplyParser(MAX_REPLY_BYTES)
        try:
            connection = self._connect(came.put, lambda: came.put(None))
        except ConnectionRefusedError as error:
            return _not_sent(error)
        try:
            connection.send(request_bytes(send))
            while (outcome := parser.reply or parser.failure) is None:
                data = came.get(timeout=max(0.0, send.deadline_s - monotonic()))
                if data is None:
                    return parser.end()
                parser.feed(data)
            return outcome
        except Empty:
            return _late(parser)
        finally:
            connection.hang_up()

    def close(self) -> None:
        """Do nothing: no connection is kept."""


class AsyncMemoryTransport:
    """A transport for an event loop, whichever it is. Each exchange has a connection of its own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        loop = asyncio.get_running_loop()
        came = _Coming(loop.create_future())
        try:
            connection = self._connect(
                lambda data: _tell(loop, came.hear, data),
                lambda: _tell(loop, came.lose),
            )
        except ConnectionRefusedError as error:
            return _not_sent(error)
        try:
            connection.send(request_bytes(send))
            async with asyncio.timeout(max(0.0, send.deadline_s - monotonic())):
                return await came.outcome
        except TimeoutError:
            return _late(came.parser)
        finally:
            connection.hang_up()

    async def aclose(self) -> None:
        """Do nothing: no connection is kept."""


class _Coming:
    """A reply that comes, on the client's loop."""

    def __init__(self, outcome: asyncio.Future[Reply | Failure]) -> None:
        self.outcome = outcome
        self.parser = ReplyParser(MAX_REPLY_BYTES)

    def hear(self, data: bytes) -> None:
        if not self.outcome.done():
            self.parser.feed(data)
            found = self.parser.reply or self.parser.failure
            if found is not None:
                self.outcome.set_result(found)

    def lose(self) -> None:
        if not self.outcome.done():
            self.outcome.set_result(self.parser.end())


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: bytes) -> None:
    with suppress(RuntimeError):  # the loop has ended, and its program with it
        loop.call_soon_threadsafe(function, *arguments)


def _not_sent(error: ConnectionRefusedError) -> Failure:
    return Failure(FailureKind.NOT_SENT, str(error))


def _late(parser: ReplyParser) -> Failure:
    return Failure(FailureKind.TIMEOUT, f"no reply in time, {parser.heard} bytes of one came")
