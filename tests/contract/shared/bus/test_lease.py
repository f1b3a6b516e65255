"""The lease as several assignors meet over it: steps that cannot be torn apart, and rubbish that does not block it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.bus.documents import eventually
from tests.support.bus.redis_server import RedisServer

from understudy_shared.bus.base import Bus, Fence
from understudy_shared.bus.redis_bus import RedisBus

KEY, CHANNEL = "us:{flights}:assignment", "us:{flights}:events"
LEASE, TERM = "us:{flights}:lease", "us:{flights}:term"
LONG_MS, SHORT_MS = 600_000, 20
"""An expiry that no test lives to see, and one that a test waits for."""

RUBBISH = [
    pytest.param(["SET", LEASE, "by hand"], id="text"),
    pytest.param(["SET", LEASE, ""], id="nothing"),
    pytest.param(["SET", LEASE, b"\xff\x00" * 9000], id="long bytes"),
    pytest.param(["SET", LEASE, "us1 owned a\n"], id="another kind of ours"),
    pytest.param(["SET", LEASE, "us1 lease x"], id="a torn lease"),
    pytest.param(["SET", LEASE, "us1 lease 4 a\n"], id="a lease that lost its expiry"),
    pytest.param(["SET", LEASE, "by hand", "EX", 86400], id="text for a day"),
    pytest.param(["RPUSH", LEASE, "x"], id="a list"),
    pytest.param(["HSET", LEASE, "f", "v"], id="a hash"),
]


async def race(bus: Bus, other: Bus, owners: int) -> list[Fence]:
    """Let all of them take the lease at once; return those that got it."""
    buses = (bus, other)
    terms = await asyncio.gather(
        *(buses[number % 2].acquire(LEASE, TERM, f"n{number}", above=0, expiry_ms=LONG_MS) for number in range(owners))
    )
    return [Fence(LEASE, f"n{number}", term) for number, term in enumerate(terms) if term is not None]


async def test_terms_of_those_who_take_the_lease_one_after_the_other_are_all_different(bus: Bus, other: Bus) -> None:
    terms = []
    for _ in range(30):
        (winner,) = await race(bus, other, 4)
        terms.append(winner.term)
        await bus.release(winner)
    assert terms == sorted(set(terms))


async def test_of_writes_that_race_under_one_fence_the_highest_epoch_stands_and_is_heard_last(
    bus: Bus, other: Bus
) -> None:
    (fence,) = await race(bus, other, 1)
    epochs = list(range(1, 41))
    done = await asyncio.gather(
        *(
            (bus, other)[epoch % 2].put_fenced(KEY, b"%d" % epoch, epoch=epoch, fence=fence, channel=CHANNEL)
            for epoch in reversed(epochs)
        )
    )
    stored = await bus.get(KEY)
    assert stored is not None
    assert stored.payload == b"40"
    assert done[0], "the highest was written"


async def test_a_hand_over_between_two_writes_lets_none_of_the_old_holder_through(bus: Bus, other: Bus) -> None:
    (old,) = await race(bus, other, 1)
    assert await bus.put_fenced(KEY, b"old", epoch=1, fence=old, channel=CHANNEL)

    async def report_delay() -> Fence:
        await other.release(old)
        term = await other.acquire(LEASE, TERM, "new", above=old.term, expiry_ms=LONG_MS)
        assert term is not None
        return Fence(LEASE, "new", term)

    written = asyncio.gather(
        *(bus.put_fenced(KEY, b"old", epoch=epoch, fence=old, channel=CHANNEL) for epoch in range(2, 30))
    )
    new = await report_delay()
    assert await other.put_fenced(KEY, b"new", epoch=1, fence=new, channel=CHANNEL)
    await written
    assert not await bus.put_fenced(KEY, b"old", epoch=99, fence=old, channel=CHANNEL)
    stored = await bus.get(KEY)
    assert stored is not None
    assert stored.payload == b"new"


# What stands there and is not ours, in Redis


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisBus]:
    server.flush()
    bus = RedisBus(server.url, call_timeout_ms=10_000)
    yield bus
    await bus.close()


@pytest.mark.parametrize("written", RUBBISH)
async def test_rubbish_under_the_lease_is_waited_out_like_a_lease_and_then_it_is_free(
    server: RedisServer, redis: RedisBus, written: list[bytes | str | int]
) -> None:
    server.command(*written)
    assert await redis.acquire(LEASE, TERM, "a", above=4, expiry_ms=LONG_MS) is None
    left_ms = server.command("PTTL", LEASE)
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= LONG_MS, "it has the expiry of a lease"
    server.command("PEXPIRE", LEASE, SHORT_MS)

    async def is_free() -> bool:
        return await redis.acquire(LEASE, TERM, "a", above=4, expiry_ms=LONG_MS) is not None

    await eventually(is_free, what="the end of it")
    assert await redis.lease_holder(LEASE) == "a"


async def test_asking_for_a_lease_that_is_held_shortens_nothing(server: RedisServer, redis: RedisBus) -> None:
    assert await redis.acquire(LEASE, TERM, "slow", above=0, expiry_ms=LONG_MS) is not None
    server.command("SET", LEASE + "2", "us2 lease 7 later\n", "PX", LONG_MS)  # of a later release
    for lease in (LEASE, LEASE + "2"):
        assert await redis.acquire(lease, TERM, "quick", above=0, expiry_ms=SHORT_MS) is None
        left_ms = server.command("PTTL", lease)
        assert isinstance(left_ms, int)
        assert left_ms > SHORT_MS


async def test_a_lease_that_lost_its_expiry_is_still_its_holders(server: RedisServer, redis: RedisBus) -> None:
    term = await redis.acquire(LEASE, TERM, "a", above=0, expiry_ms=LONG_MS)
    assert term is not None
    fence = Fence(LEASE, "a", term)
    server.command("PERSIST", LEASE)
    assert await redis.acquire(LEASE, TERM, "b", above=0, expiry_ms=LONG_MS) is None
    assert await redis.renew(fence, expiry_ms=LONG_MS)
    assert await redis.put_fenced(KEY, b"1", epoch=1, fence=fence, channel=CHANNEL)


@pytest.mark.parametrize("rubbish", ["by hand", "us1 put\nx", "us1 fenced 9", "us1 fenced x y\nz"])
async def test_rubbish_under_the_assignment_is_written_over(server: RedisServer, redis: RedisBus, rubbish: str) -> None:
    (fence,) = await race(redis, redis, 1)
    server.command("SET", KEY, rubbish)
    assert await redis.put_fenced(KEY, b"1", epoch=1, fence=fence, channel=CHANNEL)
    stored = await redis.get(KEY)
    assert stored is not None
    assert stored.payload == b"1"


async def test_a_term_that_is_no_number_is_counted_on_from_what_is_known(server: RedisServer, redis: RedisBus) -> None:
    server.command("SET", TERM, "rubbish")
    assert await redis.acquire(LEASE, TERM, "a", above=41, expiry_ms=LONG_MS) == 42
