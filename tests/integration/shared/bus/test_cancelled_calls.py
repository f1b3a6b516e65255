"""A call of the bus that is cancelled, at whatever turn of the loop and however often, gives its place and connection
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.support.bus.documents import eventually
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.sentinel_trio import sentinel_url, sentinels_of

from understudy_shared.bus.base import BusError, Stored
from understudy_shared.bus.redis_bus import MAX_CONNECTIONS, RedisBus

KEY = "us:{flights}:key"
CALL_MS = 10_000
NAME = "the-bus"
"""What its connections are called, in `CLIENT LIST`."""

AGAIN = (None, 0, 1, 2, 5)
"""After so many turns it is cancelled a second time, while it gives its place back."""

Call = Callable[[RedisBus], Coroutine[Any, Any, object]]
CALLS: dict[str, Call] = {
    "a write": lambda bus: bus.put(KEY, b"1"),
    "a pipeline": lambda bus: bus.get(KEY),
    "a scan": lambda bus: bus.scan("us:{flights}:"),
    "a script": lambda bus: bus.acquire("us:{flights}:lease", "us:{flights}:term", "a", above=0, expiry_ms=1000),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server(port=0) as running:
        yield running


@pytest.fixture(params=["address", "sentinel"])
async def bus(request: pytest.FixtureRequest, server: RedisServer) -> AsyncIterator[RedisBus]:
    with ExitStack() as stack:
        named = request.param == "sentinel"
        url = sentinel_url(stack.enter_context(sentinels_of(server))) if named else server.url
        bus = RedisBus(f"{url}?client_name={NAME}", call_timeout_ms=CALL_MS)
        yield bus
        await bus.close()


async def cancelled_at(turn: int, again: int | None, call: Coroutine[Any, Any, object]) -> bool:
    """Cancel a call at a turn of the loop, and again. Return whether it had ended before."""
    task = asyncio.ensure_future(call)
    for _ in range(turn):
        if task.done():
            break
        await asyncio.sleep(0)
    had_ended = task.done()
    for pause in (0, again):
        for _ in range(pause or 0):
            await asyncio.sleep(0)
        task.cancel()
        if again is None:
            break
    with suppress(asyncio.CancelledError, BusError):
        await task
    return had_ended


def turns() -> Iterator[int]:
    """Each of the first turns, in which connections are made and taken, then ever wider steps."""
    turn = 0
    while True:
        yield turn
        turn += 1 if turn < 60 else max(1, turn // 12)


@pytest.mark.parametrize("is_warm", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_is_cancelled_at_any_turn_gives_its_place_back(
    call: Call, is_warm: bool, server: RedisServer, bus: RedisBus
) -> None:
    await bus.put(KEY, b"1")
    for again in AGAIN:
        for turn in turns():
            if not is_warm:
                await bus._pool.disconnect()
            ended = await cancelled_at(turn, again, call(bus))
            assert not bus._pool._used, f"cancelled at turn {turn}, and after {again}"
            if ended:
                break
    crowd = [bus.get(KEY) for _ in range(2 * MAX_CONNECTIONS)]
    assert await asyncio.gather(*crowd) == [Stored(b"1", None)] * len(crowd), "each place has a sound connection"
    await bus.close()

    async def are_closed() -> bool:
        clients: Any = server.command("CLIENT", "LIST")
        return NAME.encode() not in clients

    await eventually(are_closed, what="the server to have lost every connection")


async def test_calls_that_wait_for_a_place_and_are_cancelled_take_none(bus: RedisBus) -> None:
    await bus.put(KEY, b"1")
    for turn in range(40):
        crowd = [asyncio.ensure_future(bus.get(KEY)) for _ in range(3 * MAX_CONNECTIONS)]
        for _ in range(turn):
            await asyncio.sleep(0)
        for each in crowd[turn % 3 :: 3]:
            each.cancel()
        found = await asyncio.gather(*crowd, return_exceptions=True)
        assert all(each == Stored(b"1", None) for each in found if not isinstance(each, asyncio.CancelledError)), found
        assert not bus._pool._used
