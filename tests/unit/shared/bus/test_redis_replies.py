"""Replies of Redis have limits: what is too long, too deep or no reply is refused before anything is allocated."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import Connection
from tests.fuzz.hunting import peak_bytes

from understudy_shared.bus.announcement import Announcement
from understudy_shared.bus.base import Back, BusError, BusGarbageError, Lost
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_pools import task_pool, thread_pool
from understudy_shared.bus.redis_replies import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_LINE_BYTES,
    MAX_REPLY_BYTES,
    BadRedisReplyError,
    BoundedParser,
    BoundedThreadParser,
    ReplyBudget,
)
from understudy_shared.bus.redis_sync import SyncPublisher

MiB = 1 << 20
HALF = MAX_REPLY_BYTES // 2
URLS = (
    "redis://127.0.0.1/0",
    "rediss://127.0.0.1/0?ssl_cert_reqs=none",
    "unix:///a.sock",
    "redis+sentinel://a:1,b:2/us/0?sentinel_ssl=true&sentinel_ssl_cert_reqs=none",
    "redis://127.0.0.1/0?protocol=3&parser_class=x",
)

BAD = {
    "an array that hiredis would allocate": b"*2147483647\r\n",
    "a bulk of a gigabyte": b"$999999999\r\n",
    "an array a little too long": b"*%d\r\n" % (MAX_ELEMENTS + 1),
    "a bulk a little too long": b"$%d\r\n" % MAX_REPLY_BYTES,
    "two bulks that are too long together": b"*2\r\n$%d\r\n%b\r\n$%d\r\n" % (HALF, b"x" * HALF, HALF),
    "arrays that are too long together": b"*2\r\n*%d\r\n" % MAX_ELEMENTS,
    "arrays within arrays": b"*1\r\n" * 100_000,
    "a line without an end": b"+" + b"x" * (MAX_LINE_BYTES + 1),
    "a set of RESP3": b"~2147483647\r\n",
    "a map of RESP3": b"%2147483647\r\n",
    "a push of RESP3": b">2147483647\r\n",
    "an attribute of RESP3": b"|2147483647\r\n",
    "a big number of RESP3": b"(" + b"9" * 10_000 + b"\r\n",
    "a length that is no number": b"$many\r\n",
    "a negative length": b"*-5\r\n",
    "a number of 5,000 digits": b":" + b"9" * 5000 + b"\r\n",
    "an underscore in a number": b":1_0\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an empty line": b"\r\n",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_what_is_too_long_or_no_reply_closes_the_connection_of_a_task(sent: bytes) -> None:
    async def ask() -> None:
        async with speaking(sent) as server:
            bus = RedisBus(server.url, call_timeout_ms=30_000)
            for _ in range(2):
                with pytest.raises(BusGarbageError) as caught:
                    await bus.get("a")
                assert "redis-cli" in caught.value.fix
            assert bus.bad_replies == 2
            assert server.connections == 2
            await bus.close()

    assert peak_bytes(lambda: asyncio.run(ask())) < 4 * MAX_REPLY_BYTES


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_what_is_too_long_or_no_reply_closes_the_connection_of_a_thread(sent: bytes) -> None:
    def ask(url: str) -> None:
        pool = thread_pool(url, timeout_s=30)
        connection = pool.get_connection()
        connection.send_command("PING")  # type: ignore[no-untyped-call]
        with pytest.raises(BadRedisReplyError):
            connection.read_response()
        assert connection._sock is None

    with speaking_to_threads(sent) as url:
        assert peak_bytes(lambda: ask(url)) < 4 * MAX_REPLY_BYTES


@pytest.mark.parametrize("url", URLS)
def test_every_connection_has_a_bounded_parser_whatever_its_url_says(url: str) -> None:
    tasks, threads = task_pool(url, timeout_s=1, max_connections=1), thread_pool(url, timeout_s=1)
    assert type(tasks.connection_class(**tasks.connection_kwargs)._parser) is BoundedParser
    assert type(threads.connection_class(**threads.connection_kwargs)._parser) is BoundedThreadParser
    for pool, parser in ((tasks, BoundedParser), (threads, BoundedThreadParser)):
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            asked: Any = sentinel.connection_pool
            assert type(asked.connection_class(**asked.connection_kwargs)._parser) is parser


def test_a_reply_at_each_limit_is_taken() -> None:
    for lines in (
        [b"*%d" % MAX_ELEMENTS, *[b":1"] * MAX_ELEMENTS],
        [b"*1"] * MAX_DEPTH + [b"$-1"],
        [b"*2", *([b"*1"] * (MAX_DEPTH - 1) + [b":1"]) * 2],
        [b"$%d" % (MAX_REPLY_BYTES - len(b"$%d" % MAX_REPLY_BYTES) - 4)],
        [b"*-1"],
        [b"*0"],
        [b"+" + b"x" * (MAX_LINE_BYTES - 3)],
    ):
        budget = ReplyBudget()
        for line in lines:
            budget.take(line)


def bulks(*words: bytes) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


WORDS = st.binary(max_size=30) | st.just(b"\r\n$3\r\nabc\r\n")
REPLIES = st.lists(
    st.builds(lambda name, text: bulks(b"message", name, text), WORDS, WORDS)
    | st.builds(lambda words: bulks(*words), st.lists(WORDS, max_size=4))
    | st.sampled_from([b"+OK\r\n", b":7\r\n", bulks(b"message", b"a"), bulks(b"message", b"a", b"b", b"c")]),
    max_size=6,
)


@given(REPLIES, st.lists(st.integers(1, 60), min_size=1))
def test_messages_of_channels_are_read_as_every_reply_is_however_they_are_cut(
    replies: list[bytes], cuts: list[int]
) -> None:
    async def read(kind: type[BoundedParser]) -> list[Any]:
        connection = Connection()
        connection._reader = stream = asyncio.StreamReader()
        parser = kind(socket_read_size=65_536)
        parser.on_connect(connection)  # type: ignore[no-untyped-call]

        async def arrive() -> None:
            sent, sizes = b"".join(replies), cycle(cuts)
            while sent:
                size = next(sizes)
                stream.feed_data(sent[:size])
                sent = sent[size:]
                await asyncio.sleep(0)

        arriving = asyncio.ensure_future(arrive())
        found = [await parser.read_response() for _ in replies]
        await arriving
        return found

    assert asyncio.run(read(BoundedParser)) == asyncio.run(read(_GeneralParser))


class _GeneralParser(BoundedParser):
    """The parser without its shorter way for messages of channels."""

    def _published(self) -> None:
        return None


def test_all_replies_of_one_call_together_have_a_limit() -> None:
    """A server that says that a thousand values are short and then sends long ones."""
    key = b"$3\r\nk%02d\r\n"
    keys = b"*2\r\n$1\r\n0\r\n*50\r\n" + b"".join(key % number for number in range(50))
    value = b"$%d\r\n%b\r\n" % (HALF, b"x" * HALF)

    def answer(commands: bytes) -> bytes:
        if b"SCAN" in commands:
            return keys
        if b"STRLEN" in commands:
            return b":1\r\n" * 50
        return (value + b":1000\r\n") * 50

    async def ask() -> None:
        async with speaking(answer) as server:
            bus = RedisBus(server.url, call_timeout_ms=60_000)
            with pytest.raises(BusGarbageError, match="replies to one call"):
                await bus.scan("k")
            await bus.close()

    asyncio.run(ask())


@pytest.mark.parametrize("sent", [b":1\r\n", b"+OK\r\n", b"*0\r\n", b"$-1\r\n", b"*1\r\n:7\r\n", b"*2\r\n:1\r\n:2\r\n"])
def test_a_reply_of_another_shape_fails_as_the_bus_does(sent: bytes) -> None:
    async def ask() -> None:
        async with speaking(sent * 2) as server:
            bus = RedisBus(server.url, call_timeout_ms=500)
            for call in (
                lambda: bus.get("a"),
                lambda: bus.scan("a"),
                lambda: bus.keys("a"),
                lambda: bus.lease_holder("a"),
                lambda: bus.acquire("a", "b", "me", above=1, expiry_ms=1),
                lambda: bus.put("a", b"x"),
                lambda: bus.publish("a", b"x"),
            ):
                with suppress(BusError):
                    await call()
            await bus.close()

    asyncio.run(ask())


@pytest.mark.parametrize("sent", [*BAD.values(), b":1\r\n", b"-ERR no\r\n"], ids=[*BAD, "a number", "an error"])
def test_a_subscription_that_hears_nonsense_is_lost_and_comes_back(sent: bytes) -> None:
    async def listen() -> None:
        async with speaking(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" + sent) as server:
            bus = RedisBus(server.url, call_timeout_ms=30_000)
            heard = bus.listen("c")
            for expected in (Back, Lost, Back, Lost):
                assert isinstance(await anext(heard), expected)
            await bus.close()

    asyncio.run(listen())


def test_a_subscription_that_breaks_at_once_is_tried_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy_shared.bus import redis_subscription

    attempts: list[int] = []

    def pause_ms(attempt: int, _: float) -> float:
        attempts.append(attempt)
        return 0.0

    monkeypatch.setattr(redis_subscription, "pause_ms", pause_ms)

    async def listen() -> None:
        async with speaking(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*2147483647\r\n") as server:
            bus = RedisBus(server.url, call_timeout_ms=30_000)
            heard = bus.listen("c")
            while len(attempts) < 4:
                await anext(heard)
            await bus.close()

    asyncio.run(listen())
    assert attempts[:4] == [1, 2, 3, 4]


def test_nonsense_is_logged_once_and_says_what_arrived_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        async with speaking(b"*2147483647\r\n") as server:
            bus = RedisBus(server.url, call_timeout_ms=30_000)
            for _ in range(3):
                with pytest.raises(BusGarbageError):
                    await bus.get("a")
            await bus.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(ask())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2  # of the 1st and the 2nd; the next is of the 4th
    assert "'*2147483647'" in lines[0]
    assert "redis-cli" in lines[0]


def test_the_drivers_announcement_fails_as_the_bus_does() -> None:
    with speaking_to_threads(b"*2147483647\r\n") as url:
        publisher = SyncPublisher(url, "flights")
        publisher.hint(1)
        assert publisher.failures == 1
        with pytest.raises(BusGarbageError):
            publisher.announce(Announcement(application_id="flights", query_id="q", stores=[]))
        publisher.close()


def test_a_sentinel_that_speaks_nonsense_is_passed_over() -> None:
    masters = (b"name", b"us", b"ip", b"127.0.0.1", b"port", b"1", b"flags", b"master", b"num-other-sentinels", b"2")
    sound = b"*1\r\n*%d\r\n" % len(masters) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in masters)

    async def ask() -> None:
        async with speaking(b"*2147483647\r\n") as bad, speaking(sound) as good:
            url = f"redis+sentinel://127.0.0.1:{bad.port},127.0.0.1:{good.port}/us/0"
            for _ in range(4):  # each pool has an order of its own
                pool: Any = task_pool(url, timeout_s=30, max_connections=1)
                assert await pool.get_master_address() == ("127.0.0.1", 1)
                await pool.aclose()

    asyncio.run(ask())


Answer = bytes | Callable[[bytes], bytes]


class _Server:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while commands := await reader.read(MiB):
                writer.write(self._answer if isinstance(self._answer, bytes) else self._answer(commands))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def speaking(answer: Answer) -> AsyncIterator[_Server]:
    """A server that says this whatever it is asked, and keeps connections open."""
    made = _Server(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@contextmanager
def speaking_to_threads(sent: bytes) -> Iterator[str]:
    """The URL of a server that says this whatever it is asked, and keeps connections open."""

    def serve() -> None:
        while True:
            try:
                accepted, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(accepted,), daemon=True).start()

    def talk(accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            while accepted.recv(MiB):
                accepted.sendall(sent)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
