"""When spans are exported, and that a span of a request ends once, however the request ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.principals import UNGUARDED
from understudy_shared.questions.front import RecordedExchange
from understudy_shared.telemetry.span_export import DISABLED, ENDPOINTS, PROTOCOLS, is_wanted
from understudy_shared.telemetry.spans import Attributes, RecordedTrace, Trace, begin_request

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
    """A request that a test answers, or leaves."""

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


def test_what_is_sent_on_names_the_services_own_span_and_so_does_the_log() -> None:
    _, _, exchange = recorded()
    assert isinstance(exchange.trace, RecordedTrace)
    assert exchange.trace == OWN
    assert exchange.trace.traceparent == OWN.traceparent
    assert exchange.trace.ids == {"trace_id": "a" * 32, "span_id": "c" * 16}
