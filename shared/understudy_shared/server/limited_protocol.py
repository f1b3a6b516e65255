"""HTTP/1.1 within the limits of `connection_limits`: uvicorn's httptools protocol, and ASGI for all requests.

It acts before any routing. It differs from uvicorn's protocol in three ways:

- It parses a request after the previous one is answered and the answer fits the peer's buffers. Until then it keeps the
  bytes of one read and pauses reading. Requests that waited so start one per turn of the loop, over all connections: a
  pipeline of thousands costs other readers the time of one request.
- It parses bytes in slices that end with a request's head, so that one read never becomes thousands of requests.
- It has no timer per request: the guard checks all connections at intervals.

`HttpProtocol` takes some requests away from ASGI.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from understudy_shared.auth.access import Access
from understudy_shared.http.edge import App, Scope
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import (
    ENDLESS,
    INTERNAL_PREFIX,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_LINGER_BYTES,
    MAX_REQUEST_TARGET_BYTES,
    MAX_SURPLUS_BYTES,
    SLICE_BYTES,
    ConnectionState,
    Phase,
    Pressure,
    Refusal,
    reason_of,
)
from understudy_shared.server.held_flow import HeldFlow
from understudy_shared.server.refusals import problem_response, refusing, says_why
from understudy_shared.tls.trouble import NO_CERTIFICATE, PEER_TROUBLE, TlsTrouble

_END_OF_HEAD = b"\r\n\r\n"
_INTERNAL = INTERNAL_PREFIX.encode()
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class _RefusedError(Exception):
    """Raised from a callback, to end the parsing."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    # uvicorn's attributes fill what CPython keeps quick in an instance's dict (30 names).
    __slots__ = (
        "_access", "_body_bytes", "_body_read_s", "_guard", "_held", "_held_at", "_in_head", "_in_message",
        "_is_direct", "_is_taken", "_left_bytes", "_lingering", "_now", "_peer_trouble", "_quiet_bytes", "_refusal",
        "_restricted", "_running", "_since_s", "_surplus_bytes", "_unread_bytes", "_unread_since_s",
    )  # fmt: skip

    flow: HeldFlow
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard,
        access: Access | None = None,
    ) -> None:
        """`access` decides who may ask what; None where nobody is asked who he is."""
        super().__init__(config, server_state, app_state, _loop)
        self._guard = guard
        self._access = access
        self._is_direct = False
        """Whether `_take` took the request that was parsed last, which is then answered without ASGI."""
        self._is_taken = False
        """Whether that answer is still to come."""
        self._now = self.loop.time
        self._restricted = False
        self._peer_trouble: TlsTrouble | None = NO_CERTIFICATE
        """Why the other side has not shown itself to be a peer by its certificate; None when it has."""
        self._lingering = False
        self._in_message = False
        """True from the first byte of a request to the last byte of its body."""
        self._in_head = False
        self._quiet_bytes = 0
        """Bytes parsed of this head, or since the last bytes of this body. The count may be one slice too high."""
        self._left_bytes = 0
        """Bytes of this body that are still to come; 0 when only its end will tell."""
        self._refusal: Refusal | None = None
        self._since_s = self._body_read_s = self._now()
        self._body_bytes = self._surplus_bytes = 0
        self._unread_bytes, self._unread_since_s = 0, 0.0
        self._held, self._held_at = b"", 0
        self._running: RequestResponseCycle | None = None
        """The request that was handed to the application last; `cycle` is the one that was parsed last."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client}, {self.state(self._now()).phase.name})"

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "pause_reading")  # uvloop has its own
        self.transport = transport  # type: ignore[assignment]
        self.flow = HeldFlow(self.transport)
        self.server, self.client = get_local_addr(self.transport), get_remote_addr(self.transport)
        is_tls = self.transport.get_extra_info("ssl_object") is not None
        self.scheme = "https" if is_tls else "http"
        self._peer_trouble = self.transport.get_extra_info(PEER_TROUBLE) if is_tls else NO_CERTIFICATE
        self.connections.add(self)
        self._since_s = self._now()
        admitted = self._guard.admit(self, self._since_s)
        if admitted is None:
            self.drop(Refusal.CONNECTIONS)
        self._restricted = not admitted

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.connections.discard(self)
        self._held = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._surplus_bytes += len(data)
            if self._surplus_bytes > MAX_LINGER_BYTES:
                self.transport.abort()
        elif self._held:  # reading is paused, but a transport may have read already
            self._hold(self._held[self._held_at :] + data, 0)
        elif (
            len(data) <= SLICE_BYTES
            and not self._in_message
            and data.find(_END_OF_HEAD) == len(data) - 4
            and self._may_begin()
        ):
            self._feed(data)  # one whole request without a body: the usual case
        else:
            self._parse(data, 0)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_bytes = 0
        self._guard.go_on_later(self)

    def shutdown(self) -> None:
        if self._lingering or self._is_endless():
            self.transport.abort()
        else:
            super().shutdown()

    def _is_endless(self) -> bool:
        """Whether the answer that goes out now does not end by itself."""
        running = self._running
        return running is not None and not running.response_complete and ENDLESS in running.scope

    # ---- parsing, a bounded slice at a time

    def _may_begin(self) -> bool:
        """Whether the next request may be parsed."""
        is_answered = not self._is_taken and (self.cycle is None or self.cycle.response_complete)
        return is_answered and not self.flow.write_paused

    def _parse(self, data: bytes, at: int) -> None:
        """Parse from index `at` to the end, or up to a request that may not begin yet."""
        view, size = memoryview(data), len(data)
        while at < size and not (self._lingering or self.transport.is_closing()):
            if not self._in_message and not self._may_begin():
                self._hold(data, at)
                return
            end = min(size, at + SLICE_BYTES)
            if self._in_head or not self._in_message:
                head_end = data.find(_END_OF_HEAD, at, end)
                end = head_end + 4 if head_end >= 0 else end
            elif self._left_bytes:
                end = min(end, at + self._left_bytes)
            self._feed(view[at:end])
            at = end
            if self._is_direct and at < size and not self._in_message:  # other connections come first
                self._hold(data, at)
                self._guard.go_on_later(self)
                return

    def _hold(self, data: bytes, at: int) -> None:
        self._held, self._held_at = data, at
        self.flow.held = True
        self.flow.pause_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refusal.MALFORMED)
            return
        if self._in_message:
            self._quiet_bytes += len(data)
            if self._quiet_bytes > MAX_HEAD_BYTES + SLICE_BYTES:
                self._refuse(Refusal.HEADER_SIZE)

    def _ignore_upgrade(self) -> None:
        """Answer an upgrade in HTTP/1.1. The parser takes its body for the next request, so close after the answer."""
        if self.cycle is not None and any(name in _BODY_HEADERS for name, _ in self.headers):
            self.cycle.keep_alive = False

    def go_on(self) -> None:
        """Start the request that waited, or parse on, once the previous answer is complete and the peer reads it."""
        running = self._running
        is_answered = not self._is_taken and (running is None or running.response_complete)
        if not is_answered or self.flow.write_paused or self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        if self._lingering:
            return
        self.flow.held = False
        if self._held:
            data, at, self._held = self._held, self._held_at, b""
            self._parse(data, at)
        self.flow.resume_reading()

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._is_direct = False
        self._in_message = self._in_head = True
        self._quiet_bytes = 0
        self._since_s = self._now()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_REQUEST_TARGET_BYTES:
            self._end(Refusal.TARGET_SIZE)

    def on_headers_complete(self) -> None:
        # A head that came in one slice is below the limit.
        if self._quiet_bytes and sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEADER_BYTES:
            self._end(Refusal.HEADER_SIZE)
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):  # RFC 9112, 3.2
            self._end(Refusal.HOST)
        self._in_head = False
        self._quiet_bytes = self._body_bytes = self._surplus_bytes = 0
        self._body_read_s = self._since_s
        sizes = [header for header in self.headers if header[0] in _BODY_HEADERS]
        has_length = len(sizes) == 1 and sizes[0][0] == b"content-length"
        self._left_bytes = int(sizes[0][1]) if has_length else 0  # the parser has accepted it
        if self._take(has_body=bool(sizes)):
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)  # makes the scope, which a direct answer does not need
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        self.scope[PEER_TROUBLE] = self._peer_trouble  # type: ignore[literal-required]
        HttpToolsProtocol.on_headers_complete(self)

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        self._body_bytes += len(body)
        self._left_bytes -= min(len(body), self._left_bytes)
        self._body_read_s = self._now()
        if self._is_direct:
            return
        if self.cycle is not None and self.cycle.response_complete:
            self._surplus_bytes += len(body)
            if self._surplus_bytes > MAX_SURPLUS_BYTES:
                self._end(Refusal.BODY_SIZE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._is_direct:
            return
        cycle = self.cycle
        assert cycle is not None, "a request begins with its head"
        if cycle.response_complete:
            self._since_s = self._now()
            return
        cycle.more_body = False
        cycle.message_event.set()

    def _end(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise _RefusedError

    # ---- requests

    def _take(self, *, has_body: bool) -> bool:
        """Whether the request, of which the head was parsed, is answered without ASGI: `_is_direct`, `_is_taken`."""
        return False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        guard = self._guard
        refusal: Refusal | None = None
        if self._restricted or guard.pressure is Pressure.REFUSE:
            refusal = guard.refuses(cycle.scope["path"], restricted=self._restricted)
        if refusal is not None:
            guard.note(refusal, self.client, self._now())
            cycle.keep_alive = False
            app = refusing(refusal)
        else:
            app = self._guarded(cast(Scope, cycle.scope), app)
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _guarded(self, scope: Scope, app: App) -> App:
        """The application that answers a request: `app`, if who asks may."""
        return app if self._access is None else self._access.admitted(scope, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._since_s = self._now()
        if not self.flow.write_paused and (self.pipeline or self.flow.read_paused):  # paused by held bytes
            self._guard.go_on_later(self)

    # ---- the guard's side

    def state(self, now_s: float) -> ConnectionState:
        """The phase of this connection, and since when."""
        if self._lingering:
            return ConnectionState(Phase.LINGERING, self._since_s)
        if self.flow.write_paused or self.transport.is_closing():
            return ConnectionState(Phase.UNREAD, self._unread_since(now_s))
        if self._in_message:
            if self._in_head:
                return ConnectionState(Phase.HEAD, self._since_s, self._restricted)
            if not self.flow.read_paused:
                return ConnectionState(
                    Phase.BODY, self._body_read_s, began_s=self._since_s, body_bytes=self._body_bytes
                )
            self._body_read_s = now_s  # the peer is not slow: reading is paused
            return ConnectionState(Phase.BUSY, now_s)
        if self._is_taken:
            return ConnectionState(Phase.BUSY, self._since_s)
        if self.cycle is None and not self._is_direct:
            return ConnectionState(Phase.SILENT, self._since_s, self._restricted)
        if self.cycle is not None and not self.cycle.response_complete:
            return ConnectionState(Phase.BUSY, self._since_s)
        internal = self.url.startswith(_INTERNAL)
        return ConnectionState(Phase.IDLE_INTERNAL if internal else Phase.IDLE, self._since_s)

    def _unread_since(self, now_s: float) -> float:
        """Since when the peer has read no bytes."""
        left_bytes = self.transport.get_write_buffer_size()
        if not self._unread_bytes or left_bytes < self._unread_bytes:
            self._unread_since_s = now_s
        self._unread_bytes = max(1, left_bytes)
        return self._unread_since_s

    def expire(self) -> None:
        """End the connection: it exceeded the time limit of its phase."""
        phase = self.state(self._now()).phase
        if phase in (Phase.HEAD, Phase.BODY):
            self._refuse(Refusal.HEADER_TIME if phase is Phase.HEAD else Refusal.BODY_TIME)
        elif phase in (Phase.IDLE, Phase.IDLE_INTERNAL):
            self.transport.close()
        else:
            refusal = reason_of(phase)
            if refusal is not None:
                self.drop(refusal)
            else:
                self.transport.abort()

    def drop(self, refusal: Refusal) -> None:
        """Close the connection at once."""
        self._guard.note(refusal, self.client, self._now())
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the request that is being read with a problem, and read no more requests."""
        cycle, says = self.cycle, says_why(refusal)
        is_answered = cycle is not None and cycle.response_started and self._in_message and not self._in_head
        is_answered = is_answered and not self._is_direct
        self._held = b""
        if says is None or is_answered or self.pipeline or self.transport.is_closing():
            self.drop(refusal)
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._guard.note(refusal, self.client, self._now())
        self._lingering, self._since_s, self._surplus_bytes = True, self._now(), 0
        self.transport.write(problem_response(says))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.held = False
        self.flow.resume_reading()
