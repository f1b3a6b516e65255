"""Servers that lie, drip, cut or babble: a clear error by the deadline, and never a wrong answer."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress

import orjson
import pytest
from tests.support.clients.asking import Asking, asking
from tests.support.clients.steps import found
from tests.support.services.bad_servers import Behaviour, bad_server, dripping, sending, silent

from understudy import AsyncClient, BadReplyError, Client, DeadlineError, UnreachableError

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWER = orjson.dumps(found("a"))
WHOLE = JSON + b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
CHUNKED = JSON + b"transfer-encoding: chunked\r\n\r\n"

BAD = {
    "a page": sending(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>"),
    "a redirect": sending(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"),
    "garbage": sending(b"\x00\xff\x16\x03 not HTTP at all\r\n\r\n"),
    "an answer of another store": sending(WHOLE.replace(b'"words"', b'"other"')),
    "a text of JSON": sending(JSON + b'content-length: 7\r\n\r\n"found"'),
    "half of JSON": sending(JSON + b'content-length: 8\r\n\r\n{"found"'),
    "an answer without its position": sending(JSON + b'content-length: 14\r\n\r\n{"found":true}'),
    "a page by its content": sending(JSON + b"content-length: 13\r\n\r\n<html></html>"),
    "two replies": sending(WHOLE + WHOLE),
    "a cut body": sending(WHOLE[:-5], then_closes=True),
    "a cut chunk": sending(CHUNKED + b"40\r\n" + ANSWER[:20], then_closes=True),
    "no length": sending(JSON + b"\r\n" + ANSWER, then_closes=True),
    "two lengths": sending(JSON + b"content-length: 5\r\ncontent-length: 9\r\n\r\n12345"),
    "a length below zero": sending(JSON + b"content-length: -1\r\n\r\n"),
    "a wrong chunk": sending(CHUNKED + b"zz\r\n\r\n"),
    "compressed": sending(WHOLE.replace(b"content-length", b"content-encoding: gzip\r\ncontent-length")),
    "a head without end": sending(JSON + b"x: " + b"y" * 200_000),
    "headers without end": sending(JSON + b"x-filler: yyyyyyyy\r\n" * 10_000),
    "another protocol": sending(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
    "an end at once": sending(then_closes=True),
}
SLOW = {
    "silence": silent,
    "a dripping head": dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "a dripping body": dripping(JSON + b"content-length: 1000\r\n\r\n"),
    "dripping chunks": dripping(CHUNKED, b"1\r\n \r\n"),
    "interim replies without end": dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n", every_s=0.1),
}


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


def ask(client: Asking, **bounds: object) -> object:
    return client.ask(lambda each: each.store("words").get("a", **bounds))


@pytest.mark.parametrize("behave", BAD.values(), ids=BAD.keys())
def test_what_is_no_answer_is_an_error_that_names_the_server(kind: str, behave: Behaviour) -> None:
    with bad_server(behave) as server, asking(kind, server.url, retries=0) as client:
        with pytest.raises(UnreachableError) as raised:
            ask(client, timeout=5)
        assert not isinstance(raised.value, DeadlineError), raised.value
        assert raised.value.fix
        assert all(each.url == server.url for each in raised.value.attempts)


@pytest.mark.parametrize("behave", SLOW.values(), ids=SLOW.keys())
def test_a_server_that_drips_is_left_at_the_deadline(kind: str, behave: Behaviour) -> None:
    """Q52."""
    with (
        bad_server(behave) as server,
        asking(kind, server.url, retries=0) as client,
        pytest.raises((DeadlineError, BadReplyError)),
    ):
        ask(client, timeout=0.4)


def test_a_body_above_the_limit_is_not_kept(kind: str) -> None:
    endless = dripping(JSON + b"content-length: 999999999999\r\n\r\n", b" " * 1_000_000, every_s=0.0)
    with (
        bad_server(endless) as server,
        asking(kind, server.url, retries=0) as client,
        pytest.raises(BadReplyError, match="a body above"),
    ):
        ask(client, timeout=60)


def test_behind_a_head_that_came_before_only_a_whole_body_is_an_answer(kind: str) -> None:
    replies = iter([WHOLE, WHOLE.replace(b'"count":7', b'"count":9'), WHOLE + b" ", WHOLE, WHOLE[:-5]])

    def behave(connection: socket.socket, _: bytes, __: threading.Event) -> None:
        reply = next(replies)
        sending(reply, then_closes=len(reply) < len(WHOLE))(connection, _, __)

    def count(client: Asking) -> object:
        try:
            return client.ask(lambda each: each.store("words").get("a")).value["count"]
        except UnreachableError as error:
            return type(error)

    with bad_server(behave) as server, asking(kind, server.url, retries=0) as client:
        assert [count(client) for _ in range(5)] == [7, 9, BadReplyError, 7, UnreachableError]


def test_bytes_that_came_between_two_replies_are_never_taken_for_an_answer(kind: str) -> None:
    sent = threading.Event()
    wrong = WHOLE.replace(b'"count":7', b'"count":9')

    def behave(connection: socket.socket, _: bytes, __: threading.Event) -> None:
        connection.sendall(WHOLE)
        if not sent.is_set():
            connection.sendall(wrong)
            sent.set()

    with bad_server(behave) as server, asking(kind, server.url, retries=0) as client:
        counts = set()
        for _ in range(3):
            with suppress(UnreachableError):  # both replies came in one read
                counts.add(client.ask(lambda each: each.store("words").get("a")).value["count"])
            assert sent.wait(30)  # bytes that come behind the next request look like its reply
        assert counts == {7}


def test_a_forked_child_opens_its_own_connections() -> None:
    with bad_server(sending(WHOLE)) as server, Client(server.url) as client:
        assert client.store("words").get("a")
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if client.store("words").get("a").found else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert client.store("words").get("a")
        assert server.connections == 2


def test_a_cancelled_call_leaves_no_half_reply_behind() -> None:
    slow = dripping(WHOLE[:-10], b"")
    with bad_server(slow) as server, asking("async", server.url, retries=0) as client:

        async def cancelled(each: AsyncClient) -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await each.store("words").get("a")

        client.ask(cancelled)
        assert "0 idle" in repr(client.client._driver.transport)
        assert server.connections == 1
