"""A watch at a node begins, or there is a reason without one, whatever the other side sends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from understudy_router.questions.watch.feed import NodeEvents
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.node_calls import BadReplyError, NodeCalls
from understudy_shared.cluster.wire import WireConnection

BEGINNING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def begun(reply: bytes, *, is_cut: bool = False) -> tuple[int, bytes]:
    """Begin a watch at a server that sends this. Return its status, with the first event or the refusal."""

    has_ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(reply)
        if not is_cut:
            with suppress(ConnectionError):  # who gives up resets the connection
                await reader.read()
        writer.close()
        has_ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host = HostInfo(*server.sockets[0].getsockname()[:2])
        calls = NodeCalls("flights")
        try:
            found = await calls.begin(host, "/watch", b"{}", accept="text/event-stream", limit_s=5.0)
            if not isinstance(found, WireConnection):
                return found
            events = NodeEvents(found)
            event = await events.next()
            events.close()
            return 200, event or b""
        finally:
            await has_ended.wait()  # whatever came of it, its connection is closed
            await calls.close()


async def test_events_come_one_by_one() -> None:
    assert await begun(BEGINNING + b"b\r\ndata: {}\n\nd\r\n") == (200, b"data: {}")


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n\x00\x01",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    ],
    ids=["upgrade", "not HTTP", "a page"],
)
async def test_what_no_node_sends_is_a_bad_reply(reply: bytes) -> None:
    with pytest.raises(BadReplyError):
        await begun(reply)
