"""Whatever a Redis answers, a call returns or fails as the bus does, and a subscription is lost and comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from random import Random
from typing import cast

import pytest
from redis.asyncio.connection import Connection
from tests.fuzz.hunting import hunt, sizes
from tests.fuzz.mutation import bad_bytes

from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_subscription import Subscription

SOUND = (
    b"+OK\r\n",
    b":1\r\n",
    b"-ERR no\r\n",
    b"$-1\r\n",
    b"$11\r\nowned me\nabc\r\n",
    b"$9\r\nlease 7 m\r\n",
    b"$11\r\nowned me\nabc\r\n:1000\r\n",
    b"*2\r\n$1\r\n0\r\n*2\r\n$3\r\nabc\r\n$2\r\nak\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$3\r\nxyz\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n",
)
ABSURD = (b"2147483647", b"999999999", b"-1", b"-2", b"0", b"65537", b"9" * 5000, b"1_0", b"", b"many", b"1e9")


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def replies(rng: Random, count: int) -> list[bytes]:
    """Sound replies one after the other, with other numbers and types, wrapped, damaged, or cut off."""
    return [_bad_reply(rng) for _ in range(count)]


def _bad_reply(rng: Random) -> bytes:
    sent = b"".join(rng.choices(SOUND, k=rng.choice((1, 1, 2, 4))))
    lines = sent.split(b"\r\n")
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(lines))
        match rng.randrange(4):
            case 0:
                lines[at] = lines[at][:1] + rng.choice(ABSURD)
            case 1:
                lines[at] = bytes([rng.choice(b"+-:$*_,#!=(%~>|")]) + lines[at][1:]
            case 2:
                lines.insert(at, b"*%d" % rng.choice((1, 2, 3)))
            case 3:
                lines.insert(at, rng.choice((b"*1\r\n" * 9, b"*1\r\n" * 5000, b"+" + b"x" * 70_000))[:-2])
    sent = b"\r\n".join(lines)
    return bad_bytes(sent, rng) if rng.random() < 0.25 else sent


class Hearing(Connection):
    """A connection on which this arrives, and then its end; no socket."""

    said = b""

    async def _connect(self) -> None:
        await asyncio.sleep(0)
        self._reader = asyncio.StreamReader()
        self._reader.feed_data(self.said)
        self._reader.feed_eof()
        self._writer = cast(asyncio.StreamWriter, _Unheard())


class _Unheard:
    def writelines(self, lines: object) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


async def all_hear(batch: Sequence[bytes]) -> None:
    bus = RedisBus("redis://unused", call_timeout_ms=100)
    bus._pool.connection_class = Hearing
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: bus.get("a"),
        lambda: bus.scan("a", known=["ak"]),
        lambda: bus.keys("a"),
        lambda: bus.acquire("a", "b", "me", above=1, expiry_ms=1000),
        lambda: bus.lease_holder("a"),
    ]
    for call, said in zip(cycle(calls), batch, strict=False):
        Hearing.said = said
        with suppress(BusError):
            await call()
        subscription = Subscription(bus._connection, bus._failed, timeout_ms=100, sentinels=None)
        subscription.add(_Silent(), "a")  # type: ignore[arg-type]
        stood, error = await subscription._hold()
        assert isinstance(stood, bool)
        assert isinstance(error, BusError)
        await bus._pool.disconnect()
    await bus.close()


class _Silent:
    """An inbox that checks what is put into it."""

    def put(self, heard: object) -> None:
        assert isinstance(heard, bytes | Lost | Back)


@sizes(20_000)
def test_no_reply_of_a_redis_ends_what_the_bus_does(inputs: int) -> None:
    hunt("redis_replies", inputs, replies, lambda batch: asyncio.run(all_hear(batch)))
