"""One request that waits for its reply: it gets one reply at most, and its end is heard of however late one asks."""

from __future__ import annotations

import asyncio
from typing import Any

from understudy_shared.http.edge import Receive
from understudy_shared.server.direct import AsgiExchange, DirectExchange, Exchange, Headers, response


class Sent:
    """What was written."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def send(self, _status: int, _content_type: bytes, body: bytes, _headers: Headers) -> None:
        self.replies.append(body)


def receive_of(gone: asyncio.Event) -> Receive:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def test_only_the_first_reply_is_sent() -> None:
    sent = Sent()
    exchange = DirectExchange(sent.send)
    for body in (b"one", b"two"):
        exchange.reply(200, b"text/plain", body)
    assert sent.replies == [b"one"]


def test_a_reader_who_left_gets_no_reply_and_is_heard_of_before_and_after() -> None:
    sent, heard = Sent(), list[str]()
    exchange = DirectExchange(sent.send)
    exchange.when_left(lambda: heard.append("asked before"))
    exchange.leave()
    exchange.when_left(lambda: heard.append("asked after"))
    exchange.reply(200, b"text/plain", b"late")
    assert (heard, sent.replies) == (["asked before", "asked after"], [])


def test_who_is_forgotten_hears_nothing() -> None:
    heard: list[str] = []
    exchange = DirectExchange(Sent().send)
    exchange.when_left(lambda: heard.append("left"))
    exchange.forget()
    exchange.leave()
    assert heard == []


async def test_by_asgi_a_reader_who_left_is_heard_of_and_ends_the_wait() -> None:
    gone, heard = asyncio.Event(), list[str]()
    exchange = AsgiExchange(receive_of(gone))
    exchange.when_left(lambda: heard.append("left"))
    gone.set()
    assert await exchange.replied() is None
    assert heard == ["left"]


async def test_by_asgi_the_first_reply_is_the_reply() -> None:
    exchange: Exchange = AsgiExchange(receive_of(asyncio.Event()))
    for body in (b"one", b"two"):
        exchange.reply(200, b"text/plain", body)
    assert isinstance(exchange, AsgiExchange)
    reply = await exchange.replied()
    assert reply is not None
    assert reply.body == b"one"


def test_a_response_says_its_length_its_headers_and_whether_it_is_the_last() -> None:
    plain = response(200, b"text/plain", b"body", (), close=False)
    assert plain == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nbody"
    last = response(429, b"text/plain", b"", [(b"retry-after", b"1")], close=True)
    assert last.endswith(b"content-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n")
