"""HTTP/1.1 for every service: lookups and hops are answered without ASGI, where the application can (`direct.py`)."""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.auth.access import Access
from understudy_shared.auth.api_keys import Presented
from understudy_shared.auth.presented import presented_in
from understudy_shared.http.target import STORES
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import INTERNAL_PREFIX, Pressure
from understudy_shared.server.direct import AnswersBodies, AnswersDirectly, DirectExchange, Headers, response
from understudy_shared.server.limited_protocol import LimitedProtocol
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache
from understudy_shared.telemetry.trace import is_traced, trace_of

_INTERNAL = INTERNAL_PREFIX.encode()
_END_OF_HEAD = b"\r\n\r\n"
_METHODS = _GET, _POST = b"GET ", b"POST "
_LOOKUP_LINE = re.compile(rb"GET (/v1/stores/[A-Za-z0-9/_.~%:,=&?+@!$'()*;-]+) HTTP/1\.1\r\n")
"""The first line of a lookup, with nothing in its target that a parser could take for anything else."""


class ParsedHead(NamedTuple):
    """A request that was answered directly. Of a POST the whole head is kept, of a lookup all but its first line.

    `presented` is the credential in exactly the bytes of `head`. What it is good for is asked for each request anew.
    """

    head: bytes
    target: bytes = b""
    body_bytes: int = 0
    presented: Presented | None = None


class HttpProtocol(LimitedProtocol):
    """One connection."""

    __slots__ = (
        "_bodies", "_closes", "_direct", "_exchange", "_head", "_heads", "_presented", "_received", "_taken_bytes",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard,
        access: Access | None = None,
        direct: AnswersDirectly | None = None,
        bodies: AnswersBodies | None = None,
        heads: ParsedCache[ParsedHead] | None = None,
    ) -> None:
        """`heads`: heads of requests that were answered directly. A hop with an equal one is not parsed again, nor is a
        lookup that differs in its target only.
        """
        super().__init__(config, server_state, app_state, _loop, guard=guard, access=access)
        self._direct, self._bodies = direct, bodies
        self._heads = ParsedCache[ParsedHead](max_key_bytes=MAX_HEAD_BYTES) if heads is None else heads
        self._head: ParsedHead | None = None
        """That of the last lookup here: most clients send each with the same headers, which are then not hashed."""
        self._exchange: DirectExchange | None = None
        """The request that was taken, until it is answered."""
        self._closes = False
        """Whether the connection ends with its answer."""
        self._presented: Presented | None = None
        """The credential of the request that was parsed last."""
        self._taken_bytes: int | None = None
        """The size of its body, if it was parsed and taken in this read."""
        self._received = bytearray()
        """Its body, as far as it has come. In a list, pieces of two bytes would take twenty times their size."""

    # ---- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._bodies is not None and data.startswith(_POST):
            if self._takes_with_body(data):
                return
        elif len(data) <= MAX_HEAD_BYTES and self._takes_lookup(data):
            return
        begins_here = data.startswith(_METHODS) and self._is_at_rest()
        self._taken_bytes = None
        super().data_received(data)
        if begins_here and self._taken_bytes is not None and not self._closes:
            self._keep_head(data, self._taken_bytes)

    def _takes_lookup(self, data: bytes) -> bool:
        """Hand over a lookup whose headers were parsed before."""
        line = _LOOKUP_LINE.match(data)
        if line is None:
            return False
        head = self._head
        if head is None or len(head.head) != len(data) - line.end() or not data.endswith(head.head):
            head = self._head = self._heads.get(data[line.end() :])
        if head is None or not (self._is_at_rest() and self._may_look_up()):
            return False
        self.url, self._closes = line[1], False
        return self._hand_over(line[1], head.presented)

    def _takes_with_body(self, data: bytes) -> bool:
        """Hand over a request of which the head was parsed before, and the whole body came in the same read."""
        start = data.find(_END_OF_HEAD, 0, MAX_HEAD_BYTES) + len(_END_OF_HEAD)
        head = self._heads.get(data[:start])
        if head is None or head.body_bytes != len(data) - start or self._bodies is None or not self._is_at_rest():
            return False
        if self._access is not None and not self._access.peer(head.presented, self._peer_trouble):
            return False
        self.url, self._closes = head.target, False
        exchange = self._exchange = DirectExchange(self._reply)
        self._is_direct = self._is_taken = True
        self._bodies.answer_body(data[start:], exchange)
        return True

    def _keep_head(self, data: bytes, body_bytes: int) -> None:
        """Keep the head of a request that was taken, if the read was that request and nothing else. The trace of a
        request is in its head, which never comes again.
        """
        if is_traced(self.headers):
            return
        end = data.find(_END_OF_HEAD, 0, MAX_HEAD_BYTES) + len(_END_OF_HEAD)
        if end + body_bytes != len(data):
            return
        if body_bytes:
            self._keep(ParsedHead(data[:end], self.url, body_bytes, self._presented))
        elif line := _LOOKUP_LINE.match(data):
            self._keep(ParsedHead(data[line.end() :], presented=self._presented))

    def _keep(self, parsed: ParsedHead) -> None:
        self._heads.keep(parsed.head, parsed)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.leave()

    def shutdown(self) -> None:
        if self._is_taken and not self._lingering:
            self._closes = True
        else:
            super().shutdown()

    # ---- requests

    def _is_at_rest(self) -> bool:
        """Whether a request may begin."""
        return not (self._in_message or self._held or self._lingering) and self._may_begin()

    def _may_look_up(self) -> bool:
        return not (self._restricted or self._guard.pressure is Pressure.REFUSE)

    def _take(self, *, has_body: bool) -> bool:
        """Hand a request over, if it can be answered so: a plain one over HTTP/1.1, in its turn."""
        url, parser = self.url, self.parser
        is_lookup, is_internal = url.startswith(STORES), url.startswith(_INTERNAL)
        if (
            not (is_lookup or is_internal)
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
            or self.expect_100_continue
            or (is_lookup and not self._may_look_up())
            or not self._may_begin()
        ):
            return False
        self._closes = not parser.should_keep_alive()
        access, method = self._access, parser.get_method()
        self._presented = None if access is None else presented_in(self.headers)
        if method == b"GET" and is_lookup and not has_body:
            self._hand_over(url, self._presented, self.headers)
        elif (
            method == b"POST"
            and is_internal
            and self._accepts_body(url, self._left_bytes)
            and (access is None or access.peer(self._presented, self._peer_trouble))
        ):
            self._exchange, self._is_direct, self._is_taken = DirectExchange(self._reply), True, True
        self._taken_bytes = self._left_bytes if self._is_direct else None
        return self._is_direct

    def _accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return size_bytes > 0 and self._bodies is not None and self._bodies.accepts_body(target, size_bytes)

    def _hand_over(self, target: bytes, presented: Presented | None, headers: Headers = ()) -> bool:
        """Let the application answer a lookup. False: it does not, or it is not granted here. A head that was parsed
        before has no trace.
        """
        if self._direct is None:
            return False
        if self._access is None:
            exchange = self._exchange = DirectExchange(self._reply)
        else:
            authorization = self._access.lookup(target, presented)
            if authorization is None:
                return False
            exchange = self._exchange = DirectExchange(self._reply)
            exchange.authorization = authorization
        if headers:
            exchange.trace = trace_of(headers)
        self._is_direct = self._is_taken = True  # the reply may come before the next line
        if not self._direct.answer_directly(target, exchange):
            self._exchange, self._is_direct, self._is_taken = None, False, False
        return self._is_direct

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._is_direct:
            self._received += body

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._received and self._bodies is not None and self._exchange is not None:
            body = bytes(self._received)
            self._received.clear()
            self._bodies.answer_body(body, self._exchange)

    def _reply(self, status: int, content_type: bytes, body: bytes, headers: Headers) -> None:
        """Send the answer of the application; an exchange calls it once."""
        self._exchange, self._is_taken = None, False
        self.server_state.total_requests += 1
        transport = self.transport
        if transport.is_closing():
            return
        closes = self._closes or bool(self.server_state.default_headers)  # the service departs
        transport.write(response(status, content_type, body, headers, close=closes))
        self._since_s = self._now()
        if closes:
            transport.close()
        elif self.flow.read_paused and not self.flow.write_paused and not self._in_message:
            self._guard.go_on_later(self)
