"""A service in this process that says what it was asked: what tests of connections talk to.

It answers some requests directly and the rest by ASGI, with the same text, so that a test can hold one way against the
other.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.cluster.in_process import departing
from tests.support.services.lifespan import lifespan
from tests.support.services.raw_http import LIMIT_S
from tests.support.spark.queries import wait_until as wait_long

from understudy_shared.auth.access import Access
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.http.edge import Receive, Scope, Send, read_body, send_reply
from understudy_shared.http.problems import ProblemError
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import ConnectionLimits, ConnectionRefusal
from understudy_shared.server.direct import Exchange
from understudy_shared.server.service import Departure, Service
from understudy_shared.tls.service_tls import ServiceTls

PATIENT = ConnectionLimits()
LARGE_BYTES = 4 << 20
DIRECT = "/v1/stores/e/keys"
"""GETs of paths that begin so are answered directly."""

DIRECT_POST = "/internal/echo"
MAX_DIRECT_BODY_BYTES = 10_000

TEXT_TYPE = b"text/plain"


def wait_until(condition: Callable[[], bool], *, what: str) -> None:
    wait_long(condition, what=what, limit_s=LIMIT_S)


class Echo:
    """An application that says what it was asked, in the order of its answers. Paths with `/slow` wait for `go`.

    `direct` holds what did not come by ASGI. After `/turns`, `asked_per_turn` counts each path within one turn of the
    event loop. `left` counts readers who left before their direct answer.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.direct: list[str] = []
        self.asked_per_turn: Counter[tuple[str, int]] = Counter()
        self.turn = 0
        self.at_once = 0
        self.left = 0
        self.go = False
        self.ended = False
        self.access = Access()
        self._tasks: set[asyncio.Task[None]] = set()

    def count_turns(self) -> None:
        self.turn += 1
        if not self.ended:
            asyncio.get_running_loop().call_soon(self.count_turns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        path: str = scope["path"]
        self._begin(path)
        if path == "/turns":
            self.count_turns()
        try:
            await self._wait(path)
            body = await read_body(receive) if scope["method"] == "POST" else b""
        except ProblemError:  # the client left
            return
        finally:
            self.at_once -= 1
        await send_reply(send, 200, _text(scope["method"], path, len(body)), TEXT_TYPE)

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        path = target.partition(b"?")[0].decode()
        if not path.startswith(DIRECT):
            return False
        self._begin(path)
        self.direct.append(path)
        if "/slow" in path:
            exchange.when_left(self._reader_left)
            task = asyncio.get_running_loop().create_task(self._answer_later(path, exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return True
        self.at_once -= 1
        for _ in range(2):  # the second one is dropped
            exchange.reply(200, TEXT_TYPE, _text("GET", path, 0))
        return True

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return target == DIRECT_POST.encode() and size_bytes <= MAX_DIRECT_BODY_BYTES

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        self.asked.append(DIRECT_POST)
        self.direct.append(DIRECT_POST)
        exchange.reply(200, TEXT_TYPE, _text("POST", DIRECT_POST, len(body)))

    async def _answer_later(self, path: str, exchange: Exchange) -> None:
        await self._wait(path)
        self.at_once -= 1
        exchange.reply(200, TEXT_TYPE, _text("GET", path, 0))

    def _begin(self, path: str) -> None:
        self.asked.append(path)
        self.asked_per_turn[path, self.turn] += 1
        self.at_once += 1

    async def _wait(self, path: str) -> None:
        while "/slow" in path and not self.go:  # noqa: ASYNC110  # set from another thread
            await asyncio.sleep(0.005)

    def _reader_left(self) -> None:
        self.left += 1


def _text(method: str, path: str, body_bytes: int) -> bytes:
    size = LARGE_BYTES if path.endswith("/large") else 4096 if path == "/livez" else 0
    return f"{method} {path} {body_bytes}".encode().ljust(size)


class Serving:
    """The service's port, its application and what guards its connections."""

    def __init__(self, port: int, app: Echo, guard: ConnectionGuard, service: Service) -> None:
        self.port, self.app, self.guard, self.service = port, app, guard, service

    def refused(self, reason: ConnectionRefusal) -> int:
        return self.guard.refused[reason]


@contextmanager
def serving(
    limits: ConnectionLimits = PATIENT, tls: ServiceTls | None = None, *, root_path: str = ""
) -> Iterator[Serving]:
    """A service in this process, as the commands run it; by TLS where there are certificates."""

    async def announce() -> None: ...

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app, guard = Echo(), ConnectionGuard(limits)
    app.access = Access(identity=ClusterIdentity(None, "", tls), root_path=root_path)
    with departing(app, listener, Departure(announce, 0), guard) as service:
        yield Serving(listener.getsockname()[1], app, guard, service)
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
