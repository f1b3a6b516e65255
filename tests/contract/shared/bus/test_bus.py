"""What every bus keeps: the clauses of `understudy_shared.bus.base`.

In one process, over a real Redis, and over one that real sentinels name.
"""

from __future__ import annotations

import pytest
from tests.support.bus import local_bus
from tests.support.bus.documents import eventually, listening
from tests.support.bus.leases import CHANNEL, LEASE, LONG_MS, SHORT_MS, TERM, lapsed, taken

from understudy_shared.bus import redis_bus
from understudy_shared.bus.base import (
    MAX_MESSAGES,
    MAX_VALUE_BYTES,
    Back,
    Bus,
    BusError,
    ListedKeys,
    Lost,
    Stored,
)

KEY = "us:{flights}:key"


async def test_a_value_is_read_as_it_was_written_by_anybody(bus: Bus, other: Bus) -> None:
    payload = bytes(range(256)) + b"\nus1 put\n"
    await bus.put(KEY, b"before")
    await other.put(KEY, payload)
    assert await bus.get(KEY) == Stored(payload, None)
    assert await bus.get(KEY + "2") is None


async def test_a_value_says_how_long_it_lives_on_and_is_gone_then(bus: Bus) -> None:
    await bus.put(KEY, b"long", expiry_ms=LONG_MS)
    stored = await bus.get(KEY)
    assert stored is not None
    assert stored.left_ms is not None
    assert 0 < stored.left_ms <= LONG_MS
    await bus.put(KEY, b"short", expiry_ms=SHORT_MS)

    async def is_gone() -> bool:
        return await bus.get(KEY) is None

    await eventually(is_gone, what="the end of a value")


async def test_an_owned_value_is_written_by_its_owner_alone(bus: Bus, other: Bus) -> None:
    assert await bus.put_owned(KEY, "a", b"1", expiry_ms=LONG_MS, channel=CHANNEL)
    async with listening(other.listen(CHANNEL)) as ear:
        assert not await other.put_owned(KEY, "b", b"2", expiry_ms=LONG_MS, channel=CHANNEL)
        assert (await bus.scan(KEY))[KEY].payload == b"1"
        assert await bus.put_owned(KEY, "a", b"3", expiry_ms=LONG_MS, channel=CHANNEL)
        assert (await other.scan(KEY))[KEY].payload == b"3"
        assert await ear.next() == b"3", "what was refused is not published either"


async def test_an_owned_value_that_expired_is_free_for_another_owner(bus: Bus, other: Bus) -> None:
    assert await bus.put_owned(KEY, "a", b"1", expiry_ms=SHORT_MS, channel=CHANNEL)

    async def is_free() -> bool:
        return await other.put_owned(KEY, "b", b"2", expiry_ms=LONG_MS, channel=CHANNEL)

    await eventually(is_free, what="the end of an owned value")
    assert not await bus.put_owned(KEY, "a", b"3", expiry_ms=LONG_MS, channel=CHANNEL)


async def test_a_change_is_published_instead_of_the_whole_that_is_written(bus: Bus, other: Bus) -> None:
    fence = await taken(bus, "a")
    async with listening(other.listen(CHANNEL, "us:{flights}:heartbeats")) as reader:
        assert await bus.put_fenced(KEY, b"whole", epoch=1, fence=fence, channel=CHANNEL, change=b"change")
        assert await bus.get(KEY) == Stored(b"whole", None)
        await other.publish("us:{flights}:heartbeats", b"beside")
        assert [await reader.next(), await reader.next()] == [b"change", b"beside"]


async def test_an_owner_deletes_its_value_and_says_farewell(bus: Bus, other: Bus) -> None:
    await bus.put_owned(KEY, "a", b"1", expiry_ms=LONG_MS, channel=CHANNEL)
    async with listening(other.listen(CHANNEL)) as ear:
        await bus.delete_owned(KEY, "a", b"farewell", channel=CHANNEL)
        assert await ear.next() == b"farewell"
        assert await bus.get(KEY) is None
        await bus.delete_owned(KEY, "a", b"again", channel=CHANNEL)
        assert await ear.next() == b"again", "an expired value does not keep a farewell back"


async def test_nobody_deletes_or_buries_what_another_owns(bus: Bus, other: Bus) -> None:
    await bus.put_owned(KEY, "a", b"1", expiry_ms=LONG_MS, channel=CHANNEL)
    async with listening(bus.listen(CHANNEL)) as ear:
        await other.delete_owned(KEY, "b", b"farewell", channel=CHANNEL)
        await other.publish(CHANNEL, b"next")
        assert await ear.next() == b"next"
    assert (await bus.scan(KEY))[KEY].payload == b"1"


async def test_a_scan_finds_every_owned_value_of_a_prefix_and_nothing_else(bus: Bus) -> None:
    names = [f"us:{{a*[b]?}}:node:{number}" for number in range(300)]
    for name in names:
        await bus.put_owned(name, "a", name.encode(), expiry_ms=LONG_MS, channel=CHANNEL)
    await bus.put_owned("us:{aXb}:node:1", "a", b"another's", expiry_ms=LONG_MS, channel=CHANNEL)
    await bus.put(names[0] + ":put", b"owned by nobody")
    found = await bus.scan("us:{a*[b]?}:node:")
    assert {key: stored.payload for key, stored in found.items()} == {name: name.encode() for name in names}
    assert all(stored.left_ms is not None and 0 < stored.left_ms <= LONG_MS for stored in found.values())
    assert await bus.scan("us:{none}:") == {}


async def test_what_is_published_arrives_in_order_at_everyone_who_listens_to_that_channel(bus: Bus, other: Bus) -> None:
    sent = [b"%d" % number for number in range(200)]
    async with listening(bus.listen(CHANNEL)) as one, listening(other.listen(CHANNEL)) as two:
        for payload in sent:
            await bus.publish(CHANNEL + "2", b"elsewhere")
            await bus.publish(CHANNEL, payload)
        assert [await one.next() for _ in sent] == sent
        assert [await two.next() for _ in sent] == sent


async def test_listeners_of_one_bus_come_and_go_by_themselves(bus: Bus, other: Bus) -> None:
    async with listening(bus.listen(CHANNEL)) as ear:
        for _ in range(3):
            async with listening(bus.listen("us:{trains}:events")) as more, listening(bus.listen(CHANNEL)) as same:
                await other.publish("us:{trains}:events", b"elsewhere")
                await other.publish(CHANNEL, b"here")
                assert await more.next() == b"elsewhere"
                assert (await ear.next(), await same.next()) == (b"here", b"here")
        await other.publish("us:{trains}:events", b"to nobody")
        await other.publish(CHANNEL, b"last")
        assert await ear.next() == b"last"


async def test_a_subscription_begins_with_back_and_misses_nothing_after_it(bus: Bus, other: Bus) -> None:
    await bus.publish(CHANNEL, b"before")
    async with listening(other.listen(CHANNEL), stands=False) as ear:
        assert isinstance(await ear.next(), Back)
        await bus.publish(CHANNEL, b"after")
        assert await ear.next() == b"after"


async def test_a_reader_that_is_too_slow_learns_that_it_lost_messages(bus: Bus, other: Bus) -> None:
    async with listening(other.listen(CHANNEL)) as ear:
        for number in range(MAX_MESSAGES + 500):
            await bus.publish(CHANNEL, b"%d" % number)
        heard = await ear.until(Lost)
        assert heard[:-1] == []
        assert isinstance(await ear.next(), Back)
        await bus.publish(CHANNEL, b"last")
        rest = [await ear.next()]
        while rest[-1] != b"last":
            rest.append(await ear.next())
        numbers = [int(payload) for payload in rest[:-1] if isinstance(payload, bytes)]
        assert numbers == list(range(MAX_MESSAGES + 500))[-len(numbers) :], "nothing is missing after Back"


async def test_a_closed_bus_refuses_calls_and_ends_its_subscriptions(bus: Bus) -> None:
    async with listening(bus.listen(CHANNEL)) as ear:
        await bus.close()
        with pytest.raises(StopAsyncIteration):
            await ear.next()
    with pytest.raises(BusError, match="closed"):
        await bus.get(KEY)
    with pytest.raises(BusError, match="closed"):
        await bus.put(KEY, b"1")


async def test_what_lives_on_for_far_longer_than_it_is_renewed_is_waited_out(bus: Bus) -> None:
    await taken(bus, "forger", expiry_ms=10**12)
    assert await bus.put_owned(KEY, "forger", b"x", expiry_ms=10**12, channel=CHANNEL)
    assert await bus.acquire(LEASE, TERM, "a", above=0, expiry_ms=SHORT_MS) is None
    assert not await bus.put_owned(KEY, "a", b"y", expiry_ms=SHORT_MS, channel=CHANNEL)
    await lapsed(bus)

    async def is_gone() -> bool:
        return await bus.get(KEY) is None

    await eventually(is_gone, what="the end of the key")


async def test_a_scan_is_bounded_in_number_and_size_and_known_keys_come_first(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_bus, redis_bus):
        monkeypatch.setattr(module, "MAX_SCANNED", 5)
        monkeypatch.setattr(module, "MAX_SCANNED_BYTES", 1000)
    for number in range(20):
        await bus.put_owned(f"{KEY}:{number}", "a", b"x", expiry_ms=LONG_MS, channel=CHANNEL)
    known = [f"{KEY}:{number}" for number in (17, 18, 99)]
    found = await bus.scan(KEY, known=known)
    assert set(known[:2]) <= found.keys()
    assert len(found) == 5
    for number in range(20):
        await bus.put_owned(f"{KEY}:{number}", "a", b"x" * 400, expiry_ms=LONG_MS, channel=CHANNEL)
    assert sorted(await bus.scan(KEY, known=known)) == known[:2]


async def test_a_value_that_is_too_large_is_not_read_whole(bus: Bus) -> None:
    await bus.put_owned(KEY, "a", b"x" * (2 * MAX_VALUE_BYTES), expiry_ms=LONG_MS, channel=CHANNEL)
    assert await bus.scan(KEY) == {}
    stored = await bus.get(KEY)
    assert stored is not None
    assert len(stored.payload) <= MAX_VALUE_BYTES + 1


async def test_keys_of_every_kind_are_listed_by_their_beginning(bus: Bus, other: Bus) -> None:
    await bus.put("us:{a}:assignment", b"x")
    await other.put_owned("us:{b*}:node:1", "a", b"x", expiry_ms=LONG_MS, channel=CHANNEL)
    await bus.put("us:{b*}:gone", b"x", expiry_ms=SHORT_MS)
    await bus.put("others", b"x")
    await taken(bus, "a")

    async def is_gone() -> bool:
        return await bus.get("us:{b*}:gone") is None

    await eventually(is_gone, what="the end of a value")
    assert sorted((await bus.keys("us:{")).found) == ["us:{a}:assignment", "us:{b*}:node:1", LEASE, TERM]
    assert await bus.keys("us:{b*") == ListedKeys(["us:{b*}:node:1"], is_all=True)
    assert await bus.keys("us:{none") == ListedKeys([], is_all=True)


async def test_a_listing_of_keys_is_bounded_and_says_so(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (local_bus, redis_bus):
        monkeypatch.setattr(module, "MAX_SCANNED", 5)
    for number in range(6):
        await bus.put(f"{KEY}:{number}", b"x")
    found, is_all = await bus.keys(KEY)
    assert (len(found), is_all) == (5, False)


async def test_a_listing_looks_at_a_bounded_part_of_a_large_database(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(bus, redis_bus.RedisBus):
        pytest.skip("a bus in memory is not shared with others")
    monkeypatch.setattr(redis_bus, "SCAN_COUNT", 10)
    monkeypatch.setattr(redis_bus, "MAX_KEYS_VISITED", 20)
    for number in range(500):
        await bus.put(f"others:{number}", b"x")
    assert not (await bus.keys("us:{")).is_all
