"""Requests that are answered by callback: an application gets an `Exchange`, and replies to it, at once or later.

The scope, task and messages of ASGI cost more than a lookup. So the protocol hands lookups to an application that
`AnswersDirectly`; the few that take the ASGI way, such as HEAD, pass through the same code with an `AsgiExchange`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import NamedTuple, Protocol, runtime_checkable

from understudy_shared.auth.permissions import shown_problem
from understudy_shared.auth.principals import UNGUARDED, Authorization
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import JSON_TYPE, NOSNIFF, Receive, bug
from understudy_shared.http.problems import CONTENT_TYPE, Problem, problem_of
from understudy_shared.telemetry.spans import Trace

Headers = Iterable[tuple[bytes, bytes]]

STATUS_LINE = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_TYPE_LINES = {kind: b"%b\r\n%b: %b" % (kind, *NOSNIFF) for kind in (JSON_TYPE, CONTENT_TYPE)}
"""The header lines after `content-type:` in answers to clients. Hops, which only routers receive, have another type."""


class ReaderLeftError(Exception):
    """The client disconnected: the answer has no receiver."""


class Exchange(Protocol):
    """One request that waits for its reply.

    `trace` is its trace context, if it has one; `authorization` is its grant.
    """

    trace: Trace | None
    authorization: Authorization

    def reply(self, status: int, content_type: bytes, body: bytes, headers: Headers = (), /) -> None:
        """Send the reply, on the event loop. A second reply is dropped, and so is one to a client that disconnected."""

    def when_left(self, callback: Callable[[], None], /) -> None:
        """Call back when the client disconnects before the reply; call at once if it has disconnected."""

    def forget(self) -> None:
        """Cancel the callback of `when_left`."""


def reply_problem(exchange: Exchange, problem: Problem) -> None:
    exchange.reply(problem.status, CONTENT_TYPE, problem.body(), problem.headers)


class AnsweringTasks:
    """The tasks that answer requests without ASGI, if the answer takes more than one turn of the loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, bytes], exchange: Exchange, name: str, headers: Headers = ()) -> None:
        """Reply with the JSON that `work` returns and these headers, or with the problem that it raises."""
        task = asyncio.get_running_loop().create_task(_answer(work, exchange, headers), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _answer(work: Coroutine[None, None, bytes], exchange: Exchange, headers: Headers) -> None:
    try:
        body = await work
    except Exception as error:
        problem = problem_of(error) if isinstance(error, UnderstudyError) else bug(error)
        reply_problem(exchange, shown_problem(exchange.authorization.principal, problem))
    else:
        exchange.reply(200, JSON_TYPE, body, headers)


@runtime_checkable
class EndsStreams(Protocol):
    """An application with endless answers."""

    async def end_streams(self) -> None:
        """End these answers properly, within bounded time, because the service stops."""


@runtime_checkable
class AnswersDirectly(Protocol):
    """An application that answers some GET requests without ASGI."""

    def answer_directly(self, target: bytes, exchange: Exchange, /) -> bool:
        """Answer a GET of `target`, path and query as sent. Return False, without a reply, to have ASGI answer it.

        It does not raise.
        """


@runtime_checkable
class AnswersBodies(Protocol):
    """An application that answers some POST requests without ASGI."""

    def accepts_body(self, target: bytes, size_bytes: int, /) -> bool:
        """Whether a POST with a body of that size goes to `answer_body`; otherwise ASGI answers it."""

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange, /) -> None:
        """Answer a POST that `accepts_body` accepted. It does not raise."""


@runtime_checkable
class AnswersBatches(Protocol):
    """An application that answers batches without ASGI."""

    def accepts_batch(self, target: bytes, size_bytes: int, /) -> bool:
        """Whether a POST with a body of that size goes to `answer_batch`; otherwise ASGI answers it."""

    def answer_batch(self, target: bytes, body: bytes, exchange: DirectExchange, /) -> None:
        """Answer a POST that `accepts_batch` accepted, later. It does not raise."""


class DirectExchange:
    """A request that the protocol handed over. `send` writes the reply."""

    __slots__ = ("_on_left", "_send", "application", "authorization", "closes", "headers", "trace")

    def __init__(self, send: Callable[[int, bytes, bytes, Headers], None], application: bytes | None = None) -> None:
        self.application = application
        """The application that an internal call names, percent-encoded: APPLICATION_HEADER."""
        self.trace: Trace | None = None
        self.authorization = UNGUARDED
        self.closes = False
        """Whether the connection ends with the reply."""
        self.headers: Headers = ()
        """Headers that every reply to the request gets, in addition to its own."""
        self._send: Callable[[int, bytes, bytes, Headers], None] | None = send
        self._on_left: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The address of the client: the other end of the connection."""
        client = getattr(getattr(self._send, "__self__", None), "client", None)
        return client[0] if client else "unknown"

    def reply(self, status: int, content_type: bytes, body: bytes, headers: Headers = (), /) -> None:
        send, self._send = self._send, None
        if send is not None:
            send(status, content_type, body, headers)

    def when_left(self, callback: Callable[[], None], /) -> None:
        if self._send is None:
            callback()
        else:
            self._on_left = callback

    def forget(self) -> None:
        self._on_left = None

    def leave(self) -> None:
        self._send = None
        if self._on_left is not None:
            self._on_left()


class AsgiReply(NamedTuple):
    """The reply to a request that came by ASGI."""

    status: int
    content_type: bytes
    body: bytes
    headers: Headers


class AsgiExchange:
    """A request that came by ASGI. Watching for the client's disconnect costs a task."""

    def __init__(self, receive: Receive, trace: Trace | None = None, authorization: Authorization = UNGUARDED) -> None:
        self.trace = trace
        self.authorization = authorization
        self._receive = receive
        self._replied: asyncio.Future[AsgiReply | None] = asyncio.get_running_loop().create_future()
        self._watch: asyncio.Task[None] | None = None

    async def replied(self) -> AsgiReply | None:
        """Wait for the reply; return None if the client disconnected."""
        return await self._replied

    def reply(self, status: int, content_type: bytes, body: bytes, headers: Headers = (), /) -> None:
        if not self._replied.done():
            self._replied.set_result(AsgiReply(status, content_type, body, headers))

    def when_left(self, callback: Callable[[], None], /) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._until_left(callback), name="watch a reader")

    def forget(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _until_left(self, callback: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # the messages of its request were read before
        callback()
        if not self._replied.done():
            self._replied.set_result(None)


def response_head(status: int, content_type: bytes, body_bytes: int, headers: Headers, *, close: bool) -> bytes:
    """Return the head of a response with a body of that size; with `close` the connection ends after it."""
    more = b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""
    if close:
        more += b"connection: close\r\n"
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
        STATUS_LINE[status],
        _TYPE_LINES.get(content_type, content_type),
        body_bytes,
        more,
    )


def response(status: int, content_type: bytes, body: bytes, headers: Headers, *, close: bool) -> bytes:
    """Return the bytes of a whole response."""
    return response_head(status, content_type, len(body), headers, close=close) + body
