"""The parts of a service that every connection needs to answer: access control, direct answers, and CORS."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from understudy_shared.auth.access import Access
from understudy_shared.auth.api_keys import Presented
from understudy_shared.http.cors import Cors, origin_in
from understudy_shared.http.edge import App, Scope
from understudy_shared.http.options import as_probe, read_instead, saying_methods
from understudy_shared.http.target import named_application
from understudy_shared.server.compression import may_compress
from understudy_shared.server.direct import AnswersBatches, AnswersBodies, AnswersDirectly, DirectExchange, Headers
from understudy_shared.server.known_heads import LOOKUP_LINE, ParsedHead
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache
from understudy_shared.telemetry.trace import trace_of
from understudy_shared.tls.trouble import TlsTrouble

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
        """Return the exchange of a lookup; None if it is not answered directly, or not authorized.

        A request whose head is cached comes without `headers`: it has neither a trace nor an origin.
        """
        if self.direct is None:
            return None
        exchange = self._exchange(headers, send)
        if self.access is not None:
            authorization = self.access.lookup(target, presented)
            if authorization is None:
                return None
            exchange.authorization = authorization
        return exchange

    def batch(self, target: bytes, size_bytes: int, headers: Headers, send: Sends) -> DirectExchange | None:
        """Return the exchange of a batch with a body of that size; None in the same cases as `lookup`, and where its
        answer may be compressed, or who asks has to show a credential: the ASGI way decides what a batch is granted.
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
        """Return the exchange of an internal POST with a body of that size; None in the same cases as `lookup`."""
        if size_bytes <= 0 or self.bodies is None or not self.bodies.accepts_body(target, size_bytes):
            return None
        is_granted = self.access is None or self.access.peer(presented, trouble)
        return DirectExchange(send, named_application(headers)) if is_granted else None

    def _exchange(self, headers: Headers, send: Sends) -> DirectExchange:
        """Return the exchange of a read, with what its headers say."""
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
