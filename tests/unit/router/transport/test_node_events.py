"""A watch at a node begins, or there is a reason without one, whatever the other side sends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from understudy_router.transport.node_events import NodeEvents, open_events
from understudy_router.transport.wire import HopFailure, WireError, WireReply
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import HostInfo

BEGINNING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def begun(reply: bytes, *, is_cut: bool = False) -> tuple[NodeEvents | WireReply | HopFailure, bytes | None]:
    """Begin a watch at a server that sends this; return it with its first event, or the reason without one."""

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
        found = await open_events(host, "/watch", b"{}", ClusterIdentity(None, "flights"), limit_s=5.0)
        event = None
        if isinstance(found, NodeEvents):
            event = await found.next()
            found.close()
        await has_ended.wait()
        return found, event


async def test_events_come_one_by_one() -> None:
    _, event = await begun(BEGINNING + b"b\r\ndata: {}\n\nd\r\n")
    assert event == b"data: {}"


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
    found, _ = await begun(reply)
    assert isinstance(found, HopFailure)
    assert found.reason == WireError.BAD_REPLY


async def test_a_refusal_that_comes_at_once_is_told_with_its_status() -> None:
    found, _ = await begun(b"HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}")
    assert found == WireReply(410, b"{}")


async def test_a_connection_that_ends_before_the_watch_begins_is_refused() -> None:
    found, _ = await begun(b"HTTP/1.1 200", is_cut=True)
    assert isinstance(found, HopFailure)
    assert found.reason == WireError.REFUSED
