"""A connection that speaks TLS, in front of the protocol that answers it.

It decrypts and encrypts, and buffers nothing.

The standard library's SSLObject does the work, in memory. Bytes from the inner protocol are encrypted and written to
the transport at once, so its limits, its flow control and its pipelining act on the peer itself, as without TLS.
asyncio's own TLS layer has its own buffers, and does not report a failed handshake.

The guard counts the connection from its beginning: it closes a peer that never completes its handshake, like one that
never sends its headers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemType
from understudy_shared.server import phases
from understudy_shared.server.connection_guard import ConnectionGuard, address_of
from understudy_shared.server.connection_limits import ConnectionRefusal, ConnectionState, reason_of
from understudy_shared.server.direct import response
from understudy_shared.server.phases import Transition
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PEER_TROUBLE, PLAIN_HTTP, TlsReason, TlsSide, TlsTrouble, is_http, tls_trouble

READ_BYTES = 256 * 1024
"""Bytes to decrypt at a time: more than a TLS record has (16 KiB)."""

_PLAIN = Problem(ProblemType.BAD_REQUEST, "this port speaks TLS, and the request came in plain", fix="Write https://")
_CLOSED = TlsTrouble(TlsReason.CLOSED, "it closed the connection within the handshake")


class TlsConnection(asyncio.Protocol):
    """One TLS connection, from its first byte on."""

    def __init__(
        self,
        new_inner: Callable[[], asyncio.Protocol],
        *,
        tls: ServiceTls,
        guard: ConnectionGuard,
        connections: set[Any],
    ) -> None:
        """Set the parts of the connection. `connections` is the set that the server closes when it ends."""
        self._new_inner = new_inner
        self._tls = tls
        self._guard = guard
        self._connections = connections
        self._inner: asyncio.Protocol | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._now = asyncio.get_running_loop().time
        self._phase, self._since_s = phases.SILENT, self._now()
        self._restricted = False
        self._first = b""

    def __repr__(self) -> str:
        return f"TlsConnection({self._inner or self._phase.name})"

    def _happens(self, event: Transition) -> None:
        after = self._phase = event[self._phase]
        if after is phases.CLOSED and event is not phases.CLOSE:  # a bug: the table lacks this transition
            self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = address_of(self._transport, "peername")
        context = self._tls.server
        assert context is not None, "the port speaks TLS"
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._connections.add(self)
        admitted = self._guard.admit(self, self._since_s)
        if admitted is None:
            self.drop(ConnectionRefusal.CONNECTIONS)
        self._restricted = not admitted

    def data_received(self, data: bytes) -> None:
        if self._phase in (phases.LINGERING, phases.CLOSED):
            return
        self._incoming.write(data)
        if self._inner is not None:
            self._decrypt(self._inner)
        elif self._transport.is_reading():
            # A handshake takes almost a millisecond: thousands at once must leave turns of the loop to requests.
            self._first = self._first or data[:16]
            self._happens(phases.GREET)
            self._transport.pause_reading()
            self._guard.go_on_later(self)

    def eof_received(self) -> None:
        """Do nothing: the loop closes the transport."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._inner is not None:
            self._inner.connection_lost(exc)
        elif self._phase is phases.HANDSHAKE:
            self._tls.note(TlsSide.ACCEPT, _CLOSED, self._host)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    # ---- the handshake

    @property
    def _host(self) -> str:
        return self._peer[0] if self._peer else "unknown"

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._end(error)
            return
        self._flush()
        self._leave()
        self._happens(phases.SECURE)
        trouble = self._tls.why_no_peer(self._object.getpeercert(), self._object.version())
        inner = self._inner = self._new_inner()
        inner.connection_made(TlsTransport(self, self._transport, self._object, trouble))
        if self._incoming.pending and self._phase is phases.INSIDE:
            self._decrypt(inner)

    def _end(self, error: ssl.SSLError) -> None:
        """Send the peer the reason why the handshake failed, and give it time to read it."""
        trouble = PLAIN_HTTP if is_http(self._first) else tls_trouble(error) or _CLOSED
        self._tls.note(TlsSide.ACCEPT, trouble, self._host)
        self._happens(phases.REFUSE)
        self._since_s = self._now()
        if trouble.reason is TlsReason.PLAIN_HTTP:  # without the alert that OpenSSL 3.5 has written
            self._transport.write(response(_PLAIN.status, CONTENT_TYPE, _PLAIN.body(), _PLAIN.headers, close=True))
        else:
            self._flush()  # the alert
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _leave(self) -> None:
        """Leave the guard and the server. From now on the inner protocol is the connection for them."""
        self._connections.discard(self)
        self._guard.connections.discard(self)

    # ---- after the handshake

    def _decrypt(self, inner: asyncio.Protocol) -> None:
        parts: list[bytes] = []
        has_ended = False
        try:
            while self._incoming.pending:
                part = self._object.read(READ_BYTES)
                if not part:
                    has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            has_ended = True
        except ssl.SSLError as error:
            self._tls.note(TlsSide.ACCEPT, tls_trouble(error) or _CLOSED, self._host)
            self._happens(phases.CLOSE)
            self._transport.abort()
            return
        if self._outgoing.pending:
            self._flush()
        if parts:
            inner.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if has_ended and self._phase is phases.INSIDE:
            self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes, encrypted."""
        if self._transport.is_closing() or not data:
            return
        try:
            sent = self._object.write(data)
            if sent < len(data):
                view = memoryview(data)
                while sent < len(view):
                    sent += self._object.write(view[sent:])
        except ssl.SSLError as error:  # the session has ended: nothing can be sent in it
            self._tls.note(TlsSide.ACCEPT, tls_trouble(error) or _CLOSED, self._host)
            self._happens(phases.CLOSE)
            self._transport.abort()
            return
        self._transport.write(self._outgoing.read())

    def write_eof(self) -> None:
        """Send the end of the stream. Bytes from the peer are still read."""
        self._say_goodbye()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Send TLS's close_notify, and close once everything is sent."""
        if not self._transport.is_closing():
            self._happens(phases.CLOSE)
            self._say_goodbye()
            self._transport.close()

    def _say_goodbye(self) -> None:
        with suppress(ssl.SSLError):  # do not wait for the peer's close_notify
            self._object.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    # ---- the guard's and the server's side, until the handshake has ended

    def state(self, now_s: float) -> ConnectionState:
        return ConnectionState(self._phase, self._since_s, self._restricted)

    def go_on(self) -> None:
        """Take the next step of the handshake, if the connection is still open."""
        if self._phase is phases.HANDSHAKE and not self._transport.is_closing():
            self._transport.resume_reading()
            self._shake_hands()

    def expire(self) -> None:
        self.drop(reason_of(self._phase) or ConnectionRefusal.HEADER_TIME)

    def drop(self, refusal: ConnectionRefusal) -> None:
        if self._phase is not phases.LINGERING:
            self._guard.note(refusal, self._peer, self._now())
        self._happens(phases.CLOSE)
        self._transport.abort()

    def shutdown(self) -> None:
        self._happens(phases.CLOSE)
        self._transport.abort()


class TlsTransport(asyncio.Transport):
    """The transport of the inner protocol. Its reads, buffers and addresses are those of the connection itself."""

    def __init__(
        self, connection: TlsConnection, below: asyncio.Transport, ssl_object: ssl.SSLObject, trouble: TlsTrouble | None
    ) -> None:
        super().__init__()
        self._below = below
        self._own = {"ssl_object": ssl_object, "sslcontext": ssl_object.context, PEER_TROUBLE: trouble}
        self.write = connection.write  # type: ignore[method-assign]  # one call less for each answer
        self.close = connection.close  # type: ignore[method-assign]
        self.write_eof = connection.write_eof  # type: ignore[method-assign]
        self.abort = below.abort  # type: ignore[method-assign]
        self.is_closing = below.is_closing  # type: ignore[method-assign]
        self.pause_reading = below.pause_reading  # type: ignore[method-assign]
        self.resume_reading = below.resume_reading  # type: ignore[method-assign]
        self.get_write_buffer_size = below.get_write_buffer_size  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._own[name] if name in self._own else self._below.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)
