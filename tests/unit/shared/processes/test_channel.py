"""What the supervisor and a worker say to each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from understudy_shared.processes.channel import MAX_ASKS, Channel, ChannelError, frame, read_frame


class Side:
    """One end of a channel, and what it was asked and notified of."""

    def __init__(self, control: socket.socket) -> None:
        self.notified: list[tuple[str, Any]] = []
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()
        self.channel = Channel(control, self._answer, lambda what, document: self.notified.append((what, document)))

    async def _answer(self, what: str) -> object:
        self.asked += 1
        await self.go.wait()
        if what == "fails":
            raise ValueError("it cannot")
        return {"answer to": what}


@asynccontextmanager
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    one, other = (Side(each) for each in socket.socketpair())
    running = []
    for side in (one, other):
        await side.channel.open()
        running.append(asyncio.ensure_future(side.channel.run()))
    try:
        yield one, other
    finally:
        one.channel.close()
        other.channel.close()
        await asyncio.wait_for(asyncio.gather(*running), 10)


async def test_both_sides_ask_and_tell() -> None:
    async with sides() as (one, other):
        one.channel.notify("news", [1])
        assert await one.channel.ask("a", timeout_s=10) == {"answer to": "a"}
        assert await other.channel.ask("b", timeout_s=10) == {"answer to": "b"}
        assert other.notified == [("news", [1])]


async def test_an_answer_that_fails_or_cannot_be_written_is_an_error_of_who_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sides() as (one, _):
        with pytest.raises(ChannelError, match="it cannot"):
            await one.channel.ask("fails", timeout_s=10)
    assert "it cannot" in caplog.text


async def test_an_answer_that_comes_too_late_is_an_error_and_is_dropped() -> None:
    async with sides() as (one, other):
        other.go.clear()
        with pytest.raises(ChannelError, match=r"no answer within 0\.01 s"):
            await one.channel.ask("a", timeout_s=0.01)
        other.go.set()
        assert await one.channel.ask("b", timeout_s=10) == {"answer to": "b"}


async def test_only_so_many_asks_are_answered_at_a_time() -> None:
    async with sides() as (one, other):
        other.go.clear()
        asks = [asyncio.ensure_future(one.channel.ask("a", timeout_s=10)) for _ in range(MAX_ASKS + 1)]
        with pytest.raises(ChannelError, match="too many"):
            await asks[-1]
        other.go.set()
        assert await asyncio.gather(*asks[:-1]) == [{"answer to": "a"}] * MAX_ASKS
        assert other.asked == MAX_ASKS


async def test_an_ask_that_waits_for_its_answer_hears_of_the_end() -> None:
    async with sides() as (one, other):
        other.go.clear()
        ask = asyncio.ensure_future(one.channel.ask("a", timeout_s=60))
        await asyncio.sleep(0)
        other.channel.close()
        with pytest.raises(ChannelError, match="ended"):
            await ask
        with pytest.raises(ChannelError, match="not there"):
            one.channel.notify("news", None)


@pytest.mark.parametrize("sent", [b"\xff" * 8, frame(["nonsense"]), frame(3), b"\0\0\0\2{["], ids=repr)
async def test_what_is_no_message_ends_the_channel(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    side = Side(ours)
    await side.channel.open()
    with theirs:
        theirs.sendall(sent)
        await asyncio.wait_for(side.channel.run(), 10)
    assert "channel" in caplog.text


def test_a_frame_is_read_without_a_loop_and_an_end_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(frame({"a": "x" * 1000}))
            assert read_frame(ours) == {"a": "x" * 1000}
        with pytest.raises(ChannelError, match="ended"):
            read_frame(ours)
