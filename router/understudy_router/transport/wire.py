"""One connection to a node, with HTTP/1.1 and one hop at a time, and the decoding of the replies.

It uses asyncio's Protocol and httptools, because it carries nothing but hops (decisions/0006 has the numbers). Rule:
anything but exactly one reply to one hop closes the connection; no more bytes are read from it afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, cast

import httptools
import orjson

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.hop import CONTENT_TYPE, MAX_HOP_BYTES, PATH, HopReply, decode_reply
from understudy_shared.reads.hop_fields import BadHopError

MAX_HEAD_BYTES = 64 * 1024
"""Largest head of a reply in bytes; the heads of our nodes have a hundred bytes. A head without end would be read until
the deadline."""

MAX_REFUSAL_BYTES = 64 * 1024
"""Largest body of a reply other than 200: a problem, of which people see one line."""

MAX_DETAIL_CHARACTERS = 200
"""Most characters of a node's refusal that are kept with the events, and shown."""

OVERLOADED = "overloaded"


class WireError(StrEnum):
    """The ways in which a hop can fail without a usable reply."""

    REFUSED = "refused"
    RESET = "reset"
    TIMEOUT = "timeout"
    BAD_REPLY = "bad-reply"
    TOO_LARGE = "too-large"


class WireReply(NamedTuple):
    """The status and the body of an HTTP reply."""

    status: int
    body: bytes


class HopFailure(NamedTuple):
    """The reason why a node gave no outcomes: its name, and the details.

    `is_stale`: the node closed a used keep-alive connection before it read this hop, so it is safe to send it again.
    """

    reason: str
    detail: str
    is_stale: bool = False


Done = Callable[["HopConnection", WireReply | HopFailure], None]
"""A callback that is called once for each hop."""


async def connect(host: HostInfo, timeout_ms: float, identity: ClusterIdentity) -> HopConnection | HopFailure:
    """Open a connection on which hops show `identity`. Return it, or the failure."""
    loop = asyncio.get_running_loop()
    try:
        # A timeout of 0 would cancel even a connection that is made at once.
        async with asyncio.timeout(max(0.001, timeout_ms / 1000)):
            context = identity.peers
            _, connection = await loop.create_connection(
                lambda: HopConnection(host, identity),
                host.host,
                host.port,
                ssl=context,
                server_hostname=None if context is None else host.host,
            )
    except TimeoutError:
        return HopFailure(WireError.TIMEOUT, "no connection in time")
    except (OSError, UnicodeError) as error:
        return HopFailure(WireError.REFUSED, f"cannot connect: {identity.tls_failure(_place(host), error) or error}")
    return connection


_USUAL_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: " % CONTENT_TYPE


def _whole_body(data: bytes) -> bytes | None:
    """Return the body of a reply that came in one read with the head that our nodes send; `None` when the parser must
    read it.
    """
    if not data.startswith(_USUAL_HEAD):
        return None
    # The length is a few digits: the search must not run on into the body.
    end = data.find(b"\r\n\r\n", len(_USUAL_HEAD), len(_USUAL_HEAD) + 16)
    length = data[len(_USUAL_HEAD) : end]
    if end < 0 or not length.isdigit() or int(length) != len(data) - end - 4 or int(length) > MAX_HOP_BYTES:
        return None
    return data[end + 4 :]


def _place(host: HostInfo) -> str:
    return f"{host.host}:{host.port}"


class HopConnection(asyncio.Protocol):
    """A keep-alive connection. `used` counts the hops that got a reply on it."""

    def __init__(self, host: HostInfo, identity: ClusterIdentity) -> None:
        authority = f"[{host.host}]" if ":" in host.host else host.host
        self._head = (
            f"POST {PATH} HTTP/1.1\r\nhost: {authority}:{host.port}\r\ncontent-type: {CONTENT_TYPE.decode()}\r\n"
        ).encode()
        self._identity = identity
        self._host = host
        self.used = 0
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._keeps_alive = self._heard = False
        self._begin()

    def __repr__(self) -> str:
        state = "closed" if not self.is_open else "idle" if self._done is None else "busy"
        return f"HopConnection({state}, {self.used} hops)"

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, body: bytes, done: Done, identity: ClusterIdentity | None = None) -> None:
        """Send one hop; `done` gets its reply or the failure. The connection has to be open and idle. `identity` names
        the application of this hop: connections are shared.
        """
        assert self._transport is not None, "sent on a closed connection"
        assert self._done is None, "one hop at a time"
        self._done = done
        # The header is read for each hop: it changes when the cluster's secret is replaced.
        shown = (identity or self._identity).header
        self._transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (self._head, shown, len(body), body))

    def give_up(self, error: WireError, detail: str) -> None:
        """Close the connection; the hop in flight fails with this error."""
        self._close()
        self._finish(HopFailure(error, detail))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self._close()  # bytes without a hop in flight: not HTTP as we know it
            return
        # Only the first read can hold a whole reply; a later one continues what the parser began.
        is_first, self._heard = not self._heard, True
        body = _whole_body(data) if is_first else None
        if body is None:
            self._parse(data)
        else:
            self._keeps_alive = True
            self._reply(WireReply(200, body))

    def _parse(self, data: bytes) -> None:
        if not self._parts:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.give_up(WireError.BAD_REPLY, f"not an HTTP reply: {error}")
            return
        if self._size_bytes > MAX_HOP_BYTES:
            self.give_up(WireError.TOO_LARGE, f"a reply above {MAX_HOP_BYTES} bytes")
        elif self._size_bytes > MAX_REFUSAL_BYTES and self._parser.get_status_code() != 200:
            self.give_up(WireError.BAD_REPLY, f"a refusal above {MAX_REFUSAL_BYTES} bytes")
        elif self._head_bytes > MAX_HEAD_BYTES and not (self._parts or self._complete):
            self.give_up(WireError.BAD_REPLY, f"a reply whose head is above {MAX_HEAD_BYTES} bytes")
        elif self._messages > 1:
            self.give_up(WireError.BAD_REPLY, "more than one reply")
        elif self._complete:
            self._reply(WireReply(self._parser.get_status_code(), b"".join(self._parts)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        why = self._identity.tls_failure(_place(self._host), exc) or str(exc or "the node closed the connection")
        self._finish(HopFailure(WireError.RESET, why, is_stale=self.used > 0 and not self._heard))

    # ---- httptools' callbacks

    def on_body(self, body: bytes) -> None:
        self._size_bytes += len(body)
        # Beyond the limit the reply is refused: its bytes are counted, and not kept.
        if self._size_bytes <= MAX_HOP_BYTES:
            self._parts.append(body)

    def on_message_begin(self) -> None:
        self._messages += 1

    def on_message_complete(self) -> None:
        self._complete = True
        self._keeps_alive = self._parser.should_keep_alive()

    def _reply(self, reply: WireReply) -> None:
        # The state is reset before the callback, which may send the next hop on this connection.
        self.used += 1
        self._begin()
        if not self._keeps_alive:
            self._close()
        self._finish(reply)

    def _begin(self) -> None:
        """Reset the state for the next reply."""
        self._heard = False
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._head_bytes = 0
        self._messages = 0
        self._complete = False

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _finish(self, outcome: WireReply | HopFailure) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, outcome)


def decoded_reply(reply: WireReply, *, keys: int) -> HopReply | HopFailure:
    """Return the outcomes of a reply, one per key; or the failure that the reply stands for."""
    if reply.status != 200:
        return _refusal(reply)
    try:
        decoded = decode_reply(reply.body)
    except BadHopError as error:
        return HopFailure(WireError.BAD_REPLY, str(error))
    if len(decoded.outcomes) != keys:
        return HopFailure(WireError.BAD_REPLY, f"{len(decoded.outcomes)} outcomes for {keys} keys")
    return decoded


def _refusal(reply: WireReply) -> HopFailure:
    """Return the failure for a node that answered with a problem instead of outcomes. People see one line of its
    text.
    """
    try:
        problem = orjson.loads(reply.body)
        slug, detail = problem["type"], problem["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        slug = detail = None
    if not isinstance(slug, str) or not isinstance(detail, str):
        slug, detail = "", reply.body[:MAX_DETAIL_CHARACTERS].decode(errors="replace")
    detail = detail[:MAX_DETAIL_CHARACTERS]
    known = reply.status == 429 or slug == OVERLOADED
    return HopFailure(OVERLOADED if known else WireError.BAD_REPLY, f"status {reply.status}: {detail}")
