"""HTTP/1.1 for every service: one connection, in one of the phases of `phases.py`, within `connection_limits.py`.

httptools parses. uvicorn is the server around it: it accepts, waits for the `connections` and `tasks` of its state, and
calls `shutdown` when it ends. What differs from uvicorn's own protocol:

- A request is parsed only after the previous one is answered and the answer fits the peer's buffers. Until then one
  read is held and reading pauses. Over all connections, one waiting request starts per turn of the loop, so a pipeline
  of thousands delays other clients by one request at a time.
- Bytes are parsed in slices that end where a request's head or body does: one read never becomes thousands of requests.
- There is no timer per request: the guard checks all connections at intervals.
- Lookups and hops are answered without ASGI, where the application can (`direct.py`).
- The head of other responses is sent with their first bytes (`cycle.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.auth.presented import presented_in
from understudy_shared.http.edge import ROOT_PATH, Scope, without_root
from understudy_shared.http.origins import origin_in
from understudy_shared.http.target import APPLICATIONS, STORES, may_be_page
from understudy_shared.server import connection_limits as limits
from understudy_shared.server import phases
from understudy_shared.server.answers import Answers, problem_response, refusing, says_why
from understudy_shared.server.compression import may_compress
from understudy_shared.server.connection_guard import ConnectionGuard, address_of
from understudy_shared.server.connection_limits import ConnectionRefusal, ConnectionState, Pressure
from understudy_shared.server.cycle import Cycle
from understudy_shared.server.direct import DirectExchange, Headers, response_head
from understudy_shared.server.incoming import END_OF_HEAD, Flow, Incoming, RefusedError
from understudy_shared.server.parsed_cache import KnownHeads
from understudy_shared.server.phases import Transition
from understudy_shared.telemetry.spans import is_traced
from understudy_shared.tls.trouble import NO_CERTIFICATE, PEER_TROUBLE, TlsTrouble

_INTERNAL = limits.INTERNAL_PREFIX.encode()
_JOINED_BYTES = 64 * 1024
"""Largest body that is copied after its head, so that both are one write."""

_READ_BELOW = (STORES, APPLICATIONS)
_TAKEN_BELOW = (*_READ_BELOW, _INTERNAL)


class HttpProtocol(asyncio.Protocol):
    """One connection that speaks HTTP/1.1. uvicorn makes it, with the first four arguments."""

    __slots__ = (
        "_answers", "_app", "_app_state", "_asgi", "_exchange", "_expects_continue", "_guard", "_headers", "_incoming",
        "_known", "_now", "_peer_trouble", "_phase", "_restricted", "_scheme", "_server", "_server_state", "_since_s",
        "client", "cycle", "flow", "loop", "parser", "transport", "url",
    )  # fmt: skip

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
        self._app: Any = config.loaded_app
        self._asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._server_state, self._app_state = server_state, app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # a refused request has its answer
        self.client: tuple[str, int] | None = None
        self.cycle: Cycle | None = None
        """The last request that was answered by ASGI."""
        self.url, self._headers, self._expects_continue = b"", list[tuple[bytes, bytes]](), False
        self._guard = guard
        self._answers = answers or Answers()
        self._known = KnownHeads(self._answers.heads, self._answers.lookup_line)
        self._phase = phases.SILENT
        self._now = self.loop.time
        self._since_s = self._now()
        self._restricted = False
        self._peer_trouble: TlsTrouble | None = NO_CERTIFICATE
        """The reason why the certificate of the client does not identify a peer; None if it does."""
        self._incoming = Incoming()
        self._exchange: DirectExchange | None = None
        """The request that the application answers directly, until it is answered."""

    def __repr__(self) -> str:
        return f"HttpProtocol({self.client}, {self.state(self._now()).phase.name})"

    def _happens(self, event: Transition) -> None:
        after = self._phase = event[self._phase]
        if after is phases.CLOSED:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server_state.connections.add(cast(Any, self))
        self.transport = cast(asyncio.Transport, transport)
        self.flow = Flow(self.transport)
        self._server, self.client = address_of(transport, "sockname"), address_of(transport, "peername")
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        if self._scheme == "https":
            self._peer_trouble = transport.get_extra_info(PEER_TROUBLE)
        self._since_s = self._now()
        admitted = self._guard.admit(self, self._since_s)
        if admitted is None:
            self.drop(ConnectionRefusal.CONNECTIONS)
        self._restricted = not admitted

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = phases.CLOSED
        self._guard.connections.discard(self)
        self._server_state.connections.discard(cast(Any, self))
        self.flow.take()
        if self.cycle is not None:
            self.cycle.leave()  # before a waiting writer resumes, so that it learns why
        self.flow.resume_writing()
        self.parser = cast(Any, None)  # it refers to this protocol
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

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._guard.go_on_later(self)

    def shutdown(self) -> None:
        """Close the connection, now or after its answer. The server calls this when it ends."""
        running = None if self.cycle is None or self.cycle.response_complete else self.cycle
        if self._exchange is not None:
            self._exchange.closes = True
        elif self._phase is phases.LINGERING or (running is not None and limits.ENDLESS in running.scope):
            self.transport.abort()
        elif running is not None:
            running.keep_alive = False
        else:
            self.transport.close()

    # ---- parsing, a bounded slice at a time

    def _waits(self) -> bool:
        """Whether the next bytes must wait before they are parsed."""
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
        """Resume parsing, if the previous answer is complete and the peer reads it."""
        flow = self.flow
        if self._waits() or self.transport.is_closing():
            return
        data, at = flow.take()
        if data:
            self._parse(data, at)
        if self._phase in phases.AT_REST or self._phase is phases.SURPLUS:
            flow.resume_reading()  # it had paused for a body that the application did not read
        flow.release()

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        self._happens(phases.BEGIN)
        self.url, self._headers, self._expects_continue = b"", [], False
        self._since_s = self._now()
        self._incoming.begin(self._since_s)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > limits.MAX_REQUEST_TARGET_BYTES:
            raise RefusedError(ConnectionRefusal.TARGET_SIZE)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        incoming, headers = self._incoming, self._headers
        if self.url == b"*":  # the whole server: only OPTIONS may have this target (RFC 9110)
            self.url = b"/"
        root_path = self._answers.root_path
        if root_path:
            self.url = without_root(self.url, root_path)
        has_body = incoming.head_ends(headers, self.parser.get_http_version())
        if self._take(has_body=has_body):
            return
        self._happens(phases.START)
        parser = self.parser
        cycle = self.cycle = Cycle(
            self._scope(), self.transport, self.flow, self.loop, self._response_complete,
            keep_alive=self._keeps_alive(),
            expects_continue=self._expects_continue,
        )  # fmt: skip
        if has_body and parser.should_upgrade():
            cycle.keep_alive = False  # the upgrade is ignored, and the body is parsed as the next request
        self._start(cycle)

    def _keeps_alive(self) -> bool:
        """Whether the connection stays open after this answer.

        An HTTP/1.0 client reads to the end of the connection. The server has default headers only while it is stopping.
        """
        parser = self.parser
        is_stopping = bool(self._server_state.default_headers)
        return parser.get_http_version() == "1.1" and parser.should_keep_alive() and not is_stopping

    def _scope(self) -> Scope:
        parsed = httptools.parse_url(self.url)
        path = parsed.path.decode("ascii")
        root_path = self._answers.root_path
        scope = {
            "type": "http",
            "asgi": self._asgi,
            "http_version": self.parser.get_http_version(),
            "server": self._server,
            "client": self.client,
            "scheme": self._scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": parsed.path,
            "query_string": parsed.query or b"",
            "headers": self._headers,
            "state": self._app_state.copy(),
            PEER_TROUBLE: self._peer_trouble,
        }
        if root_path:
            scope[ROOT_PATH] = root_path.decode()
        return scope

    def on_body(self, body: bytes) -> None:
        incoming, phase = self._incoming, self._phase
        incoming.body_comes(len(body), self._now())
        if phase is phases.BODY and self.cycle is not None:
            self.cycle.feed(body)
        elif phase is phases.RECEIVING:
            incoming.received += body
        elif phase is phases.SURPLUS:
            incoming.surplus_bytes += len(body)
            if incoming.surplus_bytes > limits.MAX_SURPLUS_BYTES:
                raise RefusedError(ConnectionRefusal.BODY_SIZE)

    def on_message_complete(self) -> None:
        self._happens(phases.END)
        received = self._incoming.received
        if self._phase is phases.BUSY and self.cycle is not None:
            self.cycle.end_body()
        elif self._phase is phases.IDLE:
            self._since_s = self._now()
        elif received and self._exchange is not None:
            self._incoming.received = bytearray()
            self._answer_body(bytes(received), self._exchange)

    # ---- requests that are answered directly

    def _takes_lookup(self, data: bytes) -> bool:
        """Hand over a lookup whose headers were parsed before."""
        target, known = self._known.lookup(data), self._known.last
        if target is None or known is None or self._restricted or self._guard.pressure is Pressure.REFUSE:
            return False
        if known.packs and may_be_page(target):
            return False
        self.url = target
        exchange = self._exchange = self._answers.lookup(target, known.presented, (), self._reply)
        if exchange is None:
            return False
        self._phase = phases.DIRECT  # the transition of TAKE
        return self._hand_over(target, exchange)

    def _takes_post(self, data: bytes) -> bool:
        """Hand over a request whose head was parsed before, and whose whole body is in the same read."""
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
        # One function, because it runs for each new head, and each failed condition leads to the slow way.
        url, headers, parser, answers = self.url, self._headers, self.parser, self._answers
        if not url.startswith(_TAKEN_BELOW) or self._expects_continue:
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
            is_packed = may_be_page(url) and may_compress(headers)
            exchange = None if is_packed else answers.lookup(url, presented, headers, self._reply)
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
            packs = method == b"GET" and may_compress(headers)
            self._known.keep(url, size_bytes, presented, exchange.application, packs=packs)
        return True

    def _is_refusing(self) -> bool:
        """Whether ASGI must answer, because requests are refused now, and it gives the reason."""
        return self._restricted or self._guard.pressure is Pressure.REFUSE

    def _answer_body(self, body: bytes, exchange: DirectExchange) -> None:
        """Let the application answer a request whose whole body has arrived."""
        answers = self._answers
        if not self.url.startswith(_INTERNAL):
            assert answers.batches is not None, "it accepted this one"
            answers.batches.answer_batch(self.url, body, exchange)
        else:
            assert answers.bodies is not None, "it accepted this one"
            answers.bodies.answer_body(self.url, body, exchange)

    def _hand_over(self, target: bytes, exchange: DirectExchange) -> bool:
        """Let the application answer a lookup; it may reply at once. Return False if it declines."""
        direct = self._answers.direct
        if direct is not None and direct.answer_directly(target, exchange):
            return True
        self._exchange = None
        self._happens(phases.DECLINE)
        return False

    def _reply(self, status: int, content_type: bytes, body: bytes, headers: Headers) -> None:
        """Send the answer of the application. An exchange calls this once."""
        exchange, self._exchange = self._exchange, None
        if self._phase is phases.DIRECT:
            self._phase = phases.IDLE  # the transition of ANSWER, without the cost of its call for each lookup
        else:
            self._happens(phases.ANSWER)
        self._server_state.total_requests += 1
        transport = self.transport
        if exchange is None or transport.is_closing():
            return
        if exchange.headers:
            headers = (*headers, *exchange.headers)
        closes = exchange.closes or bool(self._server_state.default_headers)  # the service is stopping
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

    def _start(self, cycle: Cycle) -> None:
        """Start the task that answers a request by ASGI, or refuses it."""
        guard, scope, app = self._guard, cycle.scope, self._app
        asks = self._restricted or guard.pressure is Pressure.REFUSE
        refusal = guard.refuses(scope["path"], restricted=self._restricted) if asks else None
        if refusal is not None:
            guard.note(refusal, self.client, self._now())
            cycle.keep_alive = False
            app = refusing(refusal)
        else:
            app = self._answers.by_asgi(scope, app)
        task = self.loop.create_task(cycle.run(app))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)

    def _response_complete(self) -> None:
        """Continue with the connection after an answer by ASGI."""
        self._happens(phases.ANSWER)
        self._server_state.total_requests += 1
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
        if running is not None:
            running.leave()
        self._guard.note(refusal, self.client, self._now())
        self._happens(phases.REFUSE)
        self._since_s, self._incoming.surplus_bytes, self._exchange = self._now(), 0, None
        transport.write(problem_response(says))
        if transport.can_write_eof():
            transport.write_eof()
        self.flow.take()
        self.flow.resume_reading()
        self.flow.release()
