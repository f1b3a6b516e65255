"""Spans of requests, for an OpenTelemetry collector, when the environment names one: else nothing of it is imported.

The standard variables `OTEL_*` say where spans go and which requests are sampled. A span never has a key.
`otlp_spans` records them; what is here belongs to the requests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Protocol

from understudy_shared.errors import SettingsError
from understudy_shared.extras import install_fix
from understudy_shared.http.direct import Exchange, Headers
from understudy_shared.trace import Trace
from understudy_shared.words import HostInfo

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
DISABLED = "OTEL_SDK_DISABLED"
HTTP_PROTOBUF = "http/protobuf"

Attributes = Mapping[str, str | int]


class Kind(Enum):
    """Whether a service answers a request or sends one."""

    SERVER = auto()
    CLIENT = auto()


class Span(Protocol):
    """A span that is recorded. `trace` is what is sent on: whoever receives it records children of this span."""

    @property
    def trace(self) -> Trace: ...

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""

    def end(self, *, error: str = "") -> None:
        """It is over; `error` names the kind of a failure. Only the first call counts."""


class Spans(Protocol):
    """Records the spans of one service."""

    def begin(
        self, method: str, route: str, kind: Kind, parent: Trace | None, attributes: Attributes, *, ago_s: float = 0.0
    ) -> Span | None:
        """A span that began so long ago, below `parent`; None when it is not sampled."""

    def close(self) -> None:
        """Send what is left, as far as that goes in a few seconds."""


class RecordedTrace(Trace):
    """The trace of a request whose span is recorded; what is sent on names that span as the parent."""

    span: Span
    spans: Spans

    @classmethod
    def of(cls, span: Span, spans: Spans) -> RecordedTrace:
        made = cls(*span.trace)
        made.span, made.spans = span, spans
        return made

    @property
    def ids(self) -> dict[str, str]:
        """The fields of a log line, by which a backend shows it beside the span."""
        return {"trace_id": self.trace_id, "span_id": self.parent_id}


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


def begin_request(spans: Spans, method: str, route: str, asked: Trace | None, store: str) -> RecordedTrace | None:
    """The trace of a request that came; None when its span is not recorded. `store` is "" where none is known."""
    span = spans.begin(method, route, Kind.SERVER, asked, {"understudy.store": store} if store else {})
    return None if span is None else RecordedTrace.of(span, spans)


def end_request(span: Span, status: int | None) -> None:
    """It was answered with a status; None when its reader left before."""
    if status is None:
        span.end(error="cancelled")
        return
    span.note({"http.response.status_code": status})
    span.end(error=str(status) if status >= 500 else "")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether spans are exported. Raises SettingsError for a protocol that is not spoken here."""
    if not _first(ENDPOINTS, environment) or environment.get(DISABLED, "").strip().lower() == "true":
        return False
    protocol = _first(PROTOCOLS, environment)
    if protocol not in {"", HTTP_PROTOBUF}:
        raise SettingsError(
            f"spans are exported by {HTTP_PROTOBUF}, not by {protocol}",
            where=PROTOCOLS[1],
            fix="Leave it out, and let the endpoint be that of OTLP over HTTP, such as http://collector:4318",
        )
    return True


def require_exporter() -> None:
    """Refuse to start where spans are wanted and the packages are not there. Raises SettingsError."""
    if is_wanted(os.environ):
        _exporter()


def open_spans(service: str, host: HostInfo) -> Spans | None:
    """Where a service records its spans; None when no endpoint is set. Raises SettingsError as `require_exporter`, and
    for a variable that is wrong.
    """
    if not is_wanted(os.environ):
        return None
    try:
        return _exporter()(service, host)
    except ValueError as error:
        raise SettingsError(f"spans cannot be exported: {error}", where="OTEL_*", fix="Correct the variable") from None


async def close_spans(spans: Spans | None) -> None:
    """Send what is left, without holding the event loop."""
    if spans is not None:
        await asyncio.to_thread(spans.close)


def _exporter() -> Callable[[str, HostInfo], Spans]:
    try:
        from understudy_shared.otlp_spans import exported_spans  # noqa: PLC0415  # only where it is wanted
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"spans are to be exported, and {error.name} is not installed",
            where=next(name for name in ENDPOINTS if os.environ.get(name)),
            fix=f"{install_fix('otel')}; or unset the variable",
        ) from None
    return exported_spans


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """The first of these variables that says something."""
    return next((text for name in names if (text := environment.get(name, "").strip())), "")
