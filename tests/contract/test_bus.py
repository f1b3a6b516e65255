"""What every bus keeps, in one process and over a real Redis: the clauses of `understudy_shared.bus.base`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import orjson
import pytest
from tests.support.bus_talk import APPLICATION, assignment, eventually, heartbeat, listening
from tests.support.redis_server import RedisServer, redis_server

from understudy_shared.bus.base import Back, Bus, BusError, Fence, Lost, Stored
from understudy_shared.bus.gossip import Gossip, digest_of, enveloped
from understudy_shared.bus.inbox import MAX_MESSAGES
from understudy_shared.bus.local_bus import LocalBus
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.messages import (
    MAX_MESSAGE_BYTES,
    AnnouncedStore,
    Announcement,
    Catalogue,
    CommitHint,
    Farewell,
    Message,
)

KEY, CHANNEL = "us:{flights}:key", "us:{flights}:events"
LEASE, TERM = "us:{flights}:lease", "us:{flights}:term"
LONG_MS, SHORT_MS = 600_000, 20
"""An expiry that no test lives to see, and one that a test waits for."""


class World(Protocol):
    """One bus as several processes see it."""

    def process(self) -> Bus:
        """The bus in another process."""

    def emptied(self) -> Bus:
        """The bus after it lost all its keys."""


class LocalWorld:
    def __init__(self) -> None:
        self.bus = LocalBus()

    def process(self) -> Bus:
        return self.bus

    def emptied(self) -> Bus:
        return LocalBus()


class RedisWorld:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.buses: list[RedisBus] = []

    def process(self) -> Bus:
        self.buses.append(RedisBus(self.server.url, call_timeout_ms=10_000))
        return self.buses[-1]

    def emptied(self) -> Bus:
        self.server.flush()
        return self.process()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(params=["local", "redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "local":
        local = LocalWorld()
        yield local
        await local.bus.close()
        return
    server = request.getfixturevalue("server")
    server.flush()
    over_redis = RedisWorld(server)
    yield over_redis
    for bus in over_redis.buses:
        await bus.close()


@pytest.fixture
def bus(world: World) -> Bus:
    return world.process()


@pytest.fixture
def other(world: World) -> Bus:
    return world.process()


async def taken(bus: Bus, owner: str, *, above: int = 0, expiry_ms: int = LONG_MS) -> Fence:
    """The lease, which is free."""
    term = await bus.acquire(LEASE, TERM, owner, above=above, expiry_ms=expiry_ms)
    assert term is not None
    return Fence(LEASE, owner, term)


async def lapsed(bus: Bus) -> None:
    """Wait until the lease is nobody's."""

    async def is_free() -> bool:
        return await bus.lease_holder(LEASE) is None

    await eventually(is_free, what="the end of the lease")


# Values


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


@pytest.mark.parametrize("owner", ["a b", "a\nb", "a%20b", "é" * 256, "us1 owned a"])
async def test_owners_of_any_spelling_are_told_apart(bus: Bus, owner: str) -> None:
    assert await bus.put_owned(KEY, owner, b"x", expiry_ms=LONG_MS, channel=CHANNEL)
    assert not await bus.put_owned(KEY, owner + " ", b"y", expiry_ms=LONG_MS, channel=CHANNEL)
    assert await bus.put_owned(KEY, owner, b"z", expiry_ms=LONG_MS, channel=CHANNEL)
    assert (await taken(bus, owner)).owner == await bus.lease_holder(LEASE)


async def test_an_owned_value_that_expired_is_free_for_another_owner(bus: Bus, other: Bus) -> None:
    assert await bus.put_owned(KEY, "a", b"1", expiry_ms=SHORT_MS, channel=CHANNEL)

    async def is_free() -> bool:
        return await other.put_owned(KEY, "b", b"2", expiry_ms=LONG_MS, channel=CHANNEL)

    await eventually(is_free, what="the end of an owned value")
    assert not await bus.put_owned(KEY, "a", b"3", expiry_ms=LONG_MS, channel=CHANNEL)


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


# The channel


async def test_what_is_published_arrives_in_order_at_everyone_who_listens_to_that_channel(bus: Bus, other: Bus) -> None:
    sent = [b"%d" % number for number in range(200)]
    async with listening(bus.listen(CHANNEL)) as one, listening(other.listen(CHANNEL)) as two:
        for payload in sent:
            await bus.publish(CHANNEL + "2", b"elsewhere")
            await bus.publish(CHANNEL, payload)
        assert [await one.next() for _ in sent] == sent
        assert [await two.next() for _ in sent] == sent


async def test_a_subscription_begins_with_back_and_misses_nothing_after_it(bus: Bus, other: Bus) -> None:
    await bus.publish(CHANNEL, b"before")
    async with listening(other.listen(CHANNEL), stands=False) as ear:
        assert isinstance(await ear.next(), Back)
        await bus.publish(CHANNEL, b"after")
        assert await ear.next() == b"after"


async def test_a_reader_that_is_too_slow_is_told_that_it_lost_messages(bus: Bus, other: Bus) -> None:
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


# The lease


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
    first = await taken(bus, "a", above=2**53 - 9)
    assert first.term == 2**53 - 8
    assert await bus.put_fenced(KEY, b"1", epoch=2**52 + 1, fence=first, channel=CHANNEL)
    assert not await bus.put_fenced(KEY, b"2", epoch=2**52, fence=first, channel=CHANNEL)
    await bus.release(first)
    assert (await taken(bus, "b")).term == 2**53 - 7


async def test_a_bus_that_lost_everything_does_not_turn_the_term_back(world: World, bus: Bus) -> None:
    fence = await taken(bus, "a", above=17)
    assert fence.term == 18
    emptied = world.emptied()
    assert not await emptied.renew(fence, expiry_ms=LONG_MS)
    assert (await taken(emptied, "b", above=fence.term)).term > fence.term


async def test_a_lease_is_kept_by_renewing_and_its_loss_is_told(bus: Bus, other: Bus) -> None:
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


# Fenced writes


async def test_a_fenced_value_is_written_read_and_published(bus: Bus, other: Bus) -> None:
    fence = await taken(bus, "a")
    async with listening(other.listen(CHANNEL)) as ear:
        assert await bus.put_fenced(KEY, b"first\nline", epoch=1, fence=fence, channel=CHANNEL)
        assert await ear.next() == b"first\nline"
    assert await other.get(KEY) == Stored(b"first\nline", None)
    assert await other.scan(KEY) == {}, "it is not owned"


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


# Documents over it


async def test_two_nodes_see_each_other_and_how_old_their_word_is(bus: Bus, other: Bus) -> None:
    one, two = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    first, second = heartbeat("n1"), heartbeat("n/2 é", incarnation="i2")
    async with listening(two.listen()) as ear:
        assert await one.beat(first)
        assert await two.beat(second)
        assert [await ear.next(), await ear.next()] == [first, second]
    for gossip in (one, two):
        seen = await gossip.nodes()
        assert [entry.heartbeat for entry in seen] == [second, first]
        assert all(0 <= entry.age_ms < 3 * 20_000 for entry in seen)

    async def has_aged() -> bool:
        return all(entry.age_ms >= 5 for entry in await one.nodes())

    await eventually(has_aged, what="an age that grows as the expiry shrinks")


async def test_a_second_process_with_a_nodes_id_is_refused(bus: Bus, other: Bus) -> None:
    one, rival = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    assert await one.beat(heartbeat())
    assert not await rival.beat(heartbeat(incarnation="i2"))
    await rival.leave(Farewell(application_id=APPLICATION, node_id="n1", incarnation="i2"))
    assert [entry.heartbeat.incarnation for entry in await rival.nodes()] == ["i1"]
    await one.leave(Farewell(application_id=APPLICATION, node_id="n1", incarnation="i1"))
    assert await rival.beat(heartbeat(incarnation="i2"))


async def test_a_silent_node_disappears_after_three_heartbeats(bus: Bus) -> None:
    gossip = Gossip(bus, APPLICATION)
    assert await gossip.beat(heartbeat(heartbeat_ms=SHORT_MS))

    async def is_gone() -> bool:
        return not await gossip.nodes()

    await eventually(is_gone, what="the end of a silent node")


async def test_assignments_catalogues_announcements_and_hints_arrive(bus: Bus, other: Bus) -> None:
    one, two = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    assert (await two.assignment(), await two.announcement(), await two.catalogue("x")) == (None, None, None)
    fence = await one.take_lease("n1", above=4, expiry_ms=LONG_MS)
    assert fence is not None
    assert await two.take_lease("n2", above=4, expiry_ms=LONG_MS) is None
    assert await two.lease_holder() == "n1"
    first = assignment(term=fence.term, epoch=1)
    announced = Announcement(application_id=APPLICATION, query_id="l1", stores=[AnnouncedStore(operator_id=0)])
    hint = CommitHint(application_id=APPLICATION, version=8)
    catalogue = Catalogue(application_id=APPLICATION, lineage="l1", partitions=2, stores=[])
    async with listening(two.listen()) as ear:
        assert await one.write_assignment(first, fence)
        assert not await one.write_assignment(first, fence)
        await one.announce(announced)
        await one.hint(hint)
        assert [await ear.next() for _ in range(3)] == [first, announced, hint]
    await one.write_catalogue(digest_of(catalogue), catalogue)
    assert await two.assignment() == first
    assert await two.announcement() == announced
    assert await two.catalogue(digest_of(catalogue)) == catalogue
    assert await one.keep_lease(fence, expiry_ms=LONG_MS)
    await one.give_lease_up(fence)
    assert await two.lease_holder() is None
    assert not one.refused
    assert not two.refused


def changed(message: Message, **fields: object) -> bytes:
    """A heartbeat's envelope around other fields."""
    return b"heartbeat\n" + orjson.dumps({**message.model_dump(mode="json"), **fields})


BAD_HEARTBEATS = {
    "empty": b"",
    "no envelope": b"garbage without a line end",
    "not JSON": b"heartbeat\n{not json",
    "not an object": b"heartbeat\n[1]",
    "not UTF-8": b"heartbeat\n\xff\xfe",
    "deeply nested": b"heartbeat\n" + b"[" * 100_000,
    "a field is missing": b'heartbeat\n{"format":1,"application_id":"flights"}',
    "a field of another type": changed(heartbeat(), sequence="5"),
    "out of range": changed(heartbeat(), end_version=-1),
    "two ways to write a task": changed(heartbeat(), held=["0_01"]),
    "oversized": changed(heartbeat(), padding="x" * MAX_MESSAGE_BYTES),
    "of another application": changed(heartbeat(), application_id="trains"),
    "of a later format": changed(heartbeat(), format=2),
    "of an unknown kind": changed(heartbeat()).replace(b"heartbeat\n", b"heartbeats\n", 1),
}


@pytest.mark.parametrize("bad", BAD_HEARTBEATS.values(), ids=BAD_HEARTBEATS)
async def test_a_bad_document_is_counted_and_left_out_and_good_ones_still_arrive(bus: Bus, bad: bytes) -> None:
    gossip = Gossip(bus, APPLICATION)
    good = heartbeat("n2", incarnation="i2")
    async with listening(gossip.listen()) as ear:
        written = await bus.put_owned(gossip.names.node("n1"), "x", bad, expiry_ms=LONG_MS, channel=CHANNEL)
        assert written
        assert await gossip.beat(good)
        assert await ear.next() == good
        assert gossip.refused.total() == 1
    assert [entry.heartbeat for entry in await gossip.nodes()] == [good]
    assert gossip.refused.total() == 2
    assert gossip.refused["heartbeat"] >= 1
    await bus.put(gossip.names.assignment, bad)
    assert await gossip.assignment() is None
    assert gossip.refused["assignment"] == 1


async def test_unknown_fields_are_ignored_so_that_releases_mix(bus: Bus) -> None:
    gossip = Gossip(bus, APPLICATION)
    newer = changed(heartbeat(), mood="sunny", endpoint={"host": "127.0.0.1", "port": 7101, "scheme": "https"})
    async with listening(gossip.listen()) as ear:
        await bus.put_owned(gossip.names.node("n1"), "i1", newer, expiry_ms=LONG_MS, channel=CHANNEL)
        assert await ear.next() == heartbeat()
    assert [entry.heartbeat for entry in await gossip.nodes()] == [heartbeat()]
    assert not gossip.refused


async def test_a_heartbeat_under_another_nodes_key_is_counted_and_left_out(bus: Bus) -> None:
    gossip = Gossip(bus, APPLICATION)
    key = gossip.names.node("n2")
    await bus.put_owned(key, "i1", enveloped(heartbeat("n1")), expiry_ms=LONG_MS, channel=CHANNEL)
    assert await gossip.nodes() == []
    assert gossip.refused["heartbeat"] == 1


async def test_applications_do_not_hear_or_see_each_other(bus: Bus, other: Bus) -> None:
    flights, trains = Gossip(bus, APPLICATION), Gossip(other, "flights}:x")
    async with listening(trains.listen()) as ear:
        await flights.beat(heartbeat())
        await trains.hint(CommitHint(application_id="flights}:x", version=1))
        assert await ear.next() == CommitHint(application_id="flights}:x", version=1)
    assert await trains.nodes() == []
    assert not trains.refused
