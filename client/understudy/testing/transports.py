"""Transports to a server in memory: the bytes of HTTP, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send
from understudy.client.transports.base import LATE, MAX_REPLY_BYTES
from understudy.client.transports.live_stream import LiveStream
from understudy.client.transports.wire import ReplyParser, StreamParser, request_bytes
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

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and a `Stream` of the rest."""
        came: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            connection = self._connect(came.put, lambda: came.put(None))
        except ConnectionRefusedError as error:
            return _not_sent(error)
        connection.send(request_bytes(send))
        stream, outcome = _MemoryStream(connection, came), None
        try:
            outcome = stream.opened(send.deadline_s)
        finally:
            if not isinstance(outcome, Opened):
                stream.close()
        return outcome

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

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and an `AsyncStream`."""
        loop = asyncio.get_running_loop()
        stream = LiveStream(MAX_REPLY_BYTES)
        try:
            connection = self._connect(
                lambda data: _tell(loop, stream.data_received, data),
                lambda: _tell(loop, stream.connection_lost, None),
            )
        except ConnectionRefusedError as error:
            return _not_sent(error)
        stream.connection_made(_Pipe(connection))
        outcome = None
        try:
            outcome = await stream.open(send)
        finally:
            if not isinstance(outcome, Opened):
                stream.close()
        return outcome

    async def aclose(self) -> None:
        """Do nothing: no connection is kept."""


class _MemoryStream:
    """The body of a reply as it comes."""

    def __init__(self, connection: MemoryConnection, came: SimpleQueue[bytes | None]) -> None:
        self._connection, self._came = connection, came
        self._parser = StreamParser(MAX_REPLY_BYTES)

    def opened(self, deadline_s: float) -> Opened | Reply | Failure:
        """Return the reply as it begins."""
        parser = self._parser
        while True:
            if parser.failure is None and parser.headers is not None:
                return parser.opened(self)
            outcome = parser.reply or parser.failure or self._heard(deadline_s)
            if outcome is not None:
                return outcome

    def receive(self, deadline_s: float) -> bytes | Failure:
        """See `Stream`."""
        while True:
            if data := self._parser.take():
                return data
            ended = self._parser.ended()
            if ended is None:
                ended = self._heard(deadline_s)
            if ended is not None:
                return ended

    def close(self) -> None:
        """See `Stream`."""
        self._connection.hang_up()
        self._came.put(None)  # wakes a thread that waits for more

    def _heard(self, deadline_s: float) -> Failure | None:
        try:
            data = self._came.get(timeout=max(0.0, deadline_s - monotonic()))
        except Empty:
            return LATE
        if data is None:
            return self._parser.end()
        self._parser.feed(data)
        return None


class _Pipe(asyncio.Transport):
    """A connection in memory as a transport of asyncio. It holds what comes, so it has no reason to pause."""

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.send(bytes(data))

    def abort(self) -> None:
        self._connection.hang_up()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


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


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    with suppress(RuntimeError):  # the loop has ended, and its program with it
        loop.call_soon_threadsafe(function, *arguments)


def _not_sent(error: ConnectionRefusedError) -> Failure:
    return Failure(FailureKind.NOT_SENT, str(error))


def _late(parser: ReplyParser) -> Failure:
    return Failure(FailureKind.TIMEOUT, f"no reply in time, {parser.heard} bytes of one came")
