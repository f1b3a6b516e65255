"""HTTP/1.1 for every service: lookups and hops are answered without ASGI, where the application can (`direct.py`)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.http.connection_guard import ConnectionGuard
from understudy_shared.http.connection_limits import INTERNAL_PREFIX, Pressure
from understudy_shared.http.direct import AnswersBodies, AnswersDirectly, DirectExchange, Headers, response
from understudy_shared.http.limited_protocol import LimitedProtocol
from understudy_shared.http.parsed_cache import MAX_HEAD_BYTES, ParsedCache
from understudy_shared.http.target import STORES

_INTERNAL = INTERNAL_PREFIX.encode()
_END_OF_HEAD = b"\r\n\r\n"
_LOOKUP_LINE = re.compile(rb"GET (/v1/stores/[A-Za-z0-9/_.~%:,=&?+@!$'()*;-]+) HTTP/1\.1\r\n")
"""The first line of a lookup, with nothing in its target that a parser could take for anything else."""


class HttpProtocol(LimitedProtocol):
    """One connection."""

    __slots__ = ("_bodies", "_closes", "_direct", "_exchange", "_heads", "_received")

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard,
        direct: AnswersDirectly | None = None,
        bodies: AnswersBodies | None = None,
        heads: ParsedCache[bool] | None = None,
    ) -> None:
        """`heads`: all but the first line of lookups that were answered directly. One that differs from them in its
        target only is not parsed.
        """
        super().__init__(config, server_state, app_state, _loop, guard=guard)
        self._direct, self._bodies = direct, bodies
        self._heads = ParsedCache[bool](max_key_bytes=MAX_HEAD_BYTES) if heads is None else heads
        self._exchange: DirectExchange | None = None
        """The request that was taken, until it is answered."""
        self._closes = False
        """Whether the connection ends with its answer."""
        self._received = bytearray()
        """Its body, as far as it has come. In a list, pieces of two bytes would take twenty times their size."""

    # ---- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        line = _LOOKUP_LINE.match(data) if len(data) <= MAX_HEAD_BYTES else None
        if line is not None and self._heads.get(data[line.end() :]) and self._is_at_rest():
            self.url, self._closes = line[1], False
            if self._hand_over(line[1]):
                return
        is_first = not (self._in_message or self._held)
        super().data_received(data)
        if line is None or not (is_first and self._is_direct) or self._in_message or self._closes:
            return
        if _is_one_head(data):
            self._heads.keep(data[line.end() :], True)

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
        """Whether a lookup may begin, and is not to be refused."""
        return not (self._in_message or self._held or self._lingering) and self._may_begin() and self._may_look_up()

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
        method = parser.get_method()
        if method == b"GET" and is_lookup and not has_body:
            return self._hand_over(url)
        if method == b"POST" and is_internal and self._left_bytes and self._bodies is not None:
            if self._bodies.accepts_body(url, self._left_bytes):
                self._exchange, self._is_direct, self._is_taken = DirectExchange(self._reply), True, True
            return self._is_direct
        return False

    def _hand_over(self, target: bytes) -> bool:
        """Let the application answer a lookup. False: it does not."""
        if self._direct is None:
            return False
        exchange = self._exchange = DirectExchange(self._reply)
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


def _is_one_head(data: bytes) -> bool:
    """Whether a read was one whole request without a body."""
    return data.find(_END_OF_HEAD) == len(data) - len(_END_OF_HEAD)
