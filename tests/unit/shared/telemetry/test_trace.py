"""A `traceparent` is passed on as it came, in version 00; what is none is no trace and no error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.telemetry.spans import Trace, is_traced, parse_traceparent, trace_of

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
        "00",
        HEADER.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
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
