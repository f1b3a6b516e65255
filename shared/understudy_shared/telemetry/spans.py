"""Spans of requests, as an OpenTelemetry collector shows them. A span never has a key.

`otlp_spans` records them; `span_export` decides whether they are recorded at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Protocol

from understudy_shared.telemetry.trace import Trace

Attributes = Mapping[str, str | int]


class Kind(Enum):
    """Whether a service answers a request or sends one."""

    SERVER = auto()
    CLIENT = auto()


class Span(Protocol):
    """A span that is recorded. `trace` is sent on with requests: their receivers record children of this span."""

    @property
    def trace(self) -> Trace: ...

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""

    def end(self, *, error: str = "") -> None:
        """End the span; `error` names the kind of a failure. Only the first call counts."""


class Spans(Protocol):
    """The recorder of one service's spans."""

    def begin(
        self, method: str, route: str, kind: Kind, parent: Trace | None, attributes: Attributes, *, ago_s: float = 0.0
    ) -> Span | None:
        """Begin a span that started `ago_s` earlier, below `parent`; None when it is not sampled."""

    def close(self) -> None:
        """Send what is left, within a few seconds."""


class RecordedTrace(Trace):
    """The trace of a request whose span is recorded; requests that are sent on name that span as the parent."""

    span: Span
    spans: Spans

    @classmethod
    def of(cls, span: Span, spans: Spans) -> RecordedTrace:
        made = cls(*span.trace)
        made.span, made.spans = span, spans
        return made

    @property
    def ids(self) -> dict[str, str]:
        """Fields of a log line by which a backend shows it beside the span."""
        return {"trace_id": self.trace_id, "span_id": self.parent_id}


def begin_request(spans: Spans, method: str, route: str, asked: Trace | None, store: str) -> RecordedTrace | None:
    """Begin a request's span and return its trace; None when it is not recorded. `store` may be ""."""
    span = spans.begin(method, route, Kind.SERVER, asked, {"understudy.store": store} if store else {})
    return None if span is None else RecordedTrace.of(span, spans)


def end_request(span: Span, status: int | None) -> None:
    """End the span of a request that was answered with `status`; None when its reader left before."""
    if status is None:
        span.end(error="cancelled")
        return
    span.note({"http.response.status_code": status})
    span.end(error=str(status) if status >= 500 else "")
