"""A node that cannot be had is one error, whatever the HTTP client makes of it."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.support.bus.documents import heartbeat

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES
from understudy_shared.bus.signing import Keyring
from understudy_shared.cluster.node_calls import MAX_SMALL_REPLY_BYTES, BadReplyError, NodeCalls


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("late"),
        # As anyio says it of a connection that was reset in the moment in which it was made.
        AttributeError("'NoneType' object has no attribute 'getpeername'"),
        ConnectionResetError(104, "reset"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_however_a_call_fails_the_node_is_said_not_to_answer(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> httpx.Response:
        raise failure

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", fails)
    calls = NodeCalls("flights")
    with pytest.raises(UnderstudyError, match="does not answer"):
        await calls.heartbeat(HostInfo("127.0.0.1", 7101))
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


async def test_a_reply_without_end_costs_no_more_memory_than_a_message_may() -> None:
    calls = NodeCalls("flights")
    async with node_that_answers(ENDLESS, then=b" " * 65_536) as (host, _):
        tracemalloc.start()
        try:
            with pytest.raises(BadReplyError):
                await calls.catalogue(host)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    await calls.close()
    assert peak < 3 * MAX_MESSAGE_BYTES


async def test_with_a_key_a_document_that_is_not_signed_for_this_question_is_refused_and_counted() -> None:
    auth = MessageAuth("flights", Keyring([b"k" * 32]), sender="r1")
    refused: list[str] = []
    auth.on_refused = lambda error, where: refused.append(f"{error.reason} {where}")
    body = heartbeat().encode()
    another = auth.answer_line("0" * 32, b"heartbeat", body)
    assert another is not None
    calls = NodeCalls("flights", auth)
    for headers in ((JSON,), (JSON, b"understudy-signature: " + another.encode())):
        async with node_that_answers(reply(body, *headers)) as (host, asked):
            with pytest.raises(BadReplyError, match="is refused"):
                await calls.heartbeat(host)
            assert b"understudy-nonce: " in asked[0]
    await calls.close()
    assert [each.split()[0] for each in refused] == ["unsigned", "forged"]
    assert "/internal/v1/lags" in refused[0]


async def test_without_a_key_no_nonce_is_sent_and_no_signature_is_looked_at() -> None:
    calls = NodeCalls("flights")
    async with node_that_answers(reply(heartbeat().encode(), JSON, b"understudy-signature: x")) as (host, asked):
        assert await calls.heartbeat(host) == heartbeat()
        assert b"understudy-nonce" not in asked[0]
    await calls.close()
