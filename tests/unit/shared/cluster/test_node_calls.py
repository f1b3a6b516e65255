"""A node that cannot be had is one error, whatever the HTTP client makes of it."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster import node_calls
from understudy_shared.cluster.node_calls import (
    MAX_SMALL_REPLY_BYTES,
    BadReplyError,
    CallKind,
    CallOutcome,
    NodeCallError,
    NodeCalls,
    NodeTimeoutError,
)


@pytest.mark.parametrize("end", ["reset", "eof", "silence"])
async def test_however_a_call_fails_the_node_is_said_not_to_answer(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "TIMEOUT_S", 0.05 if end == "silence" else 60.0)

    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if end == "reset":
            writer.transport.abort()
        elif end == "silence":
            await reader.read()
        writer.close()

    calls = NodeCalls("flights")
    server = await asyncio.start_server(fails, "127.0.0.1", 0)
    async with server:
        host = HostInfo(*server.sockets[0].getsockname()[:2])
        with pytest.raises(NodeCallError, match="does not answer") as raised:
            await calls.heartbeat(host)
        assert isinstance(raised.value, NodeTimeoutError) == (end == "silence")
    with pytest.raises(NodeCallError, match="does not answer: cannot connect"):
        await calls.heartbeat(host)
    with pytest.raises(NodeCallError, match="names no host"):
        await calls.heartbeat(HostInfo("127.0.0.1 \r\nx: y", host.port))
    outcome = CallOutcome.LATE if end == "silence" else CallOutcome.FAILED
    assert calls.counts == Counter([(CallKind.MEMBERSHIP, each) for each in (outcome, "failed", "failed")])
    await calls.close()


@asynccontextmanager
async def node_that_answers(reply: bytes, *, then: bytes = b"") -> AsyncIterator[tuple[HostInfo, list[bytes]]]:
    """A real listener that sends bytes, and then the same bytes for ever; and what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(reply)
            while then:
                writer.write(then)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield HostInfo("127.0.0.1", server.sockets[0].getsockname()[1]), asked
    finally:
        server.close()


def reply(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"\r\n".join((b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers))
    return head + b"\r\n\r\n" + body


JSON = b"content-type: application/json"
ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "then", "why"),
    [
        (reply(b"<html>", b"content-type: text/html"), b"", "text/html, not JSON"),
        (reply(b"{}"), b"", "of no named type"),
        (reply(gzip.compress(bytes(MAX_SMALL_REPLY_BYTES)), JSON, b"content-encoding: gzip"), b"", "compressed"),
        (reply(b"{}", JSON, b"location: http://127.0.0.1:1/", status=b"307 Moved"), b"", "answers 307"),
        (reply(b"{}", JSON, status=b"777 X"), b"", "answers 777"),
        (ENDLESS, b" " * 65_536, "more than"),
        (reply(b"[", JSON), b"", "JSON"),
    ],
    ids=["html", "no type", "compressed", "redirect", "unknown status", "without end", "no JSON"],
)
async def test_what_no_node_of_ours_answers_is_refused_before_it_is_used(sent: bytes, then: bytes, why: str) -> None:
    calls = NodeCalls("flights")
    async with node_that_answers(sent, then=then) as (host, asked):
        with pytest.raises(BadReplyError, match=why):
            await calls.drain(host, drain=True)
        assert len(asked) == 1
        with pytest.raises(UnderstudyError):
            await calls.heartbeat(host)
    await calls.close()
