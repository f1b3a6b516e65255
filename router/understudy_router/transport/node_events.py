"""The events of one watch at a node: a reply without an end, read no faster than it is passed on.

Each stream has a connection of its own. What the router does not read stays with the node, which then sends the newest
value only; so no queue grows anywhere.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httptools

from understudy_router.transport.wire import HopFailure, WireError, WireReply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.watch_events import MEDIA_TYPE

READ_BYTES: Final = 64 * 1024
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Limit on one event: it holds a value, which may be as long as any."""

MAX_REFUSAL_BYTES: Final = 64 * 1024
CONNECT_S: Final = 1.0


class NodeEvents:
    """A watch that a node has begun. `next` returns its events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._searched = 0
        self._status = 0
        """Status of the reply; 0 before its head."""
        self._is_complete = False
        self._kind = b""

    async def head(self) -> WireReply | None:
        """Return a refusal with its body; None when events follow. Raises ValueError for what no node sends."""
        while not self._status:
            await self._read()
        if self._status == 200:
            if self._kind.partition(b";")[0] != MEDIA_TYPE.encode():
                raise ValueError(f"the node answers with {self._kind[:100]!r}, not with events")
            return None
        while not self._is_complete:
            if len(self._body) > MAX_REFUSAL_BYTES:
                raise ValueError(f"a refusal has more than {MAX_REFUSAL_BYTES} bytes")
            await self._read()
        return WireReply(self._status, bytes(self._body))

    async def next(self) -> bytes | None:
        """Return the next event, without its empty line; None at the end. It may be cancelled and called again. Raises
        OSError for a connection that breaks, ValueError for what no node sends.
        """
        while True:
            event = self.buffered()
            if event is not None:
                return event
            if self._searched > MAX_EVENT_BYTES:
                raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
            if self._is_complete:
                return None
            await self._read()

    def buffered(self) -> bytes | None:
        """Return the next event, if all of it was read."""
        body = self._body
        end = body.find(b"\n\n", max(0, self._searched - 1))
        if end < 0:
            self._searched = len(body)
            return None
        event = bytes(body[:end])
        del body[: end + 2]
        self._searched = 0
        return event

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    def close(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection was closed by the node")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise ValueError(f"the reply is not HTTP: {error}") from None

    # ---- httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._kind = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()  # known here only: the parser forgets it with the last byte

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_complete = True


async def open_events(
    host: HostInfo, path: str, body: bytes, identity: ClusterIdentity, *, limit_s: float
) -> NodeEvents | WireReply | HopFailure:
    """Begin a watch at a node, within a time. Return it, or the node's refusal, or why there is neither."""
    events: NodeEvents | None = None
    refusal: WireReply | None = None
    failure: HopFailure | None = None
    try:
        async with asyncio.timeout(limit_s):
            events = await _connected(host, identity)
            events.send(_request(host, path, body, identity))
            refusal = await events.head()
    except TimeoutError:
        failure = HopFailure(WireError.TIMEOUT, "the node did not begin the watch in time")
    except ValueError as error:
        failure = HopFailure(WireError.BAD_REPLY, str(error))
    except OSError as error:
        trouble = identity.tls_failure(f"{host.host}:{host.port}", error)
        failure = HopFailure(WireError.REFUSED, f"cannot begin the watch: {trouble or error}")
    finally:
        is_good = events is not None and refusal is None and failure is None
        if events is not None and not is_good:
            events.close()
    if failure is not None:
        return failure
    assert events is not None, "it connected"
    return refusal or events


async def _connected(host: HostInfo, identity: ClusterIdentity) -> NodeEvents:
    context = identity.peers
    name = None if context is None else host.host
    async with asyncio.timeout(CONNECT_S):
        opened = await asyncio.open_connection(
            host.host, host.port, ssl=context, server_hostname=name, limit=READ_BYTES
        )
    return NodeEvents(*opened)


def _request(host: HostInfo, path: str, body: bytes, identity: ClusterIdentity) -> bytes:
    authority = f"[{host.host}]" if ":" in host.host else host.host
    head = f"POST {path} HTTP/1.1\r\nhost: {authority}:{host.port}\r\ncontent-type: application/json\r\n"
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head.encode(), identity.header, len(body), body)
