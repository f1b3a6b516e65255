"""The default transport of `Client`: HTTP/1.1 over sockets of its own, kept open between calls.

It is thin, because it carries nothing but this API: it adds 3 µs to a bare socket, http.client adds 25 (decision 0069).
Each wait ends at the call's deadline, however slowly a server sends.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

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

_READ_BYTES = 64 * 1024
"""Bytes of one read: more would be memory that the kernel has to map for each."""

Address = tuple[socket.AddressFamily, Any]


def addresses(host: str, port: int, limit_s: float) -> list[Address]:
    """Return the addresses of a host. Raises OSError."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    return _resolved(host, port, limit_s)


def _resolved(host: str, port: int, limit_s: float) -> list[Address]:
    found: list[Address] = []
    errors: list[OSError] = []

    def resolve() -> None:
        try:
            found.extend((each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            errors.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=resolve, name="understudy-resolver", daemon=True)
    thread.start()
    thread.join(max(0.0, limit_s))
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise OSError("the resolver did not answer in time")
    return list(found)


class SocketTransport:
    """Connections of this process to the servers. A forked child opens its own."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._known = ReplyHeads()
        self._pid = os.getpid()
        self._idle: dict[Endpoint, deque[_SocketConnection]] = {}

    def __repr__(self) -> str:
        return f"SocketTransport({sum(map(len, self._idle.values()))} idle)"

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        connection = self._take(send.endpoint)
        if connection is None:
            opened = self._open(send.endpoint, send.deadline_s)
            if isinstance(opened, Failure):
                return opened
            connection = opened
        is_kept = False
        try:
            outcome, is_kept = connection.exchange(send, self._known)
        finally:
            if is_kept:
                self._keep(send.endpoint, connection)
            else:
                connection.close()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.STALE:
            self._drop(send.endpoint)  # the server has left: the others are as old
        return outcome

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request, by a connection of its own, and return its reply by its deadline: with status 200 its head,
        and a `Stream` of the rest.
        """
        opened = self._open(send.endpoint, send.deadline_s)
        return opened if isinstance(opened, Failure) else opened.open(send)

    def close(self) -> None:
        """Close the connections that are kept."""
        for endpoint in list(self._idle):
            self._drop(endpoint)

    def _take(self, endpoint: Endpoint) -> _SocketConnection | None:
        """Return a kept connection that its server has not closed."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()  # only the copies: its parent still uses them
        idle = self._idle.get(endpoint)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def _keep(self, endpoint: Endpoint, connection: _SocketConnection) -> None:
        idle = self._idle.get(endpoint)
        if idle is None:
            idle = self._idle.setdefault(endpoint, deque())
        if len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()

    def _drop(self, endpoint: Endpoint) -> None:
        idle = self._idle.pop(endpoint, None)
        while idle:
            idle.pop().close()

    def _drop_closed(self) -> None:
        """Close connections that the server has closed: a server that is gone for good may never be asked again."""
        for idle in list(self._idle.values()):
            for _ in range(len(idle)):
                try:
                    connection = idle.popleft()
                except IndexError:  # another thread took it
                    break
                if connection.is_quiet():
                    idle.append(connection)
                else:
                    connection.close()

    def _open(self, endpoint: Endpoint, deadline_s: float) -> _SocketConnection | Failure:
        """Connect to the first address of a server that answers."""
        if endpoint not in self._idle:
            self._drop_closed()  # servers come and go
        context = self._trust.context() if endpoint.scheme == "https" else None
        try:
            found = addresses(endpoint.host, endpoint.port, deadline_s - monotonic())
        except OSError as error:
            return Failure(FailureKind.NOT_SENT, f"its name cannot be resolved: {failure_text(error)}")
        why = "no connection in time"
        for family, address in found:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                break
            made = socket.socket(family, socket.SOCK_STREAM)
            try:
                made.settimeout(left_s)
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    made.settimeout(max(0.001, deadline_s - monotonic()))
                    made = context.wrap_socket(made, server_hostname=endpoint.server_name)
            except TimeoutError:
                made.close()
            except (OSError, ValueError) as error:
                made.close()
                why = f"cannot connect: {failure_text(error)}"
            else:
                return _SocketConnection(made)
        return Failure(FailureKind.NOT_SENT, why)


class _SocketConnection:
    """A connection, with one request at a time."""

    __slots__ = ("_is_used", "_limit_ms", "_poll", "_socket")

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._poll = select.poll()
        self._poll.register(made, select.POLLIN)
        self._is_used = False
        self._limit_ms = 0

    def is_quiet(self) -> bool:
        """Whether nothing came since the last reply: neither its end, nor bytes that would be taken for a reply."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._socket.close()

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Return what came of a request. Its stream, if there is one, takes the connection over."""
        parser = StreamParser()
        outcome: Opened | Reply | Failure | None = None
        try:
            self._socket.settimeout(max(0.001, send.deadline_s - monotonic()))
            self._socket.sendall(request_bytes(send))
            while outcome is None:
                failure = _read(self._socket, parser, send.deadline_s)
                if parser.headers is not None and parser.failure is None:
                    outcome = parser.opened(SocketStream(self._socket, parser))
                else:
                    outcome = parser.reply or parser.failure or failure
        except OSError as error:
            outcome = Failure(FailureKind.CUT, failure_text(error))
        finally:
            if not isinstance(outcome, Opened):
                self.close()
        return outcome

    def exchange(self, send: Send, known: ReplyHeads) -> tuple[Reply | Failure, bool]:
        """Return what came of a request, and whether the connection can carry another."""
        parser: ReplyParser | None = None
        try:
            self._limit(max(0.001, send.deadline_s - monotonic()))
            self._socket.sendall(request_bytes(send))
            data = self._socket.recv(_READ_BYTES)
            outcome: Reply | Failure | None = known.reply(data)
            if outcome is not None:  # nearly all replies
                self._is_used = True
                return outcome, True
            parser = ReplyParser(known)
            while data:
                parser.feed(data)
                outcome = parser.reply or parser.failure
                if outcome is not None:
                    self._is_used = True
                    return outcome, parser.keeps_alive
                left_s = send.deadline_s - monotonic()
                if left_s <= 0:
                    return _late(parser), False
                self._limit(left_s)
                data = self._socket.recv(_READ_BYTES)
            return self._ended(parser, parser.end()), False
        except TimeoutError:
            return _late(parser), False
        except OSError as error:
            return self._ended(parser, Failure(FailureKind.CUT, failure_text(error))), False

    def _limit(self, left_s: float) -> None:
        """Let each wait take so many whole milliseconds: most calls have the same, and need not tell the kernel."""
        limit_ms = int(left_s * 1000) or 1
        if limit_ms != self._limit_ms:
            self._limit_ms = limit_ms
            self._socket.settimeout(limit_ms / 1000)

    def _ended(self, parser: ReplyParser | None, failure: Failure) -> Failure:
        """Return the failure of a connection that ended. One that was used before may have been closed meanwhile."""
        is_stale = self._is_used and not (parser and parser.heard)
        return Failure(FailureKind.STALE, failure.why) if is_stale else failure


def _late(parser: ReplyParser | None) -> Failure:
    heard = 0 if parser is None else parser.heard
    return Failure(FailureKind.TIMEOUT, f"no reply in time, {heard} bytes of one came")


class SocketStream:
    """The body of a reply as it comes, with the connection that carries it.

    While a thread reads it, that thread frees the descriptor, even if another one closes the stream: the reader may be
    about to wait on it, and would wait on whatever gets the same number next.
    """

    # Each side sets its own flag before it reads the other's, so that at least one of them frees it.
    _is_read = False
    _is_closed = False

    def __init__(self, made: socket.socket, parser: StreamParser) -> None:
        self._made, self._parser = made, parser

    def receive(self, deadline_s: float) -> bytes | Failure:
        """See `Stream`."""
        self._is_read = True
        try:
            return CLOSED if self._is_closed else self._next(deadline_s)
        finally:
            self._is_read = False
            if self._is_closed:
                self._made.close()

    def close(self) -> None:
        """See `Stream`."""
        self._is_closed = True
        with suppress(OSError):
            self._made.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for more
        if not self._is_read:
            self._made.close()

    def _next(self, deadline_s: float) -> bytes | Failure:
        parser = self._parser
        while True:
            if data := parser.take():
                return data
            ended = parser.ended()
            if ended is not None:
                return ended
            try:
                failure = _read(self._made, parser, deadline_s)
            except OSError as error:
                failure = Failure(FailureKind.CUT, failure_text(error))
            if failure is not None:
                return failure


def _read(made: socket.socket, parser: StreamParser, deadline_s: float) -> Failure | None:
    """Read once. Return the failure if the connection ended, or nothing came in time. Raises OSError."""
    left_s = deadline_s - monotonic()
    if left_s <= 0:
        return LATE
    made.settimeout(left_s)
    try:
        data = made.recv(_READ_BYTES)
    except TimeoutError:
        return LATE
    if not data:
        return parser.end()
    parser.feed(data)
    return None
