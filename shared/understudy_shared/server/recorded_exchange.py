"""An exchange whose request is recorded as a span."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from understudy_shared.server.direct import Exchange, Headers
from understudy_shared.telemetry.spans import RecordedTrace, end_request
from understudy_shared.telemetry.trace import Trace


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
