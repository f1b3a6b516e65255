"""The parts of a service that every connection needs to answer: access control, direct answers, CORS, and refusals.

OPTIONS, and HEAD of probes, are answered before any application. HAProxy's bare `option httpchk` sends `OPTIONS /`,
which gets the answer of `/readyz`. For other paths OPTIONS is answered with the accepted methods. A browser's preflight
is answered even earlier (`http/origins.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from understudy_shared.auth.access import Access
from understudy_shared.auth.presented import Presented
from understudy_shared.http.edge import App, Receive, Scope, Send, adding, send_problem
from understudy_shared.http.origins import Cors, origin_in
from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemType
from understudy_shared.http.target import named_application
from understudy_shared.server.compression import may_compress
from understudy_shared.server.connection_limits import MAX_HEADER_BYTES, MAX_REQUEST_TARGET_BYTES, ConnectionRefusal
from understudy_shared.server.direct import (
    AnswersBatches,
    AnswersBodies,
    AnswersDirectly,
    DirectExchange,
    Headers,
    response,
)
from understudy_shared.server.parsed_cache import LOOKUP_LINE, MAX_HEAD_BYTES, ParsedCache, ParsedHead
from understudy_shared.telemetry.spans import trace_of
from understudy_shared.tls.trouble import TlsTrouble

_PROBLEMS = {
    ConnectionRefusal.MALFORMED: Problem(
        ProblemType.BAD_REQUEST, "this is not HTTP/1.1", fix="Send an HTTP/1.1 request"
    ),
    ConnectionRefusal.HOST: Problem(
        ProblemType.BAD_REQUEST, "the request does not name one host", fix="Send one Host header"
    ),
    ConnectionRefusal.HEADER_SIZE: Problem(
        ProblemType.HEADERS_TOO_LARGE,
        f"the headers are above {MAX_HEADER_BYTES} bytes",
        fix="Send fewer or shorter headers",
    ),
    ConnectionRefusal.TARGET_SIZE: Problem(
        ProblemType.TARGET_TOO_LONG,
        f"the request target is above {MAX_REQUEST_TARGET_BYTES} bytes",
        fix="Send keys in the body of a batch lookup",
    ),
    ConnectionRefusal.HEADER_TIME: Problem(
        ProblemType.REQUEST_TIMEOUT, "the headers did not come in time", fix="Send them at once"
    ),
    ConnectionRefusal.BODY_TIME: Problem(
        ProblemType.REQUEST_TIMEOUT, "the body did not come in time", fix="Send it at once"
    ),
    ConnectionRefusal.CONNECTIONS: Problem(
        ProblemType.OVERLOADED, "there are too many connections", fix="Retry after a second"
    ),
    ConnectionRefusal.MEMORY: Problem(ProblemType.OVERLOADED, "memory is short", fix="Retry after a second"),
}


def says_why(refusal: ConnectionRefusal) -> Problem | None:
    """Return the problem of a refusal; None if the connection is closed without one."""
    return _PROBLEMS.get(refusal)


def problem_response(problem: Problem) -> bytes:
    """Return the last response of a connection."""
    return response(problem.status, CONTENT_TYPE, problem.body(), problem.headers, close=True)


def refusing(refusal: ConnectionRefusal) -> App:
    """Return the application that answers with the problem of a refusal."""
    problem = _PROBLEMS[refusal]

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_problem(send, problem)

    return refuse


_OF_PAGES = frozenset((b"origin", b"sec-fetch-site"))
"""The headers in which a browser names the page that sends a request."""

_PROBES = frozenset((b"/livez", b"/healthz", b"/readyz"))
_OF_PROBES = b"GET, HEAD, OPTIONS"
_OF_THE_REFUSAL = frozenset((b"allow", b"content-length", b"content-type"))


def read_instead(scope: Scope) -> Scope | None:
    """Return the GET whose answer an OPTIONS or HEAD of a probe gets; None for other requests."""
    method, path = scope["method"], scope["raw_path"]
    if method == "OPTIONS" and path == b"/":
        path = b"/readyz"
    if method not in {"HEAD", "OPTIONS"} or path not in _PROBES:
        return None
    return {**scope, "method": "GET", "raw_path": path, "path": path.decode()}


def as_probe(app: App, read: Scope) -> App:
    """Return the application that sends the answer of `app` to `read`, and the methods that probes accept."""

    async def answer(_: Scope, receive: Receive, send: Send) -> None:
        await app(read, receive, adding([(b"allow", _OF_PROBES)], send))

    return answer


def saying_methods(app: App) -> App:
    """Return the application that answers OPTIONS with the methods that `app` names when it refuses OPTIONS."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = False

        async def with_methods(message: MutableMapping[str, Any]) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] == 405:
                is_refused = True
                methods = dict(message["headers"])[b"allow"] + b", OPTIONS"
                kept = [each for each in message["headers"] if each[0] not in _OF_THE_REFUSAL]
                await send({**message, "status": 204, "headers": [*kept, (b"allow", methods)]})
            else:
                await send({**message, "body": b""} if is_refused else message)

        await app(scope, receive, with_methods)

    return answer


Sends = Callable[[int, bytes, bytes, Headers], None]
"""A function that writes a reply: status, content type, body, headers."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The parts that all connections of one service share.

    `access` authorizes requests; it is None where the service requires no credentials. `cors` is None where no origin
    is allowed. `root_path` is the prefix that requests may have, and `lookup_line` the first line of a lookup with or
    without it. `heads` caches the heads of requests that were answered directly.
    """

    direct: AnswersDirectly | None = None
    bodies: AnswersBodies | None = None
    batches: AnswersBatches | None = None
    access: Access | None = None
    cors: Cors | None = None
    root_path: bytes = b""
    lookup_line: re.Pattern[bytes] = LOOKUP_LINE
    heads: ParsedCache[ParsedHead] = field(default_factory=lambda: ParsedCache(max_key_bytes=MAX_HEAD_BYTES))

    def lookup(
        self, target: bytes, presented: Presented | None, headers: Headers, send: Sends
    ) -> DirectExchange | None:
        """Return the exchange of a lookup or a page; None if it is not answered directly, or not authorized.

        For a request whose head is cached, `headers` are empty: it has neither a trace nor an origin.
        """
        if self.direct is None:
            return None
        exchange = self._exchange(headers, send) if headers or self.cors is not None else DirectExchange(send)
        if self.access is not None:
            authorization = self.access.lookup(target, presented)
            if authorization is None:
                return None
            exchange.authorization = authorization
        return exchange

    def batch(self, target: bytes, size_bytes: int, headers: Headers, send: Sends) -> DirectExchange | None:
        """Return the exchange of a batch with a body of that size. Return None in the same cases as `lookup`; also if
        its answer may be compressed, or if a credential is needed: the ASGI way decides about the grant of a batch.
        """
        if self.access is not None or self.batches is None or size_bytes <= 0 or may_compress(headers):
            return None
        return self._exchange(headers, send) if self.batches.accepts_batch(target, size_bytes) else None

    def hop(  # noqa: PLR0917  # one call from the hottest path
        self,
        target: bytes,
        size_bytes: int,
        presented: Presented | None,
        trouble: TlsTrouble | None,
        headers: Headers,
        send: Sends,
    ) -> DirectExchange | None:
        """Return the exchange of an internal POST with a body of that size; None in the same cases as `lookup`, and if
        a page in a browser sends the request.
        """
        if size_bytes <= 0 or self.bodies is None or not self.bodies.accepts_body(target, size_bytes):
            return None
        if any(name in _OF_PAGES for name, _ in headers):
            return None
        is_granted = self.access is None or self.access.peer(presented, trouble)
        return DirectExchange(send, named_application(headers)) if is_granted else None

    def _exchange(self, headers: Headers, send: Sends) -> DirectExchange:
        """Return the exchange of a read, with the trace and the origin from its headers."""
        exchange = DirectExchange(send)
        if headers:
            exchange.trace = trace_of(headers)
        if self.cors is not None:
            exchange.headers = self.cors.headers(origin_in(headers))
        return exchange

    def by_asgi(self, scope: Scope, app: App) -> App:
        """Return the application that answers a request: `app` if it is authorized, else a refusal."""
        preflight = None if self.cors is None else self.cors.preflight(scope)
        if preflight is not None:  # browsers send a preflight without credentials
            return preflight
        read = read_instead(scope)
        asked = scope if read is None else read
        admitted = app if self.access is None else self.access.admitted(asked, app)
        answering = admitted if self.cors is None else self.cors.around(asked, admitted)
        if read is not None:
            return as_probe(answering, read)
        return saying_methods(answering) if scope["method"] == "OPTIONS" else answering
