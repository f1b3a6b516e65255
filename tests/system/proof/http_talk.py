"""HTTP/1.1 as a load generator needs it: one request at a time over a connection that is kept, and no more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple, cast

HOST = "127.0.0.1"


def within(application: str, target: str) -> str:
    """Return the target of the same call about one application of a fleet; without an application, of the only one."""
    return target.replace("v1/", f"v1/applications/{application}/", 1) if application else target


class HttpReply(NamedTuple):
    """An answer: status, content type, body."""

    status: int
    content_type: str
    body: bytes


class Connection(asyncio.Protocol):
    """One kept connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[HttpReply] | None = None
        self._head: tuple[int, str, int, int] | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = self._parse(bytes(self._buffer[:end]), end + 4)
        status, content_type, start, length = self._head
        if len(self._buffer) >= start + length:
            body = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            self._head = None
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(HttpReply(status, content_type, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError(str(exc or "closed before an answer")))

    async def ask(self, request: bytes) -> HttpReply:
        """Send a request and wait for its answer. ConnectionError when the connection breaks first."""
        if not self.is_open or self._transport is None:
            raise ConnectionResetError("closed while idle")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _parse(self, head: bytes, start: int) -> tuple[int, str, int, int]:
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("connection", "").lower() == "close":
            self.is_open = False
        return int(status_line.split(" ")[1]), headers.get("content-type", ""), start, int(headers["content-length"])


class Pool:
    """Connections to one server: an idle one, or a new one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def ask(self, request: bytes) -> HttpReply:
        """Send a request and wait for its answer. OSError when there is no connection to be had, or when it breaks."""
        reused = self._take()
        if reused is not None:
            # The server may close it while it is idle; a fresh one then says whether the server is there.
            with suppress(ConnectionError):
                return await self._ask(reused, request)
        _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, self._port)
        return await self._ask(connection, request)

    async def _ask(self, connection: Connection, request: bytes) -> HttpReply:
        try:
            reply = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None
