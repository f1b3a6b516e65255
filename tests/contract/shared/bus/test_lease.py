"""The lease and what is written under it: one holder, terms that only grow, steps that cannot be torn apart, and
rubbish that does not block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.bus.documents import eventually, listening
from tests.support.bus.leases import CHANNEL, LEASE, LONG_MS, SHORT_MS, TERM, lapsed, taken
from tests.support.bus.redis_server import RedisServer
from tests.support.bus.worlds import World

from understudy_shared.bus.base import Bus, Fence, Stored
from understudy_shared.bus.redis_bus import RedisBus

KEY = "us:{flights}:assignment"

RUBBISH = [
    pytest.param(["SET", LEASE, "by hand"], id="text"),
    pytest.param(["SET", LEASE, ""], id="nothing"),
    pytest.param(["SET", LEASE, b"\xff\x00" * 9000], id="long bytes"),
    pytest.param(["SET", LEASE, "us1 owned a\n"], id="another kind of ours"),
    pytest.param(["SET", LEASE, "us1 lease x"], id="a torn lease"),
    pytest.param(["SET", LEASE, "us1 lease 4 a\n"], id="a lease that lost its expiry"),
    pytest.param(["SET", LEASE, "by hand", "EX", 86400], id="text for a day"),
    pytest.param(["RPUSH", LEASE, "x"], id="a list"),
]


async def test_a_lease_has_one_owner_at_a_time(bus: Bus, other: Bus) -> None:
    assert await bus.lease_holder(LEASE) is None
    terms = await asyncio.gather(
        *(
            (bus, other)[number % 2].acquire(LEASE, TERM, f"node {number}", above=0, expiry_ms=LONG_MS)
            for number in range(10)
        )
    )
    (winner,) = [number for number, term in enumerate(terms) if term is not None]
    assert await other.lease_holder(LEASE) == f"node {winner}"
    assert await bus.acquire(LEASE, TERM, f"node {winner}", above=0, expiry_ms=LONG_MS) is None, "not even its own"


async def test_each_term_is_above_all_before_it_and_above_what_was_asked_for(bus: Bus) -> None:
    first = await taken(bus, "a")
    await bus.release(first)
    second = await taken(bus, "b", above=first.term + 40)
    await bus.release(second)
    third = await taken(bus, "a", expiry_ms=SHORT_MS)
    await lapsed(bus)
    fourth = await taken(bus, "a", above=2)
    assert 0 < first.term < first.term + 40 < second.term < third.term < fourth.term


async def test_large_terms_are_counted_exactly(bus: Bus) -> None:
    first = await taken(bus, "a", above=2**47 - 9)
    assert first.term == 2**47 - 8
    assert await bus.put_fenced(KEY, b"1", epoch=2**46 + 1, fence=first, channel=CHANNEL)
    assert not await bus.put_fenced(KEY, b"2", epoch=2**46, fence=first, channel=CHANNEL)
    await bus.release(first)
    assert (await taken(bus, "b")).term == 2**47 - 7


async def test_a_bus_that_lost_everything_does_not_turn_the_term_back(world: World, bus: Bus) -> None:
    fence = await taken(bus, "a", above=17)
    assert fence.term == 18
    emptied = world.emptied()
    assert not await emptied.renew(fence, expiry_ms=LONG_MS)
    assert (await taken(emptied, "b", above=fence.term)).term > fence.term


async def test_a_lease_is_kept_by_renewing_and_its_loss_is_reported(bus: Bus, other: Bus) -> None:
    fence = await taken(bus, "a", expiry_ms=SHORT_MS * 500)
    assert await bus.renew(fence, expiry_ms=LONG_MS)
    assert await other.acquire(LEASE, TERM, "b", above=0, expiry_ms=LONG_MS) is None
    assert await bus.renew(fence, expiry_ms=SHORT_MS), "and now it is left to end"
    await lapsed(bus)
    assert not await bus.renew(fence, expiry_ms=LONG_MS)
    await taken(other, "b")
    assert not await bus.renew(fence, expiry_ms=LONG_MS)


async def test_only_the_current_holder_gives_the_lease_up(bus: Bus, other: Bus) -> None:
    old = await taken(bus, "a")
    await bus.release(old)
    new = await taken(other, "a")
    await bus.release(old)
    await bus.release(Fence(LEASE, "b", new.term))
    assert await bus.lease_holder(LEASE) == "a"
    await other.release(new)
    assert await bus.lease_holder(LEASE) is None


async def test_a_holder_that_slept_through_its_lease_cannot_write(bus: Bus, other: Bus) -> None:
    sleeper = await taken(bus, "a", expiry_ms=SHORT_MS)
    await lapsed(bus)
    assert not await bus.put_fenced(KEY, b"nobody's turn", epoch=1, fence=sleeper, channel=CHANNEL)
    successor = await taken(other, "b")
    async with listening(other.listen(CHANNEL)) as ear:
        assert not await bus.put_fenced(KEY, b"too late", epoch=99, fence=sleeper, channel=CHANNEL)
        assert await other.put_fenced(KEY, b"current", epoch=1, fence=successor, channel=CHANNEL)
        assert not await bus.put_fenced(KEY, b"too late", epoch=99, fence=sleeper, channel=CHANNEL)
        await other.publish(CHANNEL, b"end")
        assert [await ear.next(), await ear.next()] == [b"current", b"end"]
    assert await bus.get(KEY) == Stored(b"current", None)


@pytest.mark.parametrize(("owner", "plus"), [("b", 0), ("a", 1), ("a", -1), ("A", 0)])
async def test_a_fence_of_another_owner_or_term_writes_nothing(bus: Bus, owner: str, plus: int) -> None:
    fence = await taken(bus, "a", above=5)
    forged = Fence(LEASE, owner, fence.term + plus)
    assert not await bus.put_fenced(KEY, b"1", epoch=1, fence=forged, channel=CHANNEL)
    assert not await bus.renew(forged, expiry_ms=LONG_MS)
    assert await bus.get(KEY) is None


async def test_term_and_epoch_only_grow(bus: Bus) -> None:
    fence = await taken(bus, "a")
    assert await bus.put_fenced(KEY, b"9", epoch=9, fence=fence, channel=CHANNEL)
    for epoch in (8, 9, 0):
        assert not await bus.put_fenced(KEY, b"older", epoch=epoch, fence=fence, channel=CHANNEL)
    assert await bus.put_fenced(KEY, b"10", epoch=10, fence=fence, channel=CHANNEL), "10 is above 9 as a number"
    await bus.release(fence)
    second = await taken(bus, "b")
    assert await bus.put_fenced(KEY, b"next term", epoch=1, fence=second, channel=CHANNEL)
    assert await bus.get(KEY) == Stored(b"next term", None)


async def test_a_term_that_cannot_be_is_counted_on_from_what_is_known(bus: Bus, other: Bus) -> None:
    """Somebody took the lease above all that a cluster counts to."""
    await bus.release(await taken(bus, "forger", above=2**52))
    fence = await taken(other, "a", above=5)
    assert fence.term == 6
    await other.release(fence)
    assert (await taken(bus, "b", above=6)).term == 7, "the counter was mended"


async def test_a_new_term_is_higher_than_that_of_the_fenced_value(bus: Bus) -> None:
    fence = await taken(bus, "a", above=40)
    assert await bus.put_fenced(KEY, b"1", epoch=1, fence=fence, channel=CHANNEL)
    await bus.release(fence)
    term = await bus.acquire(LEASE, TERM + "2", "b", above=3, expiry_ms=LONG_MS, fenced_key=KEY)
    assert term == 42, "although the counter of terms was lost"


async def test_a_stored_order_that_cannot_be_is_written_over(bus: Bus, other: Bus) -> None:
    forged = await taken(bus, "forger", above=2**52)
    assert await bus.put_fenced(KEY, b"forged", epoch=2**53, fence=forged, channel=CHANNEL)
    await bus.release(forged)
    term = await other.acquire(LEASE, TERM, "a", above=5, expiry_ms=LONG_MS, fenced_key=KEY)
    assert term == 6
    fence = Fence(LEASE, "a", term)
    assert await other.put_fenced(KEY, b"1", epoch=3, fence=fence, channel=CHANNEL)
    assert not await other.put_fenced(KEY, b"2", epoch=3, fence=fence, channel=CHANNEL)
    assert await bus.get(KEY) == Stored(b"1", None)


async def test_of_writes_that_race_under_one_fence_the_highest_epoch_stands_and_is_heard_last(
    bus: Bus, other: Bus
) -> None:
    fence = await taken(bus, "a")
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
    old = await taken(bus, "a")
    assert await bus.put_fenced(KEY, b"old", epoch=1, fence=old, channel=CHANNEL)

    written = asyncio.gather(
        *(bus.put_fenced(KEY, b"old", epoch=epoch, fence=old, channel=CHANNEL) for epoch in range(2, 30))
    )
    await other.release(old)
    new = await taken(other, "new", above=old.term)
    assert await other.put_fenced(KEY, b"new", epoch=1, fence=new, channel=CHANNEL)
    await written
    assert not await bus.put_fenced(KEY, b"old", epoch=99, fence=old, channel=CHANNEL)
    stored = await bus.get(KEY)
    assert stored is not None
    assert stored.payload == b"new"


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
    fence = await taken(redis, "a")
    server.command("SET", KEY, rubbish)
    assert await redis.put_fenced(KEY, b"1", epoch=1, fence=fence, channel=CHANNEL)
    stored = await redis.get(KEY)
    assert stored is not None
    assert stored.payload == b"1"


async def test_a_term_that_is_no_number_is_counted_on_from_what_is_known(server: RedisServer, redis: RedisBus) -> None:
    server.command("SET", TERM, "rubbish")
    assert await redis.acquire(LEASE, TERM, "a", above=41, expiry_ms=LONG_MS) == 42
