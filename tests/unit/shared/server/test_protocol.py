"""Requests over connections that share what was parsed: each gets its own answer, in order, however its bytes come."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.http.edge import Receive, Scope, Send
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.direct import Exchange
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache
from understudy_shared.server.protocol import HttpProtocol, ParsedHead

HOP = "/internal/hop"
A, B = (f"GET /v1/stores/s/keys/{key} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for key in "ab")
C, D = (
    f"POST {HOP} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{body}".encode() for body in ("ccccc", "\r\n\r\nd")
)
EMPTY, TWO_EMPTY = b"\r\n", b"\r\n\r\n"
ANSWERS = {A: [b"a"], B: [b"b"], C: [b"ccccc"], D: [b"\r\n\r\nd"], EMPTY: [], TWO_EMPTY: []}
CONNECTIONS, REPLY = 2, -1


class Later:
    """Answers a request when the test says so: with the key of a lookup, or with the body of a post."""

    def __init__(self) -> None:
        self.open: list[tuple[Exchange, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it came by ASGI")

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        self.open.append((exchange, target[-1:]))
        return True

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return target == HOP.encode()

    def answer_body(self, body: bytes, exchange: Exchange) -> None:
        self.open.append((exchange, body))

    def reply_once(self) -> None:
        if self.open:
            exchange, text = self.open.pop(0)
            exchange.reply(200, b"text/plain", text)


class Written(asyncio.Transport):
    """Keeps the body of each response."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    def write(self, data: Any) -> None:
        self.bodies.append(bytes(data).partition(b"\r\n\r\n")[2])

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


sends = st.tuples(st.integers(0, CONNECTIONS - 1), st.sampled_from(list(ANSWERS)), st.integers(1, 200))
replies = st.just((REPLY, b"", 1))


@settings(deadline=None)
@given(st.lists(sends | replies, max_size=30))
@example([(0, A, 200), (0, B, 200), (REPLY, b"", 1), (REPLY, b"", 1), (1, B, 200)])  # B waits while A is answered
@example([(0, A, 200), (REPLY, b"", 1), (0, TWO_EMPTY, 4), (1, TWO_EMPTY, 4)])  # an empty line follows an answer
@example([(0, C, 200), (REPLY, b"", 1), (0, D, 200), (REPLY, b"", 1), (1, D, 60)])
def test_every_request_gets_its_own_answer_in_order(steps: list[tuple[int, bytes, int]]) -> None:
    asyncio.run(exchange_all(steps))


async def exchange_all(steps: list[tuple[int, bytes, int]]) -> None:
    """Send requests over connections, cut after so many bytes; answer one where the connection is REPLY."""
    app, guard = Later(), ConnectionGuard()
    config = Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    heads = ParsedCache[ParsedHead](max_key_bytes=MAX_HEAD_BYTES)
    wires = [Written() for _ in range(CONNECTIONS)]
    connections = [
        HttpProtocol(config, ServerState(), {}, guard=guard, direct=app, bodies=app, heads=heads) for _ in wires
    ]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
    expected: list[list[bytes]] = [[] for _ in wires]
    for number, sent, cut in steps:
        if number == REPLY:
            app.reply_once()
        else:
            expected[number] += ANSWERS[sent]
            for part in (sent[:cut], sent[cut:]):
                if part:
                    connections[number].data_received(part)
        await asyncio.sleep(0)
    for _ in range(4 * len(steps)):
        app.reply_once()
        await asyncio.sleep(0)
    assert [wire.bodies for wire in wires] == expected
