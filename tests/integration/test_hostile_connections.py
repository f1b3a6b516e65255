"""One connection cannot freeze or fill a service: clients that send too much, too slowly, nothing, or never read."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from tests.support.cluster.in_process import departing
from tests.support.services.raw_http import GET_LIVEZ, LIMIT_S, RawClient, resident_bytes
from tests.support.spark.queries import wait_until as wait_long

from understudy_shared.http.connection_guard import ConnectionGuard
from understudy_shared.http.connection_limits import (
    MAX_HEADER_BYTES,
    MAX_REQUEST_TARGET_BYTES,
    ConnectionLimits,
    Pressure,
    Refusal,
)
from understudy_shared.http.edge import Receive, Scope, Send, read_body, send_reply
from understudy_shared.http.problems import ProblemError
from understudy_shared.http.service import Departure

LIMITS = ConnectionLimits(
    header_timeout_ms=500, body_timeout_ms=500, unread_timeout_ms=500, first_request_timeout_ms=500
)
PATIENT = ConnectionLimits()
LARGE_BYTES = 4 << 20
MIB = 1 << 20


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    wait_long(condition, what=what, limit_s=LIMIT_S)


class Echo:
    """An application that says what it was asked, in the order of its answers. `/slow` waits for `go`.

    After `/turns`, `asked_per_turn` counts each path within one turn of the event loop.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.asked_per_turn: Counter[tuple[str, int]] = Counter()
        self.turn = 0
        self.at_once = 0
        self.go = False
        self.ended = False

    def count_turns(self) -> None:
        self.turn += 1
        if not self.ended:
            asyncio.get_running_loop().call_soon(self.count_turns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.asked.append(scope["path"])
        self.asked_per_turn[scope["path"], self.turn] += 1
        self.at_once += 1
        if scope["path"] == "/turns":
            self.count_turns()
        try:
            while scope["path"].startswith("/slow") and not self.go:  # noqa: ASYNC110  # set from another thread
                await asyncio.sleep(0.005)
            body = await read_body(receive) if scope["method"] == "POST" else b""
        except ProblemError:  # the client left
            return
        finally:
            self.at_once -= 1
        size = {"/large": LARGE_BYTES, "/livez": 4096}.get(scope["path"], 0)
        text = f"{scope['method']} {scope['path']} {len(body)}".encode().ljust(size)
        await send_reply(send, 200, text, b"text/plain")


class Serving:
    def __init__(self, port: int, app: Echo, guard: ConnectionGuard) -> None:
        self.port, self.app, self.guard = port, app, guard

    def refused(self, reason: Refusal) -> int:
        return self.guard.refused[reason]


@contextmanager
def serving(limits: ConnectionLimits = PATIENT) -> Iterator[Serving]:
    """A service in this process, as the commands run it."""

    async def announce() -> None: ...

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app, guard = Echo(), ConnectionGuard(limits)
    with departing(app, listener, Departure(announce, 0), guard):
        yield Serving(listener.getsockname()[1], app, guard)
        app.go = app.ended = True


def get(path: str, headers: bytes = b"") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n".encode() + headers + b"\r\n"


def problem(reply: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Status and type; fails when it is no problem, or the connection is to stay."""
    status, headers, body = reply
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    return status, json.loads(body)["type"]


def wait_for_peers(service: Serving, count: int) -> None:
    wait_until(lambda: len(service.guard.connections) == count, what=f"{count} connections")


# ---- HTTP as before


def test_pipelined_requests_are_answered_in_order_however_their_bytes_are_cut() -> None:
    post = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    chunked = b"POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    head = b"HEAD /head HTTP/1.1\r\nhost: x\r\n\r\n"
    sent = get("/one") + post + get("/two") + chunked + head.replace(b"HEAD", b"GET") + get("/last")
    expected = [b"GET /one 0", b"POST /body 5", b"GET /two 0", b"POST /chunks 5", b"GET /head 0", b"GET /last 0"]
    with serving() as service:
        for size in (len(sent), 1, 7, 40, 101):
            with RawClient(service.port) as client:
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for start in range(0, len(sent), size):
                    client.send(sent[start : start + size])
                assert [client.reply()[2] for _ in expected] == expected, size


def test_a_client_that_expects_continue_gets_it_and_an_upgrade_is_answered_in_http() -> None:
    with serving() as service, RawClient(service.port) as client:
        client.send(b"POST /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert client.reply()[0] == 100
        client.send(b"ab")
        assert client.reply()[2] == b"POST /x 2"
        client.send(get("/up", b"connection: upgrade\r\nupgrade: h2c\r\n") + get("/next"))
        assert [client.reply()[2] for _ in range(2)] == [b"GET /up 0", b"GET /next 0"]
        body = get("/inner")
        upgrade = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n" % len(body)
        client.send(get("/outer", upgrade) + body)
        assert client.reply()[1]["connection"] == "close"
        assert client.is_closed()
    assert "/inner" not in service.app.asked, "a body is never taken for a request"


def test_a_large_body_and_the_longest_target_are_taken_as_before() -> None:
    with serving() as service, RawClient(service.port) as client:
        body = b"x" * 6_000_000
        client.send(b"POST /b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body + get("/after"))
        assert [client.reply()[2] for _ in range(2)] == [b"POST /b 6000000", b"GET /after 0"]
        target = "/" + "p" * 16_383 + "?" + "q" * 16_384
        client.send(get(target, b"x-long: %b\r\n" % (b"v" * 15_000)))
        assert client.reply()[0] == 200


# ---- pipelines and unread answers


def test_pipelines_whose_answers_nobody_reads_take_no_memory_and_are_closed() -> None:
    with serving(replace(PATIENT, unread_timeout_ms=500)) as service, ExitStack() as clients:
        before = resident_bytes()
        flood = GET_LIVEZ * (12 * MIB // len(GET_LIVEZ))
        attackers = [clients.enter_context(RawClient(service.port, receive_buffer_bytes=4096)) for _ in range(3)]
        for client in attackers:
            client.push(flood)
        with RawClient(service.port) as reader:
            reader.send(get("/reader"))
            assert reader.reply()[0] == 200
        assert resident_bytes() - before - len(flood) < 32 * MIB
        wait_until(lambda: service.refused(Refusal.UNREAD) == 3, what="their end")


def test_a_request_is_not_begun_before_the_answers_before_it_are_sent() -> None:
    with serving() as service, RawClient(service.port) as client:
        client.send(b"".join(get(f"/slow/{number}") for number in range(500)))
        wait_until(lambda: service.app.at_once == 1, what="the first")
        (connection,) = service.guard.connections
        assert not connection.pipeline, "what waits is bytes, not requests"  # type: ignore[attr-defined]
        service.app.go = True
        assert [client.reply()[2] for _ in range(500)] == [b"GET /slow/%d 0" % number for number in range(500)]


def test_pipelines_together_start_one_request_in_a_turn_of_the_loop() -> None:
    clients, requests = 20, 100
    with serving() as service, ExitStack() as stack:
        pipelines = [stack.enter_context(RawClient(service.port)) for _ in range(clients)]
        pipelines[0].send(get("/turns"))
        assert pipelines[0].reply()[0] == 200
        for pipeline in pipelines:
            pipeline.send(get("/slow") + get("/next") * requests)
        wait_until(lambda: service.app.at_once == clients, what="the first request of each")
        service.app.go = True
        for pipeline in pipelines:
            assert [pipeline.reply()[2] for _ in range(requests + 1)][1:] == [b"GET /next 0"] * requests
    assert {count for (path, _), count in service.app.asked_per_turn.items() if path == "/next"} == {1}


def test_a_client_that_reads_late_gets_every_answer() -> None:
    with serving() as service, RawClient(service.port, receive_buffer_bytes=4096) as client:
        client.send(get("/large") * 3 + get("/last"))
        wait_until(lambda: len(service.app.asked) >= 1, what="the first answer")
        assert [len(client.reply()[2]) for _ in range(4)] == [LARGE_BYTES] * 3 + [len("GET /last 0")]


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
        assert service.refused(Refusal.HEADER_SIZE) == 1
        wait_for_peers(service, 0)


@pytest.mark.parametrize(
    ("sent", "status", "type_", "reason"),
    [
        (get("/x", b"x-long: %b\r\n" % (b"v" * MAX_HEADER_BYTES)), 431, "headers-too-large", Refusal.HEADER_SIZE),
        (get("/x", b"a: b\r\n" * (MAX_HEADER_BYTES // 5)), 431, "headers-too-large", Refusal.HEADER_SIZE),
        (get("/" + "x" * MAX_REQUEST_TARGET_BYTES), 414, "target-too-long", Refusal.TARGET_SIZE),
        (b"\x16\x03\x01 this is TLS", 400, "bad-request", Refusal.MALFORMED),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", 400, "bad-request", Refusal.MALFORMED),
    ],
    ids=["one header", "many headers", "target", "no HTTP", "no URL"],
)
def test_what_is_too_large_or_no_http_is_refused_with_a_problem(
    sent: bytes, status: int, type_: str, reason: Refusal
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
        (b"", Refusal.SILENT),
        (b"\r\n", Refusal.SILENT),
        (b"G", Refusal.HEADER_TIME),
        (b"GET /x HTTP/1.1\r\nhost: x\r\n", Refusal.HEADER_TIME),
        (b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n12345678", Refusal.BODY_TIME),
    ],
    ids=["nothing", "an empty line", "a byte", "half a head", "most of a body"],
)
def test_who_does_not_finish_a_request_is_closed(sent: bytes, reason: Refusal) -> None:
    with serving(LIMITS) as service, RawClient(service.port) as client:
        client.send(sent)
        if reason is not Refusal.SILENT:
            assert problem(client.reply()) == (408, "request-timeout")
        assert client.is_closed()
        wait_until(lambda: service.app.at_once == 0 and service.refused(reason) == 1, what="the end of its request")


def test_a_body_that_trickles_is_given_up_though_a_byte_comes_in_time() -> None:
    with serving(LIMITS) as service, RawClient(service.port) as client:
        client.send(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        until_s = time.monotonic() + LIMIT_S
        while not service.refused(Refusal.BODY_TIME) and time.monotonic() < until_s:
            client.push(b"x")
            time.sleep(0.05)
        assert service.refused(Refusal.BODY_TIME) == 1


def test_an_idle_connection_that_asked_before_is_kept_beyond_the_time_for_a_first_request() -> None:
    with serving(LIMITS) as service, RawClient(service.port) as kept, RawClient(service.port) as silent:
        kept.send(get("/one"))
        assert kept.reply()[0] == 200
        assert silent.is_closed()
        kept.send(get("/two"))
        assert kept.reply()[2] == b"GET /two 0"


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
        assert service.refused(Refusal.CONNECTIONS) > 0


def test_when_all_connections_are_busy_only_probes_and_internal_paths_get_in() -> None:
    limits = replace(PATIENT, max_connections=4, reserved_connections=3)
    with serving(limits) as service, ExitStack() as clients:
        busy = [clients.enter_context(RawClient(service.port)) for _ in range(4)]
        for client in busy:
            client.send(get("/slow"))
        wait_until(lambda: service.app.at_once == 4, what="four requests")
        reader = clients.enter_context(RawClient(service.port))
        reader.send(get("/v1/stores"))
        reply = reader.reply()
        assert problem(reply) == (429, "overloaded")
        assert reply[1]["retry-after"] == "1"
        assert reader.is_closed()
        for path in ("/readyz", "/internal/v1/lookup"):
            with RawClient(service.port) as client:
                client.send(get(path))
                assert client.reply()[0] == 200
        service.app.go = True
        assert [client.reply()[0] for client in busy] == [200] * 4


def test_a_peer_is_logged_once_a_minute_with_its_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving() as service:
        for _ in range(5):
            with RawClient(service.port) as client:
                client.send(b"nonsense\r\n\r\n")
                assert client.reply()[0] == 400
    lines = [record for record in caplog.records if getattr(record, "action", "") == "connection-refused"]
    assert [record.__dict__["peer"] for record in lines] == ["127.0.0.1"]
    assert service.refused(Refusal.MALFORMED) == 5


# ---- memory


def test_short_memory_closes_idle_connections_then_refuses_requests_but_not_probes() -> None:
    limits = replace(PATIENT, memory_limit_bytes=1 << 40)
    with serving(limits) as service, RawClient(service.port) as idle, RawClient(service.port) as busy:
        idle.send(get("/one"))
        assert idle.reply()[0] == 200
        busy.send(get("/slow"))
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
            client.send(get("/v1/stores"))
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
from understudy_shared.http.service import BACKLOG, bound_socket, run

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
