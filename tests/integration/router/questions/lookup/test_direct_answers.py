"""Requests that are answered without ASGI: which ones, and what becomes of their connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.services.echo_service import (
    DIRECT,
    DIRECT_POST,
    MAX_DIRECT_BODY_BYTES,
    Serving,
    get,
    serving,
    wait_for_peers,
    wait_until,
)
from tests.support.services.raw_http import RawClient

from understudy_shared.server.protocol import HttpProtocol

A = f"{DIRECT}/a"


CLOSE = b"connection: close\r\n"


CHUNKED_HOP = (
    f"POST {DIRECT_POST} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n0\r\n\r\n"
)


def is_held_back(connection: object) -> bool:
    """Whether a request waits for the answer to the one before it."""
    return isinstance(connection, HttpProtocol) and bool(connection.flow.held)


def post(path: str, body: bytes, headers: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + headers + b"\r\n" + body


@pytest.mark.parametrize(
    ("sent", "direct"),
    [
        (get(A), True),
        (get(A + "?max_lag=1"), True),
        (get(A, b"accept: */*\r\ntraceparent: 00-1-2-3\r\n"), True),
        (get("/v1/stores"), False),
        (get("/v1/stores/e/metadata"), False),
        (get(A).replace(b"GET", b"HEAD"), False),
        (get(A).replace(b"GET", b"DELETE"), False),
        (get(A, b"content-length: 0\r\n"), False),
        (get(A, b"transfer-encoding: chunked\r\n") + b"0\r\n\r\n", False),
        (get(A, b"connection: upgrade\r\nupgrade: h2c\r\n"), False),
        (get(A).replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (post(A, b"xy"), False),
        (post(DIRECT_POST, b"x" * MAX_DIRECT_BODY_BYTES), True),
        (post(DIRECT_POST, b"x" * (MAX_DIRECT_BODY_BYTES + 1)), False),
        (post(DIRECT_POST, b""), False),
        (post("/internal/other", b"x"), False),
        (CHUNKED_HOP, False),
    ],
    ids=[
        "a lookup", "with a query", "with headers", "a list", "another call", "HEAD", "DELETE", "an empty body",
        "a chunked body", "an upgrade", "HTTP/1.0", "a batch", "a hop", "a large hop", "an empty hop", "another post",
        "a chunked hop",
    ],
)  # fmt: skip
def test_what_is_answered_directly_and_what_by_asgi(sent: bytes, direct: bool) -> None:
    with serving() as service, RawClient(service.port) as client:
        client.send(sent)
        wait_until(lambda: len(service.app.asked) == 1, what="the request")
        wait_until(lambda: service.app.at_once == 0, what="the answer")
        assert bool(service.app.direct) is direct


def test_a_reader_who_asks_for_the_end_of_the_connection_gets_it_after_the_answer() -> None:
    with serving() as service:
        for path in (A, f"{DIRECT}/slow"):
            with RawClient(service.port) as client:
                client.send(get(path, CLOSE) + get("/never"))
                service.app.go = True
                _, headers, body = client.reply()
                assert (headers["connection"], body) == ("close", f"GET {path} 0".encode())
                assert client.is_closed()
        assert "/never" not in service.app.asked


def test_the_answer_to_a_reader_who_left_goes_nowhere_and_the_application_learns_it() -> None:
    with serving() as service:
        with RawClient(service.port) as client:
            client.send(get(f"{DIRECT}/slow"))
            wait_until(lambda: service.app.at_once == 1, what="the request")
            assert service.app.left == 0
        wait_until(lambda: service.app.left == 1, what="its reader's end")
        wait_for_peers(service, 0)
        service.app.go = True
        wait_until(lambda: service.app.at_once == 0, what="the late answer")
        with RawClient(service.port) as client:
            client.send(get(A))
            assert client.reply()[2] == f"GET {A} 0".encode()


def test_a_service_that_departs_finishes_what_is_in_flight_and_sends_the_client_elsewhere() -> None:
    with serving() as service, RawClient(service.port) as busy, RawClient(service.port) as idle:
        idle.send(get(A))
        assert "connection" not in idle.reply()[1]
        busy.send(get(f"{DIRECT}/slow"))
        wait_until(lambda: service.app.at_once == 1, what="the request")
        service.service.should_exit = True
        assert idle.is_closed()
        service.app.go = True
        status, headers, body = busy.reply()
        assert (status, headers["connection"], body) == (200, "close", f"GET {DIRECT}/slow 0".encode())
        assert busy.is_closed()


def test_a_request_that_waits_behind_a_lookup_is_never_taken_for_that_lookup_again() -> None:
    later = get(f"{DIRECT}/b")
    with serving() as service:
        with RawClient(service.port) as client:
            client.send(get(f"{DIRECT}/slow"))
            wait_until(lambda: service.app.at_once == 1, what="the request")
            client.send(later)
            wait_until(lambda: any(map(is_held_back, service.guard.connections)), what="the second request")
            service.app.go = True
            assert client.reply()[2] == f"GET {DIRECT}/slow 0".encode()
            assert client.reply()[2] == f"GET {DIRECT}/b 0".encode()
        with RawClient(service.port) as client:
            client.send(later)
            assert client.reply()[2] == f"GET {DIRECT}/b 0".encode()


CHUNKED = b"POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
LONG = post(DIRECT_POST, b"y" * 5000)
EXCHANGES = {
    get(A): f"GET {A} 0",
    get(f"{DIRECT}/b?max_lag=1"): f"GET {DIRECT}/b 0",
    get(A, b"content-length: 0\r\n"): f"GET {A} 0",
    get("/plain"): "GET /plain 0",
    post("/body", b"GET / HTTP/1.1\r\n\r\n"): "POST /body 18",
    post(DIRECT_POST, b"GET / HTTP/1.1\r\n\r\n"): f"POST {DIRECT_POST} 18",
    LONG: f"POST {DIRECT_POST} 5000",
    CHUNKED: "POST /chunks 3",
}
"""Requests, and what is answered to each."""


@pytest.fixture(scope="module")
def service() -> Iterator[Serving]:
    with serving() as running:
        yield running


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(st.sampled_from(list(EXCHANGES)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=20),
    replies_between=st.booleans(),
)
def test_whatever_follows_what_and_however_it_is_cut_each_request_gets_its_own_answer_in_order(
    service: Serving, requests: list[bytes], cuts: list[int], replies_between: bool
) -> None:
    expected = [EXCHANGES[request].encode() for request in requests]
    with RawClient(service.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if replies_between:
            for request, answer in zip(requests, expected, strict=True):
                client.send(request)
                assert client.reply()[2] == answer
            return
        sent = b"".join(requests)
        for size in cuts:
            client.send(sent[:size])
            sent = sent[size:]
        client.send(sent)
        assert [client.reply()[2] for _ in requests] == expected
