"""Requests over connections that share what was parsed: each gets its own answer, in order, however its bytes come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.services.wire import Wire, connected

from understudy_shared.http.edge import App, Receive, Scope, Send, send_reply
from understudy_shared.server.answers import Answers
from understudy_shared.server.direct import AsgiExchange, DirectExchange, Exchange
from understudy_shared.server.protocol import HttpProtocol

HOP = "/internal/hop"
A, B = (f"GET /v1/stores/s/keys/{key} HTTP/1.1\r\nhost: x\r\n\r\n".encode() for key in "ab")
C, D = (
    f"POST {HOP} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{body}".encode() for body in ("ccccc", "\r\n\r\nd")
)
E, F = (
    f"POST /v1/stores/s/lookup{query} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{body}".encode()
    for query, body in (("", "eeeee"), ("?compact=true", "fffff"))
)
EMPTY, TWO_EMPTY = b"\r\n", b"\r\n\r\n"
ANSWERS = {
    A: [b"a"],
    B: [b"b"],
    C: [b"ccccc"],
    D: [b"\r\n\r\nd"],
    E: [b"eeeee"],
    F: [b"fffff"],
    EMPTY: [],
    TWO_EMPTY: [],
}
CONNECTIONS, REPLY = 2, -1


class Later:
    """Answers a request when the test says so: with the key of a lookup, or with the body of a post or a batch."""

    def __init__(self) -> None:
        self.open: list[tuple[Exchange, bytes]] = []

        self.by_asgi: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.by_asgi is not None, "it came by ASGI"
        await self.by_asgi(scope, receive, send)

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        self.open.append((exchange, target[-1:]))
        return True

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return target == HOP.encode()

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        self.open.append((exchange, body))

    def accepts_batch(self, target: bytes, size_bytes: int) -> bool:
        return target.startswith(b"/v1/stores/s/lookup")

    def answer_batch(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        assert body == {E: b"eeeee", F: b"fffff"}[F if target.endswith(b"=true") else E]
        self.open.append((exchange, body))

    def reply_once(self) -> None:
        if self.open:
            exchange, text = self.open.pop(0)
            exchange.reply(200, b"text/plain", text)


sends = st.tuples(st.integers(0, CONNECTIONS - 1), st.sampled_from(list(ANSWERS)), st.integers(1, 200))
replies = st.just((REPLY, b"", 1))


@settings(deadline=None)
@given(st.lists(sends | replies, max_size=30))
@example([(0, A, 200), (0, B, 200), (REPLY, b"", 1), (REPLY, b"", 1), (1, B, 200)])  # B waits while A is answered
@example([(0, A, 200), (REPLY, b"", 1), (0, TWO_EMPTY, 4), (1, TWO_EMPTY, 4)])  # an empty line follows an answer
@example([(0, C, 200), (REPLY, b"", 1), (0, D, 200), (REPLY, b"", 1), (1, D, 60)])
def test_every_request_gets_its_own_answer_in_order(steps: list[tuple[int, bytes, int]]) -> None:
    asyncio.run(exchange_all(steps))


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("first", [A, C, E])
async def test_a_read_that_ends_within_a_blank_line_lets_no_later_request_begin(first: bytes, cut: int) -> None:
    app, wires, (connection, _) = opened()
    end = first.index(TWO_EMPTY) + len(TWO_EMPTY) - cut
    connection.data_received(first[:end])
    connection.data_received(first[end:] + B)
    assert len(app.open) == 1
    for _ in range(4):
        app.reply_once()
        await asyncio.sleep(0)
    assert wires[0].bodies == [*ANSWERS[first], b"b"]


async def test_a_body_of_blank_lines_leaves_turns_of_the_loop_to_others() -> None:
    app, wires, (attacker, reader) = opened()
    head = b"POST /v1/stores/s/scan HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = TWO_EMPTY * 10_000
    app.by_asgi = never
    attacker.data_received(head)
    attacker.data_received(b"%x\r\n%b" % (len(chunk), chunk))
    before, turns = len(attacker.flow.held), 0
    assert before
    reader.data_received(A)
    app.reply_once()
    assert wires[1].bodies == [b"a"]
    while attacker.flow.held:
        await asyncio.sleep(0)
        turns += 1
        assert turns <= len(chunk)
    assert turns > 10
    attacker.connection_lost(None)


async def test_a_response_without_a_body_is_sent_when_it_ends_and_not_behind_the_next_answer() -> None:
    app, wires, (connection, _) = opened()
    sent: list[int] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, b"x", b"text/plain")
        sent.append(len(wires[0].bodies))

    app.by_asgi = answer
    connection.data_received(b"HEAD /v1/stores HTTP/1.1\r\nhost: x\r\n\r\n")
    for _ in range(4):
        await asyncio.sleep(0)
    assert sent == [1]


async def test_a_client_of_http_1_0_is_not_kept_whatever_it_asks_for() -> None:
    app, _, (old, new) = opened()
    app.by_asgi = never
    for connection, version in ((old, b"1.0"), (new, b"1.1")):
        connection.data_received(b"GET /v1/stores HTTP/%b\r\nhost: x\r\nconnection: keep-alive\r\n\r\n" % version)
    assert [each.cycle is not None and each.cycle.keep_alive for each in (old, new)] == [False, True]
    for connection in (old, new):
        connection.connection_lost(None)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


def opened() -> tuple[Later, list[Wire], list[HttpProtocol]]:
    app, wires = Later(), [Wire() for _ in range(CONNECTIONS)]
    return app, wires, connected(app, Answers(direct=app, bodies=app, batches=app), wires)


async def exchange_all(steps: list[tuple[int, bytes, int]]) -> None:
    """Send requests over connections, cut after so many bytes; answer one where the connection is REPLY."""
    app, wires, connections = opened()
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


def receive_of(gone: asyncio.Event) -> Receive:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def test_only_the_first_reply_is_sent() -> None:
    sent: list[bytes] = []
    exchange = DirectExchange(lambda _status, _type, body, _headers: sent.append(body))
    for body in (b"one", b"two"):
        exchange.reply(200, b"text/plain", body)
    assert sent == [b"one"]


async def test_by_asgi_a_reader_who_left_is_heard_of_and_ends_the_wait() -> None:
    gone, heard = asyncio.Event(), list[str]()
    exchange = AsgiExchange(receive_of(gone))
    exchange.when_left(lambda: heard.append("left"))
    gone.set()
    assert await exchange.replied() is None
    assert heard == ["left"]
