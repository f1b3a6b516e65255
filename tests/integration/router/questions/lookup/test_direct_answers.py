"""Requests that are answered without ASGI: which ones, and what becomes of their connections."""

from __future__ import annotations

import pytest
from tests.support.services.echo_service import (
    DIRECT,
    DIRECT_POST,
    MAX_DIRECT_BODY_BYTES,
    get,
    serving,
    wait_for_peers,
    wait_until,
)
from tests.support.services.raw_http import RawClient

A = f"{DIRECT}/a"


CLOSE = b"connection: close\r\n"


CHUNKED_HOP = (
    f"POST {DIRECT_POST} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n0\r\n\r\n"
)


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
