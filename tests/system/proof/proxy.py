"""A TCP proxy that misbehaves on order, in a process of its own: between routers and nodes, and before Redis.

Orders are lines of JSON on standard input, `{"proxy": name, "target": port}` to open one and `{"proxy": name,
"toxics": {...}}` to change its ways; each is answered by a line with the proxy's port. A change acts on open
connections, too. A stream that lost something on the way has a hole: such connections are reset at healing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

import uvloop

HOST = "127.0.0.1"
_ABORT = struct.pack("ii", 1, 0)
_BODY = b'{"type":"internal","title":"A planted failure","status":500}'
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_REPLIES = {
    500: (b"500 Internal Server Error", b"application/problem+json", _BODY),
    503: (b"503 Slow Down", b"application/xml", _SLOW_DOWN),
}
"""What a node of ours would say, and an S3 server."""


def _reply(status: int, *, is_head: bool) -> bytes:
    line, kind, body = _REPLIES[status]
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (line, kind, len(body))
    return head if is_head else head + body


@dataclass(frozen=True, slots=True)
class Toxics:
    """How a proxy misbehaves; the default is a good one.

    `cut_*`: bytes that way vanish and connections stay. `refuse`: nothing listens and what was open is reset. `reset`:
    connections are taken and reset. `answer`: HTTP requests are answered here, with this status.
    `delay_ms` and `bytes_per_s` hold both ways.
    """

    cut_to_server: bool = False
    cut_to_client: bool = False
    refuse: bool = False
    reset: bool = False
    answer: int | None = None
    delay_ms: int = 0
    bytes_per_s: int | None = None


CUT = Toxics(cut_to_server=True, cut_to_client=True)


class Proxy:
    """One listening port before one server."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.toxics = Toxics()
        self.links: set[Link] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Take connections; later times at the port of the first."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self).client, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def apply(self, toxics: Toxics) -> None:
        """Behave by these settings from now on."""
        before, self.toxics = self.toxics, toxics
        for link in tuple(self.links):
            link.changed(before, toxics)
        if toxics.refuse and self._server is not None:
            self._server.close()
            self._server = None
        elif not toxics.refuse and self._server is None:
            await self.listen()


class Side(asyncio.Protocol):
    """One end of a link: what it hears goes to the other end."""

    def __init__(self, link: Link, *, is_client: bool) -> None:
        self.link = link
        self.is_client = is_client
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.link.connected(self)

    def data_received(self, data: bytes) -> None:
        self.link.heard(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.lost(self, exc)

    def abort(self) -> None:
        """End with a reset, not in good order."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            self.transport.abort()


class Pipe:
    """One direction of a link, in order, with its delay and bandwidth."""

    def __init__(self, to: Side) -> None:
        self._to = to
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_due_s = 0.0

    def push(self, data: bytes | None, toxics: Toxics) -> None:
        """Send on, `None` for the end of the stream."""
        now_s = asyncio.get_running_loop().time()
        pause_s = 0.0 if toxics.bytes_per_s is None or data is None else len(data) / toxics.bytes_per_s
        self._last_due_s = max(now_s + toxics.delay_ms / 1000, self._last_due_s) + pause_s
        self._waiting.append((self._last_due_s, data))
        self.flush()

    def flush(self) -> None:
        """Hand over what is due, once a peer is there to take it."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._to.transport is not None:
            due_s, data = self._waiting[0]
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self.flush)
                return
            self._waiting.popleft()
            if data is None:
                self._to.transport.close()
            else:
                self._to.transport.write(data)


class Link:
    """A client's connection and the one made for it to the server."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.client = Side(self, is_client=True)
        self.server = Side(self, is_client=False)
        self._to_client = Pipe(self.client)
        self._to_server = Pipe(self.server)
        self._is_torn = False
        self._is_answered_here = False
        self._is_waiting = False
        """Whether the client spoke last: a request that has no answer yet."""
        self._is_head = False
        """Whether that request takes no body."""
        self._request = bytearray()
        self._connecting: asyncio.Future[Any] | None = None

    def connected(self, side: Side) -> None:
        """One end of the link is connected."""
        if side is self.server:
            self._to_server.flush()
            return
        self._proxy.links.add(self)
        if self._proxy.toxics.reset:
            self.abort()
        elif self._proxy.toxics.answer is not None:
            self._is_answered_here = True
        else:
            loop = asyncio.get_running_loop()
            connecting = loop.create_connection(lambda: self.server, HOST, self._proxy.target)
            trying = asyncio.ensure_future(connecting)
            trying.add_done_callback(self._tried)
            self._connecting = trying

    def heard(self, side: Side, data: bytes) -> None:
        """Take bytes from one end."""
        toxics = self._proxy.toxics
        self._is_waiting = side.is_client
        if side.is_client:
            self._is_head = data.startswith(b"HEAD ")
        if self._is_answered_here:
            if side.is_client:
                self._answer_here(data)
        elif toxics.cut_to_server if side.is_client else toxics.cut_to_client:
            self._is_torn = True
        else:
            (self._to_server if side.is_client else self._to_client).push(data, toxics)

    def lost(self, side: Side, exc: Exception | None) -> None:
        """One end is gone; the other learns it, if word of it gets through."""
        toxics = self._proxy.toxics
        other = self.server if side.is_client else self.client
        if toxics.cut_to_server if side.is_client else toxics.cut_to_client:
            self._is_torn = True
        elif exc is not None:
            other.abort()
        elif not (self._is_answered_here and not side.is_client):
            (self._to_server if side.is_client else self._to_client).push(None, toxics)
        if side.is_client:
            self._proxy.links.discard(self)

    def changed(self, before: Toxics, after: Toxics) -> None:
        """The proxy's ways changed under an open link."""
        healed = (before.cut_to_server and not after.cut_to_server) or (
            before.cut_to_client and not after.cut_to_client
        )
        if after.refuse or after.reset or (healed and self._is_torn):
            self.abort()
        elif after.answer is not None and not self._is_answered_here:
            self._is_answered_here = True
            self.server.abort()
            if self._is_waiting and self.client.transport is not None:
                self.client.transport.write(_reply(after.answer, is_head=self._is_head))
        elif before.answer is not None and after.answer is None:
            self.abort()

    def abort(self) -> None:
        """Reset both ends."""
        self.client.abort()
        self.server.abort()

    def _tried(self, connecting: asyncio.Future[Any]) -> None:
        if not connecting.cancelled() and connecting.exception() is not None:
            self.client.abort()

    def _answer_here(self, data: bytes) -> None:
        self._request += data
        while (head := self._request.find(b"\r\n\r\n")) >= 0 and self.client.transport is not None:
            length = 0
            for line in bytes(self._request[:head]).lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            if len(self._request) < head + 4 + length:
                return
            is_head = self._request.startswith(b"HEAD ")
            del self._request[: head + 4 + length]
            if (status := self._proxy.toxics.answer) is not None:
                self.client.transport.write(_reply(status, is_head=is_head))


async def serve() -> None:
    """Take orders until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    proxies: dict[str, Proxy] = {}
    while line := await reader.readline():
        order = json.loads(line)
        if "target" in order:
            proxies[order["proxy"]] = Proxy(order["target"])
            await proxies[order["proxy"]].listen()
        else:
            await proxies[order["proxy"]].apply(Toxics(**order["toxics"]))
        sys.stdout.write(f"{proxies[order['proxy']].port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve())
