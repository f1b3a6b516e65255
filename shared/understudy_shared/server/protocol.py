"""HTTP/1.1 for every service: one connection, in one of the phases of `phases.py`, within `connection_limits.py`.

It is uvicorn's httptools protocol with these differences:

- A request is parsed after the previous one is answered and the answer fits the peer's buffers. Until then one read is
  held and reading pauses. Of the requests that waited, one starts per turn of the loop, over all connections, so a
  pipeline of thousands delays other clients by one request at a time.
- Bytes are parsed in slices that end where a request's head or body does: one read never becomes thousands of requests.
- There is no timer per request: the guard checks all connections at intervals.
- Lookups and hops are answered without ASGI, where the application can (`direct.py`).
- The head of other responses is sent with their first bytes (`joined_head.py`).

"uvicorn:" marks its internals that this code relies on; `test_uvicorn_parts.py` names the versions for which they hold.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from understudy_shared.auth.presented import presented_in
from understudy_shared.http.cors import origin_in
from understudy_shared.http.edge import Scope
from understudy_shared.http.target import APPLICATIONS, STORES
from understudy_shared.server import connection_limits as limits
from understudy_shared.server import phases
from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import ConnectionRefusal, ConnectionState, Pressure
from understudy_shared.server.direct import DirectExchange, Headers, response_head
from understudy_shared.server.held_flow import HeldFlow
from understudy_shared.server.incoming import END_OF_HEAD, Incoming, RefusedError
from understudy_shared.server.joined_head import JoinedHead
from understudy_shared.server.known_heads import KnownHeads
from understudy_shared.server.phases import Transition
from understudy_shared.server.refusals import problem_response, refusing, says_why
from understudy_shared.telemetry.trace import is_traced
from understudy_shared.tls.trouble import NO_CERTIFICATE, PEER_TROUBLE, TlsTrouble

_INTERNAL = limits.INTERNAL_PREFIX.encode()
_JOINED_BYTES = 64 * 1024
"""Largest body that is copied behind its head, to be one write."""

_READ_BELOW = (STORES, APPLICATIONS)
_TAKEN_BELOW = (*_READ_BELOW, _INTERNAL)


class HttpProtocol(HttpToolsProtocol):
    """One connection that speaks HTTP/1.1."""

    # uvicorn's attributes fill the 30 names for which CPython's dict of an instance is fast.
    __slots__ = (
        "_answers", "_exchange", "_guard", "_incoming", "_known", "_now", "_peer_trouble", "_phase", "_restricted",
        "_since_s",
    )  # fmt: skip

    flow: HeldFlow
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # uvicorn: None before the first request by ASGI

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard,
        answers: Answers | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._guard = guard
        self._answers = answers or Answers()
        self._known = KnownHeads(self._answers.heads)
        self._phase = phases.SILENT
        self._now = self.loop.time
        self._since_s = self._now()
        self._restricted = False
        self._peer_trouble: TlsTrouble | None = NO_CERTIFICATE
        """The reason why the certificate of the other side does not identify a peer; None if it does."""
        self._incoming = Incoming()
        self._exchange: DirectExchange | None = None
        """The request that the application answers directly, until it is answered."""

    def __repr__(self) -> str:
        return f"HttpProtocol({self.client}, {self.state(self._now()).phase.name})"

    def _happens(self, event: Transition) -> None:
        """Enter the phase that follows."""
        after = self._phase = event[self._phase]
        if after is phases.CLOSED:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = HeldFlow(self.transport)  # uvicorn: passes it to cycles, and has not used its own yet
        if self.scheme == "https":
            self._peer_trouble = transport.get_extra_info(PEER_TROUBLE)
        self._since_s = self._now()
        admitted = self._guard.admit(self, self._since_s)
        if admitted is None:
            self.drop(ConnectionRefusal.CONNECTIONS)
        self._restricted = not admitted

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = phases.CLOSED
        self._guard.connections.discard(self)
        self.flow.take()
        super().connection_lost(exc)  # uvicorn: disconnects the cycle, and drops the parser
        if self._exchange is not None:
            self._exchange.leave()

    def data_received(self, data: bytes) -> None:
        flow, phase = self.flow, self._phase
        if (phase is phases.IDLE or phase is phases.SILENT) and not (flow.held or flow.write_paused):
            if not (self._takes_post(data) if data.startswith(b"POST ") else self._takes_lookup(data)):
                self._known.whole = data
                if len(data) <= limits.SLICE_BYTES and data.find(END_OF_HEAD) == len(data) - 4:
                    self._feed(data)  # one whole request without a body: the usual case
                else:
                    self._parse(data, 0)
                self._known.whole = b""
        elif phase is phases.LINGERING:
            self._incoming.surplus_bytes += len(data)
            if self._incoming.surplus_bytes > limits.MAX_LINGER_BYTES:
                self.transport.abort()
        elif flow.held:
            flow.add(data)
        else:
            self._parse(data, 0)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guard.go_on_later(self)

    def shutdown(self) -> None:
        """Close the connection, now or after its answer. uvicorn: its server calls this when it ends."""
        cycle = self.cycle
        is_endless = cycle is not None and not cycle.response_complete and limits.ENDLESS in cycle.scope
        if self._exchange is not None:
            self._exchange.closes = True
        elif is_endless or self._phase is phases.LINGERING:
            self.transport.abort()
        else:
            super().shutdown()

    # ---- parsing, a bounded slice at a time

    def _waits(self) -> bool:
        """Whether the bytes that come next may not be parsed yet."""
        phase = self._phase
        return phase in phases.ANSWERING or (phase in phases.AT_REST and self.flow.write_paused)

    def _parse(self, data: bytes, at: int) -> None:
        """Parse from index `at` to the end, or up to a request that may not begin yet."""
        view, size, slices = memoryview(data), len(data), 0
        while at < size and self._phase is not phases.LINGERING and not self.transport.is_closing():
            is_turn_over = slices == limits.SLICES_IN_A_TURN or (slices and self._phase in phases.AT_REST)
            if is_turn_over or self._waits():
                self.flow.hold(data, at)
                if is_turn_over:  # other connections come first
                    self._guard.go_on_later(self)
                return
            end = self._incoming.slice_end(data, at)
            self._feed(view[at:end])
            at, slices = end, slices + 1

    def _feed(self, data: bytes | memoryview) -> None:
        refusal = self._incoming.feed(self.parser, data)
        if refusal is None and self._phase in phases.IN_MESSAGE and self._incoming.is_too_long(len(data)):
            refusal = ConnectionRefusal.HEADER_SIZE
        if refusal is not None:
            self._refuse(refusal)

    def go_on(self) -> None:
        """Parse on, once the previous answer is complete and the peer reads it."""
        flow = self.flow
        if self._waits() or self.transport.is_closing():
            return
        data, at = flow.take()
        if data:
            self._parse(data, at)
        if self._phase in phases.AT_REST or self._phase is phases.SURPLUS:
            flow.resume_reading()  # uvicorn: it paused for a body that the application did not read
        flow.release()

    # ---- the parser's callbacks; uvicorn: `on_header` fills `headers`, and sets `expect_100_continue`

    def on_message_begin(self) -> None:
        self._happens(phases.BEGIN)
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._since_s = self._now()
        self._incoming.begin(self._since_s)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > limits.MAX_REQUEST_TARGET_BYTES:
            raise RefusedError(ConnectionRefusal.TARGET_SIZE)

    def on_headers_complete(self) -> None:
        incoming, headers = self._incoming, self.headers
        has_body = incoming.head_ends(headers, self.parser.get_http_version())
        if self._take(has_body=has_body):
            return
        self._happens(phases.START)
        url, expects = self.url, self.expect_100_continue
        super().on_message_begin()  # uvicorn: makes the scope, which a direct answer does not need, and clears these
        self.url, self.expect_100_continue = url, expects
        self.headers = self.scope["headers"] = headers
        self.scope[PEER_TROUBLE] = self._peer_trouble  # type: ignore[literal-required]
        super().on_headers_complete()  # uvicorn: makes the cycle, and starts it: the one before it is complete
        if has_body and self.parser.should_upgrade() and self.cycle is not None:
            self.cycle.keep_alive = False  # the upgrade is ignored, and the body is parsed as the next request

    def on_body(self, body: bytes) -> None:
        incoming, phase = self._incoming, self._phase
        incoming.body_comes(len(body), self._now())
        if phase is phases.BODY:
            super().on_body(body)  # uvicorn: passes it to the cycle, and pauses reading above 64 KiB
        elif phase is phases.RECEIVING:
            incoming.received += body
        elif phase is phases.SURPLUS:
            incoming.surplus_bytes += len(body)
            if incoming.surplus_bytes > limits.MAX_SURPLUS_BYTES:
                raise RefusedError(ConnectionRefusal.BODY_SIZE)

    def on_message_complete(self) -> None:
        self._happens(phases.END)
        received = self._incoming.received
        if self._phase is phases.BUSY and self.cycle is not None:  # uvicorn: as its own method does, without upgrades
            self.cycle.more_body = False
            self.cycle.message_event.set()
        elif self._phase is phases.IDLE:
            self._since_s = self._now()
        elif received and self._exchange is not None:
            self._incoming.received = bytearray()
            self._answer_body(bytes(received), self._exchange)

    # ---- requests that are answered directly

    def _takes_lookup(self, data: bytes) -> bool:
        """Hand over a lookup whose headers were parsed before."""
        target, known = self._known.lookup(data), self._known.last
        if target is None or known is None or self._is_refusing():
            return False
        self.url = target
        exchange = self._exchange = self._answers.lookup(target, known.presented, (), self._reply)
        if exchange is None:
            return False
        self._phase = phases.DIRECT  # the transition of TAKE
        return self._hand_over(target, exchange)

    def _takes_post(self, data: bytes) -> bool:
        """Hand over a request whose head was parsed before, and whose whole body came in the same read."""
        head, access = self._known.post(data), self._answers.access
        if head is None:
            return False
        exchange: DirectExchange | None = None
        if not head.target.startswith(_INTERNAL):
            if not self._is_refusing():
                exchange = self._answers.batch(head.target, head.body_bytes, (), self._reply)
        elif access is None or access.peer(head.presented, self._peer_trouble):
            exchange = DirectExchange(self._reply, head.application)
        if exchange is None:
            return False
        self.url, self._exchange = head.target, exchange
        self._phase = phases.DIRECT  # the transition of TAKE
        self._answer_body(data[-head.body_bytes :], exchange)
        return True

    def _take(self, *, has_body: bool) -> bool:
        """Hand over a parsed request, if it is a plain one over HTTP/1.1; return whether it was taken."""
        # One function, because it runs for each new head, and each condition sends the request the slow way.
        url, headers, parser, answers = self.url, self.headers, self.parser, self._answers
        if not url.startswith(_TAKEN_BELOW) or self.expect_100_continue:
            return False
        if parser.get_http_version() != "1.1" or parser.should_upgrade():
            return False
        size_bytes, method = self._incoming.left_bytes, parser.get_method()
        presented = None if answers.access is None else presented_in(headers)
        exchange: DirectExchange | None = None
        if method == b"POST" and url.startswith(_INTERNAL):
            exchange = answers.hop(url, size_bytes, presented, self._peer_trouble, headers, self._reply)
        elif self._is_refusing():
            return False
        elif method == b"GET" and url.startswith(_READ_BELOW) and not has_body:
            exchange = answers.lookup(url, presented, headers, self._reply)
        elif method == b"POST" and url.startswith(STORES):
            exchange = answers.batch(url, size_bytes, headers, self._reply)
        if exchange is None:
            return False
        exchange.closes = not parser.should_keep_alive()
        self._exchange = exchange
        self._happens(phases.TAKE)
        if method == b"GET" and not self._hand_over(url, exchange):
            return False
        # A head with a trace is unique, so it is not cached; nor is one with an origin, which a cached head lacks.
        if not (exchange.closes or is_traced(headers) or (answers.cors and origin_in(headers) is not None)):
            self._known.keep(url, size_bytes, presented, exchange.application)
        return True

    def _is_refusing(self) -> bool:
        """Whether ASGI has to answer, which says why requests are refused."""
        return self._restricted or self._guard.pressure is Pressure.REFUSE

    def _answer_body(self, body: bytes, exchange: DirectExchange) -> None:
        """Let the application answer a request with a body, now that all of it is there."""
        answers = self._answers
        if not self.url.startswith(_INTERNAL):
            assert answers.batches is not None, "it accepted this one"
            answers.batches.answer_batch(self.url, body, exchange)
        else:
            assert answers.bodies is not None, "it accepted this one"
            answers.bodies.answer_body(body, exchange)

    def _hand_over(self, target: bytes, exchange: DirectExchange) -> bool:
        """Let the application answer a lookup; it may reply at once. Return False if it declines."""
        direct = self._answers.direct
        if direct is not None and direct.answer_directly(target, exchange):
            return True
        self._exchange = None
        self._happens(phases.DECLINE)
        return False

    def _reply(self, status: int, content_type: bytes, body: bytes, headers: Headers) -> None:
        """Send the answer of the application; an exchange calls it once."""
        exchange, self._exchange = self._exchange, None
        if self._phase is phases.DIRECT:
            self._phase = phases.IDLE  # the transition of ANSWER, without the cost of its call for each lookup
        else:
            self._happens(phases.ANSWER)
        self.server_state.total_requests += 1
        transport = self.transport
        if exchange is None or transport.is_closing():
            return
        if exchange.headers:
            headers = (*headers, *exchange.headers)
        closes = exchange.closes or bool(self.server_state.default_headers)  # the service is stopping
        head = response_head(status, content_type, len(body), headers, close=closes)
        if len(body) <= _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))  # a large body is not copied
        self._since_s = self._now()
        if closes:
            transport.close()
        elif self.flow.held and not self.flow.write_paused:
            self._guard.go_on_later(self)

    # ---- requests that are answered by ASGI

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the task that answers a request by ASGI, or refuses it. uvicorn: called once for each cycle."""
        guard, scope = self._guard, cast(Scope, cycle.scope)
        asks = self._restricted or guard.pressure is Pressure.REFUSE
        refusal = guard.refuses(scope["path"], restricted=self._restricted) if asks else None
        if refusal is not None:
            guard.note(refusal, self.client, self._now())
            cycle.keep_alive = False
            app = refusing(refusal)
        else:
            app = self._answers.by_asgi(scope, app)
        # uvicorn: the cycle writes to it, the head of its response first, and closes it
        cycle.transport = cast(asyncio.Transport, JoinedHead(self.transport, self.loop))
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on after an answer. uvicorn: called by the cycle after its last bytes; its own method starts a timer."""
        if self.cycle is not None:
            cast(JoinedHead, self.cycle.transport).flush()
        self._happens(phases.ANSWER)
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._since_s = self._now()
        if not self.flow.write_paused and (self.flow.held or self.flow.read_paused):
            self._guard.go_on_later(self)

    # ---- the guard's side

    def state(self, now_s: float) -> ConnectionState:
        """Return the phase and its beginning, for the guard."""
        phase, incoming, flow = self._phase, self._incoming, self.flow
        if phase is phases.LINGERING:
            return ConnectionState(phase, self._since_s)
        if flow.write_paused or self.transport.is_closing():
            return ConnectionState(phases.UNREAD, flow.unread_since_s(now_s))
        if phase in phases.IN_BODY:
            if not (flow.read_paused or flow.held):
                return ConnectionState(phases.BODY, incoming.read_s, False, incoming.began_s, incoming.body_bytes)
            incoming.read_s = now_s  # the peer is not slow: reading is paused
            return ConnectionState(phases.BUSY, now_s)
        if phase is phases.IDLE and self.url.startswith(_INTERNAL):
            phase = phases.IDLE_INTERNAL
        return ConnectionState(phase, self._since_s, self._restricted)

    def expire(self) -> None:
        """End the connection: it exceeded the time limit of its phase."""
        phase = self.state(self._now()).phase
        refusal = limits.reason_of(phase)
        if refusal is not None and phase in (phases.HEAD, phases.BODY):
            self._refuse(refusal)
        elif refusal is not None:
            self.drop(refusal)
        elif phase is phases.LINGERING:
            self.transport.abort()
        else:
            self.transport.close()

    def drop(self, refusal: ConnectionRefusal) -> None:
        """Close the connection at once."""
        self._guard.note(refusal, self.client, self._now())
        self._happens(phases.CLOSE)

    def _refuse(self, refusal: ConnectionRefusal) -> None:
        """Answer the request that is being read with a problem, and read no more requests."""
        says, cycle, transport = says_why(refusal), self.cycle, self.transport
        running = cycle if self._phase is phases.BODY else None
        is_answered = running is not None and running.response_started
        if says is None or is_answered or self._phase not in phases.REFUSE or transport.is_closing():
            self.drop(refusal)
            return
        if running is not None:  # uvicorn: drops what the cycle sends from now on, and wakes the application
            running.disconnected = True
            running.message_event.set()
        self._guard.note(refusal, self.client, self._now())
        self._happens(phases.REFUSE)
        self._since_s, self._incoming.surplus_bytes, self._exchange = self._now(), 0, None
        transport.write(problem_response(says))
        if transport.can_write_eof():
            transport.write_eof()
        self.flow.take()
        self.flow.resume_reading()
        self.flow.release()
