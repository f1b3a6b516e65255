"""The seam to the network, and HTTP/1.1 as the client speaks it: the bytes of a request, and the parser of a reply."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Protocol

import httptools

from understudy.client.core.exchange import Endpoint, Failure, FailureKind, Headers, Opened, Reply, Send

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Largest body of a reply, in bytes: the largest batch that servers give has half of it."""

LATE = Failure(FailureKind.TIMEOUT, "nothing came in time")
CLOSED = Failure(FailureKind.CUT, "the stream was closed")


class Stream(Protocol):
    """The body of a reply as it comes. One thread reads it; any may close it."""

    def receive(self, deadline_s: float) -> bytes | Failure:
        """Return what came, empty bytes at the whole end, or the reason without either, by a deadline."""

    def close(self) -> None:
        """Close the connection at once. Who waits for more gets a failure."""


class AsyncStream(Protocol):
    """The same for an event loop. One task reads it."""

    async def receive(self, deadline_s: float) -> bytes | Failure:
        """Return what came, empty bytes at the whole end, or the reason without either, by a deadline."""

    def close(self) -> None:
        """Close the connection at once, without waiting; at the end of its loop, too."""


class Transport(Protocol):
    """A carrier that blocks. Threads share it."""

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and a `Stream` of the rest."""

    def close(self) -> None:
        """Close all connections. A later exchange opens new ones."""


class AsyncTransport(Protocol):
    """A carrier for an event loop. Tasks share it."""

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply by its deadline: with status 200 its head, and an `AsyncStream`."""

    async def aclose(self) -> None:
        """Close all connections. A later exchange opens new ones."""


MAX_HEAD_BYTES = 64 * 1024
"""Largest head of a reply in bytes; servers send a few hundred."""

_MAX_INTERIM_REPLIES = 8
_END_OF_HEAD = b"\r\n\r\n"
_MAX_KNOWN_HEADS, _MAX_KNOWN_HEAD_BYTES = 256, 1024
_READ_HEADERS = (b"content-type", b"retry-after", b"etag")


def request_bytes(send: Send) -> bytes:
    """Return the bytes of a request."""
    endpoint, request = send.endpoint, send.request
    body = request.body
    head = f"{request.method} {endpoint.prefix}{request.target} HTTP/1.1\r\n{_header_lines(endpoint, send.headers)}"
    if body is None:
        return f"{head}\r\n".encode("ascii")
    return f"{head}content-length: {len(body)}\r\n\r\n".encode("ascii") + body


@lru_cache(maxsize=64)
def _header_lines(endpoint: Endpoint, headers: Headers) -> str:
    """Return the header lines that most requests to a server have in common."""
    return "".join([f"host: {endpoint.authority}\r\n", *(f"{name}: {value}\r\n" for name, value in headers)])


class ReplyHeads:
    """A cache of parsed heads of replies: a reply with the same head, and a body as long, is not parsed again.

    Rule: only heads that nothing but their body follows, on connections that are kept. Threads share it.
    """

    def __init__(self) -> None:
        self._replies: dict[bytes, tuple[int, Reply]] = {}

    def reply(self, data: bytes) -> Reply | None:
        """Return the reply that these bytes are, if they are a whole one with a known head."""
        start = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        known = self._replies.get(data[:start])
        if known is None or known[0] != len(data):
            return None
        status, content_type, _, retry_after, etag = known[1]
        return Reply(status, content_type, data[start:], retry_after, etag)

    def keep(self, data: bytes, reply: Reply) -> None:
        """Keep the head of a reply that these bytes were parsed to."""
        start = len(data) - len(reply.body)
        if data.find(_END_OF_HEAD) + len(_END_OF_HEAD) == start <= _MAX_KNOWN_HEAD_BYTES:
            if len(self._replies) >= _MAX_KNOWN_HEADS:
                self._replies.clear()
            self._replies[data[:start]] = (len(data), reply._replace(body=b""))


class ReplyParser:
    """A parser of one reply. After the bytes of one read it is complete, has failed, or wants more.

    Rule: bytes after the reply make it fail. They would be taken for the answer to the next request.
    """

    __slots__ = (
        *("_body", "_headers", "_keeps_alive", "_known", "_max_body", "_parser", "_size", "_whole"),
        *("failure", "heard", "reply"),
    )

    def __init__(self, known: ReplyHeads | None = None) -> None:
        self._known = known
        self._parser: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size, self._max_body = 0, MAX_REPLY_BYTES
        self._whole = 0
        self._keeps_alive = False
        self.heard = 0
        self.reply: Reply | None = None
        self.failure: Failure | None = None

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return self.failure is None and self._keeps_alive

    def feed(self, data: bytes) -> None:
        """Read the next bytes, which are not empty."""
        is_first = not self.heard
        self.heard += len(data)
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switches protocols")
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP reply: {error}")
        if self.heard - self._size > MAX_HEAD_BYTES + 8 * self._size:  # chunks have heads, too
            self._fail(f"a head above {MAX_HEAD_BYTES} bytes")
        elif self._size > self._max_body:
            self._fail(f"a body above {self._max_body} bytes")
        if is_first and self._known is not None and self.reply is not None and self._keeps_alive:
            self._known.keep(data, self.reply)

    def end(self) -> Failure:
        """Return what the end of the connection means while the reply is not complete."""
        has_length = not self._headers.keys().isdisjoint((b"content-length", b"transfer-encoding"))
        if self._size and not has_length:
            why = "a reply without a length, so its end cannot be told from a cut"
            return Failure(FailureKind.BAD_REPLY, why)
        where = f"after {self._size} bytes of the body" if self._size else f"after {self.heard} bytes"
        return Failure(FailureKind.CUT, f"the server closed the connection {where}")

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure, self.reply = Failure(FailureKind.BAD_REPLY, why), None

    # ---- callbacks of httptools

    def on_message_begin(self) -> None:
        if self.reply is not None or self._whole > _MAX_INTERIM_REPLIES:
            self._fail("more than one reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._whole += 1
        if status < 200:  # an interim reply: the real one follows
            self._headers.clear()
            return
        self._keeps_alive = self._parser.should_keep_alive()  # known here only: the parser is reset after this
        headers = self._headers
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self._fail("a compressed reply, which was not asked for")
            return
        kind, advice, tag = [headers.get(name, b"").decode("latin-1") for name in _READ_HEADERS]
        self.reply = Reply(status, kind, b"".join(self._body), advice, tag)


class StreamParser(ReplyParser):
    """A parser of one reply that streams the body of a status 200. `headers` are set then.

    After the whole end of the body `is_whole` is true. A reply of another status is kept whole, as `reply`.
    """

    __slots__ = ("headers", "is_whole")

    def __init__(self) -> None:
        super().__init__()
        self.headers: dict[str, str] | None = None
        self.is_whole = False

    @property
    def held(self) -> int:
        """The number of bytes that wait to be taken."""
        return sum(map(len, self._body))

    def take(self) -> bytes:
        """Return what came of the body since the last call."""
        found = b"".join(self._body)
        self._body.clear()
        return found

    def opened(self, stream: object) -> Opened:
        """Return the reply as it begins."""
        assert self.headers is not None
        return Opened(self.headers.get("content-type", ""), self.headers, stream)

    def ended(self) -> bytes | Failure | None:
        """Return how the body ended, when all of it is taken; None while more may come."""
        return self.failure or (b"" if self.is_whole else None)

    # ---- callbacks of httptools

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            return
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers.items()}
        self._max_body = sys.maxsize
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            self._fail("a compressed reply, which was not asked for")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.is_whole:
            self._fail("more than one reply")

    def on_message_complete(self) -> None:
        if self.headers is None:
            super().on_message_complete()
        else:
            self.is_whole = True
