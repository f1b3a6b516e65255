"""One connection cannot freeze or fill a service: clients that send too much, too slowly, nothing, or never read."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.support.services.echo_service import (
    DIRECT,
    DIRECT_POST,
    PATIENT,
    get,
    problem,
    serving,
    wait_for_peers,
    wait_until,
)
from tests.support.services.raw_http import GET_LIVEZ, LIMIT_S, RawClient, resident_bytes

from understudy_shared.server.connection_limits import (
    MAX_HEADER_BYTES,
    MAX_REQUEST_TARGET_BYTES,
    ConnectionLimits,
    ConnectionRefusal,
    Pressure,
)

LIMITS = ConnectionLimits(
    header_timeout_ms=500, body_timeout_ms=500, unread_timeout_ms=500, first_request_timeout_ms=500
)
MIB = 1 << 20


# ---- HTTP as before


@pytest.fixture(params=["", DIRECT], ids=["asgi", "direct"])
def at(request: pytest.FixtureRequest) -> str:
    """Where requests go: what is claimed of connections holds for both ways of answering."""
    assert isinstance(request.param, str)
    return request.param


def test_pipelined_requests_are_answered_in_order_however_their_bytes_are_cut() -> None:
    post = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    chunked = b"POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    head = b"HEAD /head HTTP/1.1\r\nhost: x\r\n\r\n"
    direct, hop = f"{DIRECT}/a", post.replace(b"/body", DIRECT_POST.encode())
    sent = get("/one") + post + get(direct) * 2 + get("/two") + hop + head.replace(b"HEAD", b"GET") + hop + get(direct)
    sent += chunked + get("/last")
    said_direct, said_hop = f"GET {direct} 0".encode(), f"POST {DIRECT_POST} 5".encode()
    expected = [b"GET /one 0", b"POST /body 5", said_direct, said_direct, b"GET /two 0", said_hop, b"GET /head 0"]
    expected += [said_hop, said_direct, b"POST /chunks 5", b"GET /last 0"]
    with serving() as service:
        for size in (len(sent), 1, 7, 40, 101):
            with RawClient(service.port) as client:
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for start in range(0, len(sent), size):
                    client.send(sent[start : start + size])
                assert [client.reply()[2] for _ in expected] == expected, size
        assert service.app.direct == [direct, direct, DIRECT_POST, DIRECT_POST, direct] * 5


# ---- pipelines and unread answers


@pytest.mark.parametrize("request_", [GET_LIVEZ, get(f"{DIRECT}/livez")], ids=["asgi", "direct"])
def test_pipelines_whose_answers_nobody_reads_take_no_memory_and_are_closed(request_: bytes) -> None:
    with serving(replace(PATIENT, unread_timeout_ms=500)) as service, ExitStack() as clients:
        before = resident_bytes()
        flood = request_ * (12 * MIB // len(request_))
        attackers = [clients.enter_context(RawClient(service.port, receive_buffer_bytes=4096)) for _ in range(3)]
        for client in attackers:
            client.push(flood)
        with RawClient(service.port) as reader:
            reader.send(get("/reader"))
            assert reader.reply()[0] == 200
        assert resident_bytes() - before - len(flood) < 32 * MIB
        wait_until(lambda: service.refused(ConnectionRefusal.UNREAD) == 3, what="their end")


def test_a_request_is_not_begun_before_the_answers_before_it_are_sent(at: str) -> None:
    with serving() as service, RawClient(service.port) as client:
        client.send(b"".join(get(f"{at}/slow/{number}") for number in range(500)))
        wait_until(lambda: service.app.at_once == 1, what="the first")
        service.app.go = True
        expected = [f"GET {at}/slow/{number} 0".encode() for number in range(500)]
        assert [client.reply()[2] for _ in range(500)] == expected


def test_pipelines_together_start_one_request_in_a_turn_of_the_loop(at: str) -> None:
    clients, requests = 20, 100
    with serving() as service, ExitStack() as stack:
        pipelines = [stack.enter_context(RawClient(service.port)) for _ in range(clients)]
        pipelines[0].send(get("/turns"))
        assert pipelines[0].reply()[0] == 200
        for pipeline in pipelines:
            pipeline.send(get(f"{at}/slow") + get(f"{at}/next") * requests)
        wait_until(lambda: service.app.at_once == clients, what="the first request of each")
        service.app.go = True
        for pipeline in pipelines:
            assert [pipeline.reply()[2] for _ in range(requests + 1)][1:] == [f"GET {at}/next 0".encode()] * requests
    assert {count for (path, _), count in service.app.asked_per_turn.items() if path == f"{at}/next"} == {1}


# ---- heads and bodies


@pytest.mark.parametrize("where", ["value", "name", "many", "trailer", "chunk extension"])
def test_a_head_without_end_is_refused_at_once_and_costs_others_nothing(where: str) -> None:
    start = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    endless = {
        "value": start + b"x-long: " + b"v" * 32 * MIB,
        "name": start + b"n" * 32 * MIB,
        "many": start + b"a: b\r\n" * (4 * MIB),
        "trailer": start + b"\r\n1\r\nx\r\n0\r\nx-trailer: " + b"v" * 32 * MIB,
        "chunk extension": start + b"\r\n1;" + b"e" * 32 * MIB,
    }[where]
    with serving() as service, RawClient(service.port) as client:
        assert client.push(endless) < len(endless)
        wait_until(lambda: service.refused(ConnectionRefusal.HEADER_SIZE) == 1, what="the refusal")
        wait_for_peers(service, 0)


@pytest.mark.parametrize(
    ("sent", "status", "type_", "reason"),
    [
        (
            get("/x", b"x-long: %b\r\n" % (b"v" * MAX_HEADER_BYTES)),
            431,
            "headers-too-large",
            ConnectionRefusal.HEADER_SIZE,
        ),
        (get("/" + "x" * MAX_REQUEST_TARGET_BYTES), 414, "target-too-long", ConnectionRefusal.TARGET_SIZE),
        (b"\x16\x03\x01 this is TLS", 400, "bad-request", ConnectionRefusal.MALFORMED),
        (b"GET http://[/ HTTP/1.1\r\nhost: x\r\n\r\n", 400, "bad-request", ConnectionRefusal.MALFORMED),
        (b"GET /x HTTP/1.1\r\n\r\n", 400, "bad-request", ConnectionRefusal.HOST),
        (b"GET /v1/stores/e/keys/a HTTP/1.1\r\n\r\n", 400, "bad-request", ConnectionRefusal.HOST),
        (
            b"POST /internal/v1/lookup HTTP/1.1\r\ncontent-length: 1\r\n\r\n1",
            400,
            "bad-request",
            ConnectionRefusal.HOST,
        ),
        (get("/x", b"Host: y\r\n"), 400, "bad-request", ConnectionRefusal.HOST),
        (get("/v1/stores/e/keys/a", b"Host: x\r\n"), 400, "bad-request", ConnectionRefusal.HOST),
        (b"GET /x HTTP/1.0\r\nhost: x\r\nhost: x\r\n\r\n", 400, "bad-request", ConnectionRefusal.HOST),
    ],
    ids=[
        "one header",
        "target",
        "no HTTP",
        "no URL",
        "no host",
        "no host of a lookup",
        "no host of a hop",
        "two hosts",
        "two hosts of a lookup",
        "two hosts in HTTP 1.0",
    ],
)
def test_what_is_too_large_or_no_http_is_refused_with_a_problem(
    sent: bytes, status: int, type_: str, reason: ConnectionRefusal
) -> None:
    with serving() as service, RawClient(service.port) as client:
        client.send(sent)
        assert problem(client.reply()) == (status, type_)
        assert client.is_closed()
        assert service.refused(reason) == 1
        assert service.app.asked == []


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", ConnectionRefusal.SILENT),
        (b"\r\n", ConnectionRefusal.SILENT),
        (b"G", ConnectionRefusal.HEADER_TIME),
        (b"GET /x HTTP/1.1\r\nhost: x\r\n", ConnectionRefusal.HEADER_TIME),
        (b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12345678", ConnectionRefusal.BODY_TIME),
        (b"POST /internal/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12345678", ConnectionRefusal.BODY_TIME),
    ],
    ids=["nothing", "an empty line", "a byte", "half a head", "most of a body", "most of a hop"],
)
def test_who_does_not_finish_a_request_is_closed(sent: bytes, reason: ConnectionRefusal) -> None:
    with serving(LIMITS) as service, RawClient(service.port) as client:
        client.send(sent)
        if reason is not ConnectionRefusal.SILENT:
            assert problem(client.reply()) == (408, "request-timeout")
        assert client.is_closed()
        wait_until(lambda: service.app.at_once == 0 and service.refused(reason) == 1, what="the end of its request")


def test_a_body_that_trickles_is_given_up_though_a_byte_comes_in_time() -> None:
    with serving(LIMITS) as service, RawClient(service.port) as client:
        client.send(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        until_s = time.monotonic() + LIMIT_S
        while not service.refused(ConnectionRefusal.BODY_TIME) and time.monotonic() < until_s:
            client.push(b"x")
            time.sleep(0.05)
        assert service.refused(ConnectionRefusal.BODY_TIME) == 1


def test_an_idle_connection_is_closed_after_the_time_that_the_setting_gives_readers(at: str) -> None:
    limits = replace(PATIENT, keep_alive_timeout_ms=200)
    with serving(limits) as service, RawClient(service.port) as reader, RawClient(service.port) as peer:
        for client, path in ((reader, f"{at}/one"), (peer, "/internal/one")):
            client.send(get(path))
            assert client.reply()[0] == 200
        assert reader.is_closed()
        peer.send(get("/internal/two"))
        assert peer.reply()[0] == 200


# ---- too many connections


def test_silent_connections_make_room_for_readers() -> None:
    with serving(replace(PATIENT, max_connections=20)) as service, ExitStack() as clients:
        reader = clients.enter_context(RawClient(service.port))
        reader.send(get("/one"))
        assert reader.reply()[0] == 200
        for _ in range(60):
            clients.enter_context(RawClient(service.port))
        newest = clients.enter_context(RawClient(service.port))
        newest.send(get("/newest"))
        assert newest.reply()[2] == b"GET /newest 0"
        reader.send(get("/two"))
        assert reader.reply()[2] == b"GET /two 0", "who has asked stays while others are silent"
        assert len(service.guard.connections) <= 20
        assert service.refused(ConnectionRefusal.CONNECTIONS) > 0


def test_when_all_connections_are_busy_only_probes_and_internal_paths_get_in(at: str) -> None:
    limits = replace(PATIENT, max_connections=4, reserved_connections=3)
    with serving(limits) as service, ExitStack() as clients:
        busy = [clients.enter_context(RawClient(service.port)) for _ in range(4)]
        busy[0].send(get(f"{at}/one"))
        assert busy[0].reply()[0] == 200
        for client in busy:
            client.send(get(f"{at}/slow"))
        wait_until(lambda: service.app.at_once == 4, what="four requests")
        reader = clients.enter_context(RawClient(service.port))
        reader.send(get(f"{at}/one"))
        reply = reader.reply()
        assert problem(reply) == (429, "overloaded")
        assert reply[1]["retry-after"] == "1"
        assert reader.is_closed()
        for path in ("/readyz", "/internal/v1/lookup"):
            with RawClient(service.port) as client:
                client.send(get(path))
                assert client.reply()[0] == 200
        with RawClient(service.port) as client:
            client.send(f"POST {DIRECT_POST} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab".encode())
            assert client.reply()[2] == f"POST {DIRECT_POST} 2".encode()
        service.app.go = True
        assert [client.reply()[0] for client in busy] == [200] * 4


# ---- memory


def test_short_memory_closes_idle_connections_then_refuses_requests_but_not_probes(at: str) -> None:
    limits = replace(PATIENT, memory_limit_bytes=1 << 40)
    with serving(limits) as service, RawClient(service.port) as idle, RawClient(service.port) as busy:
        idle.send(get(f"{at}/one"))
        assert idle.reply()[0] == 200
        busy.send(get(f"{at}/slow"))
        wait_until(lambda: service.app.at_once == 1, what="a request")
        assert service.guard.causes() == {}
        used = service.guard.used_bytes or resident_bytes()
        service.guard.limits = replace(limits, memory_limit_bytes=used // 2)
        wait_until(lambda: service.guard.pressure is Pressure.REFUSE, what="pressure")
        assert "memory is short" in str(service.guard.causes())
        assert idle.is_closed()
        service.app.go = True
        assert busy.reply()[0] == 200, "what was begun is finished"
        with RawClient(service.port) as client:
            for path in ("/livez", "/internal/v1/lookup"):
                client.send(get(path))
                assert client.reply()[0] == 200
            client.send(get(f"{at}/one"))
            assert problem(client.reply()) == (429, "overloaded")
        service.guard.limits = limits
        wait_until(lambda: service.guard.pressure is Pressure.NONE, what="relief")
        with RawClient(service.port) as client:
            client.send(get("/v1/stores"))
            assert client.reply()[0] == 200


# ---- a process with few descriptors

FEW_FILES = """
import sys
from fastapi import FastAPI
from understudy_router.settings import RouterSettings
from understudy_shared.server.service import BACKLOG, bound_socket, run

app = FastAPI()

@app.get("/livez")
async def livez() -> None: ...

listener = bound_socket("127.0.0.1", 0)
listener.listen(BACKLOG)
print(listener.getsockname()[1], flush=True)
run(app, listener, guard=RouterSettings(redis="redis://x", application_id="x").connection_guard())
"""


def test_two_hundred_silent_connections_at_a_service_with_128_descriptors_keep_nobody_out() -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))

    command = [sys.executable, "-c", FEW_FILES]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=few_files,  # noqa: PLW1509
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            port = int(process.stdout.readline())
            with ExitStack() as clients:
                for _ in range(200):
                    clients.enter_context(RawClient(port))
                for _ in range(20):
                    with RawClient(port) as reader:
                        reader.send(GET_LIVEZ)
                        assert reader.reply()[0] == 200
            process.terminate()
            assert "connection was refused" in process.stderr.read(), "somebody can read of it"
        finally:
            process.kill()
