"""The W3C trace context of a request, and the spans of requests. A span never has a key.

Without an exporter, services pass a context on unchanged, so the client's span stays the parent. A header that is
malformed, or sent twice, is ignored: a request never fails because of its trace. `otlp_spans` records spans;
`span_export` decides whether they are recorded at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

HEADER = b"traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,256})?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Trace(NamedTuple):
    """The trace of a request, and the span of its sender."""

    trace_id: str
    parent_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header to send on, in version 00."""
        return f"00-{self.trace_id}-{self.parent_id}-{'01' if self.is_sampled else '00'}"

    @property
    def ids(self) -> dict[str, str]:
        return {"trace_id": self.trace_id, "parent_id": self.parent_id}


def parse_traceparent(value: str) -> Trace | None:
    """Parse the context in a header; None when it is malformed. A later version may have more fields at the end."""
    found = _FORM.fullmatch(value)
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return None
    return Trace(trace_id, parent_id, bool(int(flags, 16) & 1))


def is_traced(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has such a header, well-formed or not. Names are in lower case."""
    return any(name == HEADER for name, _ in headers)


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Return the context of a request, if it has one. Names are in lower case."""
    values = [value for name, value in headers if name == HEADER]
    return parse_traceparent(values[0].decode("latin-1").strip()) if len(values) == 1 else None


def ids_of(trace: Trace | None) -> dict[str, str]:
    """Return the ids of a trace as fields for a log line; empty without a trace."""
    return {} if trace is None else trace.ids


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
        """Send the remaining spans, within a few seconds."""


class RecordedTrace(Trace):
    """The trace of a request whose span is recorded. Requests to other services name that span as their parent."""

    span: Span
    spans: Spans

    @classmethod
    def of(cls, span: Span, spans: Spans) -> RecordedTrace:
        made = cls(*span.trace)
        made.span, made.spans = span, spans
        return made

    @property
    def ids(self) -> dict[str, str]:
        return {"trace_id": self.trace_id, "span_id": self.parent_id}


def begin_request(spans: Spans, method: str, route: str, asked: Trace | None, store: str) -> RecordedTrace | None:
    """Begin a request's span and return its trace; None when it is not recorded. `store` may be ""."""
    span = spans.begin(method, route, Kind.SERVER, asked, {"understudy.store": store} if store else {})
    return None if span is None else RecordedTrace.of(span, spans)


def end_request(span: Span, status: int | None) -> None:
    """End the span of a request that was answered with `status`; None: its client left before the answer."""
    if status is None:
        span.end(error="cancelled")
        return
    span.note({"http.response.status_code": status})
    span.end(error=str(status) if status >= 500 else "")
