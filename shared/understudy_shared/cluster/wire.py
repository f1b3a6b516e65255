"""One connection to a node: HTTP/1.1, one request at a time. Hops, calls and streams of events all travel on it.

It uses asyncio's Protocol and httptools, because a general client costs many times as much as the hop itself
(decisions/0006 has the numbers). A connection is in one of four states:

    idle      open, without a request in flight           `send` -> hop, `ask` -> asked
    hop       a callback waits for the whole reply        the reply -> idle
    asked     a caller reads the reply piece by piece     `read` to its end -> idle
    closed    by either side, and for good

Rule: anything but exactly one reply to one request closes the connection, and no more bytes are read from it. If a
caller stops in the middle, the state stays hop or asked, and the caller must close the connection (`give_up`): its
reply may still arrive, and must not be taken for the reply to another request. So an idle connection is clean, whatever
was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, cast

import httptools

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import HostInfo
from understudy_shared.questions.lookup.hop import CONTENT_TYPE, MAX_HOP_BYTES, PATH

MAX_HEAD_BYTES = 64 * 1024
"""Limit on the head of a reply in bytes. Heads of our nodes have a hundred bytes. An endless head would be read until
the deadline."""

MAX_REFUSAL_BYTES = 64 * 1024
"""Limit on the body of a hop's reply with a status other than 200: a problem, of which people see one line."""

READ_AHEAD_BYTES: Final = 64 * 1024
"""Number of unread bytes of a reply above which reading from the node pauses."""


class WireError(StrEnum):
    """The ways in which a request can fail without a usable reply."""

    REFUSED = "refused"
    RESET = "reset"
    TIMEOUT = "timeout"
    BAD_REPLY = "bad-reply"
    TOO_LARGE = "too-large"


class WireReply(NamedTuple):
    """The status and the body of an HTTP reply. Names in `headers` are in lower case; for hops it is empty."""

    status: int
    body: bytes
    headers: Mapping[bytes, bytes] = {}


class HopFailure(NamedTuple):
    """The reason why a node gave no usable reply: its name, and the details.

    `is_stale`: the node closed a used keep-alive connection before it read this request, so it is safe to send it
    again.
    """

    reason: str
    detail: str
    is_stale: bool = False


class WireFailedError(ConnectionError):
    """A connection failed while a reply was read."""

    def __init__(self, failure: HopFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


_CLOSED: Final = HopFailure(WireError.RESET, "the node closed the connection")

Done = Callable[["WireConnection", WireReply | HopFailure], None]
"""A callback that is called once for each hop."""


async def connect(host: HostInfo, within_s: float, identity: ClusterIdentity) -> WireConnection | HopFailure:
    """Open a connection whose requests carry `identity`. Return it, or the failure. A cancellation at any point leaves
    no connection open.
    """
    connection: WireConnection | None = None
    is_handed_out = False
    try:
        connection = made = WireConnection(host, identity)
        context = identity.peers
        # A timeout of 0 would cancel even a connection that is made at once.
        async with asyncio.timeout(max(0.001, within_s)):
            await asyncio.get_running_loop().create_connection(
                lambda: made, host.host, host.port, ssl=context, server_hostname=None if context is None else host.host
            )
        is_handed_out = True
    except TimeoutError:
        return HopFailure(WireError.TIMEOUT, "no connection in time")
    except (OSError, ValueError) as error:  # ValueError: a malformed host
        trouble = identity.tls_failure(authority_of(host), error)
        return HopFailure(WireError.REFUSED, f"cannot connect: {trouble or error or type(error).__name__}")
    finally:
        if connection is not None and not is_handed_out:
            connection.give_up(WireError.TIMEOUT, "the caller stopped waiting")
    return connection


def authority_of(host: HostInfo) -> str:
    """Return an address in the form of URLs and the header `host`."""
    return f"[{host.host}]:{host.port}" if ":" in host.host else f"{host.host}:{host.port}"


_USUAL_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: " % CONTENT_TYPE


def _whole_body(data: bytes) -> bytes | None:
    """Return the body of a reply if one read has all of it, with the head that our nodes send to hops; `None`: the
    parser must read it.
    """
    if not data.startswith(_USUAL_HEAD):
        return None
    # The length is a few digits: the search must not run on into the body.
    end = data.find(b"\r\n\r\n", len(_USUAL_HEAD), len(_USUAL_HEAD) + 16)
    length = data[len(_USUAL_HEAD) : end]
    if end < 0 or not length.isdigit() or int(length) != len(data) - end - 4 or int(length) > MAX_HOP_BYTES:
        return None
    return data[end + 4 :]


class WireConnection(asyncio.Protocol):
    """A keep-alive connection. `used` counts the requests that got a reply on it."""

    def __init__(self, host: HostInfo, identity: ClusterIdentity) -> None:
        """Prepare a connection. Raises ValueError for a host that no header can name."""
        authority = authority_of(host)
        if not authority.isascii() or not authority.isprintable() or " " in authority:
            raise ValueError(f"{authority!r:.100} names no host")
        self.host = host
        self.used = 0
        self._identity = identity
        self._host_line = f"host: {authority}\r\n".encode()
        self._hop_head = b"POST %b HTTP/1.1\r\n%bcontent-type: %b\r\n" % (PATH.encode(), self._host_line, CONTENT_TYPE)
        self._transport: asyncio.Transport | None = None
        self._is_given_up = False
        self._done: Done | None = None
        self._is_asked = False
        self._failure: HopFailure | None = None
        """The reason why a reply that is read piece by piece has failed."""
        self._news: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._keeps_alive = self._heard = self._has_head = self._complete = self._is_paused = False
        self._begin()

    def __repr__(self) -> str:
        state = "closed" if not self.is_open else "idle" if self.is_idle else "busy"
        return f"WireConnection({state}, {self.used} replies)"

    @property
    def is_open(self) -> bool:
        # After the node has closed it, the transport is closing for a turn of the loop, and uvloop raises on a write.
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        transport = self._transport  # as in `is_open`
        return self._done is None and not self._is_asked and transport is not None and not transport.is_closing()

    def give_up(self, error: WireError, detail: str) -> None:
        """Close the connection; the request in flight fails with this error."""
        self._is_given_up = True
        self._close()
        self._finish(HopFailure(error, detail))

    # ---- hops: the whole reply at once

    def send(self, body: bytes, done: Done, identity: ClusterIdentity | None = None) -> None:
        """Send one hop; `done` gets the reply or the failure. The connection must be idle. `identity` names the
        application of this hop, because applications share connections.
        """
        assert self._transport is not None, "sent on a closed connection"
        assert self._done is None, "one hop at a time"
        assert not self._is_asked, "a reply is being read"
        self._done = done
        # The header is read for each hop: it changes when the cluster's secret is replaced.
        shown = (identity or self._identity).header
        self._transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self._hop_head, shown, len(body), body))

    async def exchange(self, body: bytes, identity: ClusterIdentity) -> WireReply | HopFailure:
        """Send one hop, and return its reply or the failure. A cancellation closes the connection."""
        if not self.is_open:
            return _CLOSED
        replied: asyncio.Future[WireReply | HopFailure] = asyncio.get_running_loop().create_future()

        def done(_: WireConnection, outcome: WireReply | HopFailure) -> None:
            if not replied.done():
                replied.set_result(outcome)

        self.send(body, done, identity)
        try:
            return await replied
        finally:
            if self._done is done:
                self.give_up(WireError.TIMEOUT, "the caller stopped waiting")

    # ---- calls and streams: the head, and then the body piece by piece

    async def ask(
        self, method: str, path: str, headers: Sequence[bytes], body: bytes | None, identity: ClusterIdentity
    ) -> WireReply:
        """Send a request, and return the head of its reply; `read` returns the rest. The connection must be idle.
        Raises WireFailedError.
        """
        assert self._done is None and not self._is_asked, "the connection is busy"  # noqa: PT018
        if not self.is_open or self._transport is None:
            raise WireFailedError(_CLOSED)
        self._is_asked = True
        lines = [f"{method} {path} HTTP/1.1\r\n".encode(), self._host_line, *headers, identity.header]
        if body is not None:
            lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        self._transport.write(b"%b\r\n%b" % (b"".join(lines), body or b""))
        while not self._has_head:
            await self._wait()
        return WireReply(self._status, b"", self._headers)

    async def read(self) -> bytes:
        """Return the next bytes of the body as they were sent; `b""` at its end, when the connection is idle again. It
        may be cancelled and called again. Raises WireFailedError.
        """
        while not self._parts:
            if self._complete:
                self._replied()
                return b""
            await self._wait()
        part = b"".join(self._parts)
        self._parts.clear()
        self._size_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return part

    async def _wait(self) -> None:
        """Wait for more of the reply. Raises WireFailedError if the connection fails."""
        if self._failure is not None:
            raise WireFailedError(self._failure)
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        if self._is_given_up:
            self._close()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._done is None:
            if self._is_asked:
                self._parse(data)
            else:
                self._close()  # bytes without a request in flight: not HTTP as we know it
            return
        # Only the first read can hold a whole reply; a later one continues what the parser began.
        body = None if self._heard else _whole_body(data)
        if body is None:
            self._parse(data)
        else:
            self._keeps_alive = True
            self._finish(WireReply(200, body))

    def _parse(self, data: bytes) -> None:
        self._heard = True
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.give_up(WireError.BAD_REPLY, f"not an HTTP reply: {error}")
            return
        if self._done is not None and self._size_bytes > MAX_HOP_BYTES:
            self.give_up(WireError.TOO_LARGE, f"a reply above {MAX_HOP_BYTES} bytes")
        elif self._done is not None and self._size_bytes > MAX_REFUSAL_BYTES and self._status != 200:
            self.give_up(WireError.BAD_REPLY, f"a refusal above {MAX_REFUSAL_BYTES} bytes")
        elif self._head_bytes > MAX_HEAD_BYTES and not self._has_head:
            self.give_up(WireError.BAD_REPLY, f"a reply whose head is above {MAX_HEAD_BYTES} bytes")
        elif self._messages > 1:
            self._parts.clear()  # they may mix both replies
            self.give_up(WireError.BAD_REPLY, "more than one reply")
        elif self._is_asked:
            self._take_a_part()
        elif self._complete:
            self._finish(WireReply(self._status, b"".join(self._parts)))

    def _take_a_part(self) -> None:
        assert self._transport is not None
        if self._size_bytes > READ_AHEAD_BYTES and not self._is_paused and not self._complete:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        trouble = self._identity.tls_failure(authority_of(self.host), exc)
        why = trouble or str(exc or _CLOSED.detail)
        self._finish(HopFailure(WireError.RESET, why, is_stale=self.used > 0 and not self._heard))

    # ---- httptools' callbacks

    def on_message_begin(self) -> None:
        self._messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_asked and not self._has_head:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self._has_head:  # the parser forgets the status with the last byte
            self._has_head, self._status = True, self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._size_bytes += len(body)
        # Above the limit the reply to a hop is refused, so its bytes are only counted.
        if self._is_asked or self._size_bytes <= MAX_HOP_BYTES:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._keeps_alive = self._parser.should_keep_alive()

    # ---- the ends of a reply

    def _finish(self, outcome: WireReply | HopFailure) -> None:
        done, self._done = self._done, None
        if isinstance(outcome, HopFailure):
            if self._is_asked and (self._is_given_up or not self._complete):
                self._failure, self._complete = self._failure or outcome, False
                self._wake()
        else:
            self._replied()  # before the callback, which may send the next hop on this connection
        if done is not None:
            done(self, outcome)

    def _replied(self) -> None:
        """Become idle after a whole reply, or close the connection if the node does not keep it alive."""
        self.used += 1
        self._is_asked = False
        self._begin()
        if not self._keeps_alive:
            self._close()

    def _begin(self) -> None:
        self._heard = self._has_head = self._complete = self._is_paused = False
        self._status = self._size_bytes = self._head_bytes = self._messages = 0
        self._headers = {}
        self._parts = []

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
