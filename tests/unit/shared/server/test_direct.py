"""One request that waits for its reply: it gets one reply at most, and its end is heard of however late one asks."""

from __future__ import annotations

import asyncio
from typing import Any

from understudy_shared.http.edge import Receive
from understudy_shared.server.direct import AsgiExchange, DirectExchange, Headers


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


async def test_by_asgi_a_reader_who_left_is_heard_of_and_ends_the_wait() -> None:
    gone, heard = asyncio.Event(), list[str]()
    exchange = AsgiExchange(receive_of(gone))
    exchange.when_left(lambda: heard.append("left"))
    gone.set()
    assert await exchange.replied() is None
    assert heard == ["left"]
