"""Trace contexts of requests, and when spans are exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.principals import UNGUARDED
from understudy_shared.questions.front import RecordedExchange
from understudy_shared.telemetry.span_export import DISABLED, ENDPOINTS, PROTOCOLS, is_wanted
from understudy_shared.telemetry.spans import (
    Attributes,
    RecordedTrace,
    Trace,
    begin_request,
    is_traced,
    parse_traceparent,
    trace_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"

traces = st.builds(
    Trace,
    st.text("0123456789abcdef", min_size=32, max_size=32).filter(lambda text: text.strip("0")),
    st.text("0123456789abcdef", min_size=16, max_size=16).filter(lambda text: text.strip("0")),
    st.booleans(),
)


@given(trace=traces)
def test_a_trace_comes_back_from_its_header(trace: Trace) -> None:
    assert parse_traceparent(trace.traceparent) == trace


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (HEADER, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_flags_and_later_versions_are_read(header: str, is_sampled: bool) -> None:
    assert parse_traceparent(header) == Trace(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        HEADER.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"{HEADER}\n",
    ],
)
def test_what_is_malformed_is_no_trace(header: str) -> None:
    assert parse_traceparent(header) is None


def test_a_request_has_the_trace_of_its_header_and_none_when_there_are_two() -> None:
    headers = [(b"host", b"a"), (b"traceparent", HEADER.encode())]
    assert trace_of(headers) == Trace(TRACE, SPAN, True)
    assert trace_of([*headers, (b"traceparent", HEADER.encode())]) is None
    assert trace_of([(b"host", b"a")]) is None
    assert [is_traced(headers), is_traced(headers[:1]), is_traced([(b"traceparent", b"?")])] == [True, False, True]


ASKED = Trace("a" * 32, "b" * 16, True)
OWN = Trace("a" * 32, "c" * 16, True)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({ENDPOINTS[0]: ""}, False),
        ({ENDPOINTS[1]: " "}, False),
        ({ENDPOINTS[0]: "http://c/v1/traces"}, True),
        ({ENDPOINTS[1]: "http://c"}, True),
        ({ENDPOINTS[1]: "http://c", DISABLED: "true"}, False),
        ({ENDPOINTS[1]: "http://c", DISABLED: "false"}, True),
        ({ENDPOINTS[1]: "http://c", PROTOCOLS[1]: "http/protobuf"}, True),
        ({ENDPOINTS[1]: "http://c", PROTOCOLS[0]: "http/protobuf", PROTOCOLS[1]: "grpc"}, True),
        ({PROTOCOLS[1]: "grpc"}, False),
    ],
)
def test_spans_are_exported_when_an_endpoint_is_set(environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted


class OneSpan:
    """A span, and where it is recorded; it counts what is done with it."""

    trace = OWN

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.errors: list[str] = []

    def note(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def end(self, *, error: str = "") -> None:
        self.errors.append(error)

    def begin(self, *_: object, **__: object) -> OneSpan:
        return self

    def close(self) -> None:
        """Nothing is left."""


class OneExchange:
    trace: Trace | None = ASKED
    authorization = UNGUARDED

    def __init__(self) -> None:
        self.replies: list[int] = []
        self.leave: Callable[[], None] = lambda: None

    def reply(self, status: int, content_type: bytes, body: bytes, headers: object = (), /) -> None:
        self.replies.append(status)

    def when_left(self, callback: Callable[[], None], /) -> None:
        self.leave = callback

    def forget(self) -> None:
        self.leave = lambda: None


def recorded() -> tuple[OneSpan, OneExchange, RecordedExchange]:
    span, inner = OneSpan(), OneExchange()
    trace = begin_request(span, "GET", "/", inner.trace, "")
    assert isinstance(trace, RecordedTrace)
    return span, inner, RecordedExchange(inner, trace)


@given(status=st.integers(100, 599))
def test_the_reply_ends_the_span_with_its_status_and_only_a_fault_of_ours_is_an_error(status: int) -> None:
    span, inner, exchange = recorded()
    exchange.reply(status, b"text/plain", b"")
    assert inner.replies == [status]
    assert span.attributes == {"http.response.status_code": status}
    assert span.errors == [str(status) if status >= 500 else ""]
