"""Lookups, which nodes and routers answer before the FastAPI application; FastAPI answers everything else.

A framework's routing and validation cost four times what a lookup costs, and ASGI twice as much. So a GET of one key is
answered by callback, and a batch by a task, both without ASGI where the protocol allows it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import quote

from understudy_shared.auth.access import AUTHORIZATION, Access, authorization_of
from understudy_shared.auth.audit import is_of_operators, peer_of
from understudy_shared.auth.permissions import shown_batch, shown_problem
from understudy_shared.auth.principals import NotingScope
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import (
    JSON_TYPE,
    App,
    Receive,
    Scope,
    Send,
    bug,
    enter,
    not_allowed,
    read_body,
    send_problem,
    send_reply,
    without_body,
)
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import (
    APPLICATIONS,
    STORES,
    application_name,
    application_target,
    split_path,
    unknown_application,
)
from understudy_shared.questions.lookup.batches import KeyBatch, batch_form, parse_batch
from understudy_shared.questions.scan.long_reads import LongReads
from understudy_shared.questions.watch.streams import WatchStreams
from understudy_shared.server.compression import Packer
from understudy_shared.server.connection_limits import INTERNAL_PREFIX
from understudy_shared.server.direct import (
    AnswersDirectly,
    AsgiExchange,
    DirectExchange,
    Exchange,
    Headers,
    ReaderLeftError,
    reply_problem,
)
from understudy_shared.settings import Compression
from understudy_shared.telemetry.metrics import NO_STORE, OperationCounts, RequestCounts
from understudy_shared.telemetry.spans import RecordedTrace, Spans, Trace, begin_request, end_request, trace_of

INTERNAL = INTERNAL_PREFIX.encode()
_MAY_NAME = (APPLICATIONS, b"/admin/")
MAX_DIRECT_BYTES = 64 * 1024
"""Largest body of a batch that is answered without ASGI: some thousand keys."""

KEY_ROUTE, LOOKUP_ROUTE = "/v1/stores/{store}/keys/{key}", "/v1/stores/{store}/lookup"


class RecordedExchange:
    """An exchange whose reply ends the span of its request."""

    __slots__ = ("_inner", "_span", "authorization", "trace")

    def __init__(self, inner: Exchange, trace: RecordedTrace) -> None:
        self.trace: Trace | None = trace
        self.authorization = inner.authorization
        self._inner = inner
        self._span = trace.span

    def reply(self, status: int, content_type: bytes, body: bytes, headers: Headers = (), /) -> None:
        end_request(self._span, status)
        self._inner.reply(status, content_type, body, headers)

    def when_left(self, callback: Callable[[], None], /) -> None:
        self._inner.when_left(partial(self._left, callback))

    def forget(self) -> None:
        self._inner.forget()

    def _left(self, callback: Callable[[], None]) -> None:
        end_request(self._span, None)
        callback()


class LookupsFirst(ABC):
    """The ASGI application that answers lookups.

    `requests` counts its requests for the metrics; `access` authorizes them.
    """

    def __init__(
        self,
        app: App,
        *,
        max_in_flight: int,
        requests: RequestCounts,
        failed: Callable[[Problem], None] = lambda problem: None,
        access: Access | None = None,
        compression: Compression = Compression.GZIP,
    ) -> None:
        """Set the parts of the application.

        `failed` is called for each lookup, and each batch as a whole, that ends with a problem.
        """
        self.access = access or Access()
        self.requests = requests
        self._application_id = ""
        self._failed = failed
        self.in_flight = 0
        self.spans: Spans | None = None
        """The recorder of spans of requests, if spans are recorded."""
        self.long_reads = LongReads()
        """The scans and counts that the application answers, for the metrics."""
        self.pages: AnswersDirectly | None = None
        """The pages of scans that are answered without ASGI, too."""
        self.watch_streams = WatchStreams(0)
        """The watches that the application answers."""
        self.when_ending: list[Callable[[], None]] = []
        """Functions that end the other endless streams when the service stops."""
        self._batches: set[asyncio.Task[bool]] = set()
        self._packer = Packer(compression)
        self._app = app
        self._max_in_flight = max_in_flight

    @abstractmethod
    def answer(self, target: bytes, exchange: Exchange) -> None:
        """Answer a GET of one key, now or later, with a `reply_...` method. Raises a problem only before it replies."""

    @abstractmethod
    async def look_up_many(self, batch: KeyBatch) -> bytes:
        """Return the answer to a batch.

        Raises a problem that concerns the batch as a whole, and ReaderLeftError.
        """

    @abstractmethod
    def has_store(self, store: str) -> bool:
        """Whether a store has that name: only existing stores get a label."""

    @property
    def application_id(self) -> str:
        """The application that a path may name: `/v1/applications/{application}/stores`."""
        return self._application_id

    @application_id.setter
    def application_id(self, application_id: str) -> None:
        self._application_id = self.access.applications.own = application_id

    async def end_streams(self) -> None:
        """End all endless streams because the service stops. Each watch gets a last event."""
        for end in self.when_ending:
            end()
        await self.watch_streams.end()

    # ---- entry points: without ASGI, and by ASGI

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        """Answer a GET without ASGI, if it is a lookup or a page. Return whether it was: see `AnswersDirectly`."""
        if target.startswith(APPLICATIONS):
            target = self._inner(target)
        if not target.startswith(STORES):
            return False
        at = target.find(b"/", len(STORES))  # in nearly all lookups the end of the store's name
        is_usual = target.startswith(b"keys/", at + 1) and target.find(b"?", 0, at) < 0
        if b"#" in target:
            return False
        if is_usual or _call(target.partition(b"?")[0]) is not None:
            self._answer(target, exchange)
            return True
        return self.pages is not None and self.pages.answer_directly(target, exchange)

    def accepts_batch(self, target: bytes, size_bytes: int) -> bool:
        """See `AnswersBatches`. A large batch is left to ASGI, which reads its body in pieces."""
        is_batch = _call(target.partition(b"?")[0]) == b"lookup" and b"#" not in target
        return is_batch and size_bytes <= MAX_DIRECT_BYTES

    def answer_batch(self, target: bytes, body: bytes, exchange: DirectExchange) -> None:
        """See `AnswersBatches`."""

        async def read() -> bytes:
            return body

        task = asyncio.get_running_loop().create_task(
            self._batch(target, read, exchange, exchange.peer), name="a batch"
        )
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    def _inner(self, target: bytes) -> bytes:
        """Return a target without the name of this application. A target with another name is unchanged."""
        named, inner = application_target(target)
        return inner if named is not None and named == quote(self._application_id, safe="").encode() else target

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.access.is_on and scope["type"] == "http" and AUTHORIZATION not in scope:
            # Understudy's protocol has authorized the request already; another ASGI server has not.
            await self.access.admitted(scope, self)(scope, receive, send)
            return
        if scope["type"] == "http" and (self.access.is_on or is_of_operators(scope)):
            principal = authorization_of(scope).principal
            await self.access.audit.watch(self._routed, scope, receive, send, principal)
        else:
            await self._routed(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = None
        if scope["type"] == "http":
            if scope["raw_path"].startswith(_MAY_NAME) and (problem := self._enter(scope)) is not None:
                await send_problem(send, problem)
                return
            call = _call(scope["raw_path"])
        if call is None:
            is_packed = scope["type"] == "http" and not scope["raw_path"].startswith(INTERNAL)
            await self._app(scope, receive, self._packer.packing(scope, send) if is_packed else send)
        elif scope["method"] == "GET":
            await self._single(scope, receive, send)
        elif scope["method"] == "HEAD":
            await self._single(scope, receive, without_body(send))
        elif scope["method"] == "POST" and call == b"lookup":
            await self._batch_by_asgi(scope, receive, self._packer.packing(scope, send))
        else:
            allow = "GET, HEAD, POST" if call == b"lookup" else "GET, HEAD"
            await self._refuse("lookup", not_allowed(scope["method"], allow), send)

    def _enter(self, scope: Scope) -> Problem | None:
        """Remove this application's name from the path. Return a problem if the path names another application."""
        named, inner = application_target(scope["raw_path"])
        if named is None:
            return None
        try:
            name = application_name(named)
            if name != self.application_id:
                return unknown_application(name)
            enter(scope, inner)
        except UnderstudyError as error:
            return problem_of(error)
        return None

    async def _single(self, scope: Scope, receive: Receive, send: Send) -> None:
        query: bytes = scope["query_string"]
        exchange = AsgiExchange(receive, trace_of(scope["headers"]), authorization_of(scope))
        target = b"%b?%b" % (scope["raw_path"], query) if query else scope["raw_path"]
        self._answer(target, exchange, scope["method"])
        reply = await exchange.replied()
        if reply is not None:
            await send_reply(send, reply.status, reply.body, reply.content_type, reply.headers)

    def _answer(self, target: bytes, exchange: Exchange, method: str = "GET") -> None:
        asked = exchange
        try:
            if self.spans is not None:
                exchange = self._recorded(self.spans, method, target.partition(b"?")[0], exchange)
            self.answer(target, exchange)
        except UnderstudyError as error:
            problem = problem_of(error)
            if problem.type is ProblemType.FORBIDDEN and isinstance(asked, DirectExchange):
                self.access.key_refused(asked.authorization.principal, asked.peer, method, target)
            self.reply_problem(exchange, problem)
        except Exception as error:
            self.reply_problem(exchange, bug(error))

    def _recorded(self, spans: Spans, method: str, raw_path: bytes, exchange: Exchange) -> Exchange:
        """Return the exchange with a span, if the request is sampled."""
        route = LOOKUP_ROUTE if _call(raw_path) == b"lookup" else KEY_ROUTE
        trace = begin_request(spans, method, route, exchange.trace, self._known_store(raw_path))
        return exchange if trace is None else RecordedExchange(exchange, trace)

    def _known_store(self, raw_path: bytes) -> str:
        """Return the store that a path names; "" if there is no such store: the name may be anything, even a key."""
        name = raw_path[len(STORES) :].partition(b"/")[0].decode("latin-1")
        return name if self.has_store(name) else ""

    async def _batch_by_asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(receive, trace_of(scope["headers"]), authorization_of(scope))
        target = b"%b?%b" % (scope["raw_path"], scope["query_string"])
        if await self._batch(target, partial(read_body, receive), exchange, peer_of(scope)):
            reply = await exchange.replied()
            if reply is not None:
                await send_reply(send, reply.status, reply.body, reply.content_type, reply.headers)

    async def _batch(
        self, target: bytes, read: Callable[[], Awaitable[bytes]], exchange: AsgiExchange | DirectExchange, peer: str
    ) -> bool:
        """Answer a batch. Return False if its client has disconnected."""
        # Long, because one place has to count, time and audit every outcome, and end its span.
        began_s, store = time.monotonic(), NO_STORE
        problem: Problem | None = None
        outcome, body = "answered", b""
        raw_path, _, query = target.partition(b"?")
        recorded = None
        if self.spans is not None:
            recorded = begin_request(self.spans, "POST", LOOKUP_ROUTE, exchange.trace, self._known_store(raw_path))
            exchange.trace = recorded or exchange.trace
        principal, keys = exchange.authorization
        keys = keys if keys.prefixes is None else NotingScope(keys.prefixes)
        try:
            is_compact, has_longs_as_text = batch_form(query)
            store = _store_of_batch(raw_path)
            sent = await read()  # before it counts: who sends slowly takes no place from others
            self.begin()
            try:
                asked, params = parse_batch(sent)
                body = await self.look_up_many(KeyBatch(store, asked, params, keys, exchange, is_compact))
                body = shown_batch(principal, body)
                if has_longs_as_text:
                    body = longs_as_text(body)
            finally:
                self.in_flight -= 1
        except ReaderLeftError:
            outcome = "cancelled"
        except UnderstudyError as error:
            problem = problem_of(error)
        except Exception as error:
            problem = bug(error)
        if isinstance(keys, NotingScope) and keys.refused:
            self.access.key_refused(principal, peer, "POST", raw_path)
        counts = self.requests.of("batch", store if self.has_store(store) else NO_STORE)
        counts.duration_ms.observe((time.monotonic() - began_s) * 1000)
        counts.count(outcome if problem is None else problem.outcome)
        if recorded is not None:
            end_request(recorded.span, problem.status if problem else 200 if outcome == "answered" else None)
        if problem is not None:
            self._failed(problem)
            reply_problem(exchange, shown_problem(principal, problem))
        elif outcome == "answered":
            exchange.reply(200, JSON_TYPE, body)
        return outcome == "answered"

    async def _refuse(self, operation: str, problem: Problem, send: Send) -> None:
        self.requests.of(operation).count(problem.type.slug)
        await send_problem(send, problem)

    # ---- for implementations of `answer`

    def begin(self) -> None:
        """Count one more request in flight. Above the limit, raises an overloaded problem and does not count."""
        if self.in_flight >= self._max_in_flight:
            detail = f"{self.in_flight} requests are in flight"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))
        self.in_flight += 1

    def reply_found(self, exchange: Exchange, counts: OperationCounts, body: bytes) -> None:
        counts.outcomes["found"] += 1
        exchange.reply(200, JSON_TYPE, body)

    def reply_absent(self, exchange: Exchange, counts: OperationCounts, body: bytes) -> None:
        counts.outcomes["absent"] += 1
        exchange.reply(404, JSON_TYPE, body)

    def reply_problem(self, exchange: Exchange, problem: Problem, counts: OperationCounts | None = None) -> None:
        """Reply with a problem. A request that names no existing store has no `counts`."""
        (counts or self.requests.of("lookup")).count(problem.outcome)
        self._failed(problem)
        reply_problem(exchange, shown_problem(exchange.authorization.principal, problem))


def _call(raw_path: bytes) -> bytes | None:
    """Return the part of a path after the store, `keys`, `keys/...` or `lookup`; None if it is not a lookup's path."""
    if not raw_path.startswith(STORES):
        return None
    call = raw_path[len(STORES) :].partition(b"/")[2]
    return call if call.startswith(b"keys/") or call in {b"keys", b"lookup"} else None


def _store_of_batch(raw_path: bytes) -> str:
    match split_path(raw_path):
        case ["v1", "stores", store, "lookup"]:
            return store
        case _:
            raise ProblemError(Problem(ProblemType.UNKNOWN_PATH, "a batch is sent to /v1/stores/{store}/lookup"))
