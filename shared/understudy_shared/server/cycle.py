"""One request that an application answers by ASGI: the messages that it receives, and its response on the connection.

The states of a response are: nothing sent; the head sent; complete. The head is sent with the first bytes of the body,
but at the latest in the next turn of the loop: separately, they would be two system calls, and the client would wake up
twice. A response without `content-length` is sent in chunks (RFC 9112, 7.1); to an HTTP/1.0 client it ends with the
connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from understudy_shared.http.edge import App, Scope, send_problem
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.server.direct import STATUS_LINE
from understudy_shared.server.incoming import Flow

log = logging.getLogger(__name__)

MAX_UNREAD_BODY_BYTES = 64 * 1024
"""Bytes of a body that wait for the application; above them, reading pauses."""

_NOT_IN_HEADERS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FAILED = Problem(ProblemType.INTERNAL, "the application failed", fix="See the log of the service")


class Cycle:
    """A request and its response. `answered` is called after the last bytes of the response."""

    __slots__ = (
        "_answered", "_body", "_expects_continue", "_flow", "_head", "_is_chunked", "_left_bytes", "_loop",
        "_more_body", "_transport", "_wakes", "disconnected", "keep_alive", "response_complete", "response_started",
        "scope",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: Flow,
        loop: asyncio.AbstractEventLoop,
        answered: Callable[[], None],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self._transport, self._flow, self._loop, self._answered = transport, flow, loop, answered
        self._expects_continue = expects_continue
        self._body, self._more_body, self._wakes = bytearray(), True, asyncio.Event()
        self._head = b""
        self._is_chunked, self._left_bytes = False, -1

    # ---- the connection's side

    def feed(self, body: bytes) -> None:
        """Take bytes of the request's body."""
        if self.response_complete:
            return
        self._body += body
        if len(self._body) > MAX_UNREAD_BODY_BYTES:
            self._flow.pause_reading()
        self._wakes.set()

    def end_body(self) -> None:
        self._more_body = False
        self._wakes.set()

    def leave(self) -> None:
        """Tell the application that its client is gone. What it sends from now on is dropped."""
        self.disconnected = self.disconnected or not self.response_complete
        self._wakes.set()

    async def run(self, app: App) -> None:
        """Let the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
            if not (self.response_complete or self.disconnected):
                log.error("a response is not whole: %s", self.scope["path"], extra={"action": "request-failed"})
                await self._fail()
        except asyncio.CancelledError:  # the service ends, and has waited long enough
            self._close()
        except BaseException:
            log.exception("an application failed: %s", self.scope["path"], extra={"action": "request-failed"})
            await self._fail()
        finally:
            self._answered = _nothing  # the connection refers to this

    async def _fail(self) -> None:
        self.keep_alive = False
        if self.response_started:
            self._close()
        else:
            await send_problem(self.send, _FAILED)

    # ---- the application's side

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, or that the client is gone or has its answer."""
        if self._expects_continue and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not (self.disconnected or self.response_complete):
            self._flow.resume_reading()
            await self._wakes.wait()
            self._wakes.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Any) -> None:
        """Send the head, or a part of the body. Raises RuntimeError if the message does not fit this response."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"{message['type']} does not follow: expected {expected}, or nothing")
        if self.response_started:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._send_head(message["status"], message.get("headers", ()))

    def _send_head(self, status: int, headers: Any) -> None:
        lines, closes = [STATUS_LINE[status]], False
        for name, value in headers:
            if _NOT_IN_HEADERS.search(name) or _NOT_IN_HEADERS.search(value):
                raise RuntimeError(f"{name!r} or its value cannot be in a header")
            if name == b"content-length":
                self._left_bytes = int(value)
            elif name == b"connection" and b"close" in value.lower():
                closes = True
            lines.append(b"%b: %b\r\n" % (name, value))
        has_body = self.scope["method"] != "HEAD" and status not in {204, 304}
        if not has_body:
            self._left_bytes = 0
        elif self._left_bytes < 0:
            self._is_chunked = self.scope["http_version"] == "1.1"
            self.keep_alive = self.keep_alive and self._is_chunked
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n" if self._is_chunked else b"\r\n")
        self._head = b"".join(lines)
        self.response_started, self._expects_continue = True, False
        self._loop.call_soon(self._flush)

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        parts = [self._head] if self._head else []
        self._head = b""
        if self._is_chunked:
            parts += (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
            parts += (b"0\r\n\r\n",) if is_last else ()
        elif body:
            parts.append(body)
        if self._left_bytes >= 0:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (is_last and self._left_bytes):
                raise RuntimeError(f"the body differs from its content-length by {-self._left_bytes} bytes")
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif parts:
            self._transport.writelines(parts)
        if is_last:
            self.response_complete = True
            self._wakes.set()
            if not self.keep_alive:
                self._transport.close()
            self._answered()

    def _flush(self) -> None:
        """Send a head that waits for its body, unless the connection was lost."""
        head, self._head = self._head, b""
        if head and not (self.disconnected or self._transport.is_closing()):
            self._transport.write(head)

    def _close(self) -> None:
        self._flush()
        self._transport.close()


def _nothing() -> None:
    """Do nothing: the application of a response has ended."""
