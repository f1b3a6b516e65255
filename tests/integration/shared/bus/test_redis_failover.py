"""A planned failover of a Redis whose address stays: open connections lead to the old primary, which lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.support.bus.address import Address, address_of
from tests.support.bus.documents import APPLICATION, Ear, bus_of, eventually, listening
from tests.support.bus.redis_server import RedisServer, redis_server

from understudy_shared.bus import redis_pools, redis_subscription
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.gossip import Names
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_sync import SyncPublisher

CHANNEL = Names(APPLICATION).channel
KEY = "us:{flights}:key"


@pytest.fixture
def old() -> Iterator[RedisServer]:
    with redis_server(port=0) as running:
        yield running


@pytest.fixture
def new(old: RedisServer) -> Iterator[RedisServer]:
    """A replica of the old one."""
    with redis_server(port=0) as running:
        running.command("REPLICAOF", "127.0.0.1", str(old.port))
        yield running


async def written(bus: RedisBus, server: RedisServer) -> None:
    """Return when a write arrives at this server, and at that as a primary."""

    async def arrives() -> bool:
        with suppress(BusError):
            await bus.put(KEY, b"after")
        role: Any = await asyncio.to_thread(server.command, "ROLE")
        value: Any = await asyncio.to_thread(server.command, "GET", KEY)
        return role[0] == b"master" and value is not None and bytes(value).endswith(b"after")

    await eventually(arrives, what="a write that arrives at the new primary")


async def heard_at(server: RedisServer, ear: Ear[Any], other: RedisServer) -> None:
    """Return when the subscription is at this server, and at the other one no more."""

    async def is_there() -> bool:
        there: Any = await asyncio.to_thread(server.command, "PUBSUB", "NUMSUB", CHANNEL)
        elsewhere: Any = await asyncio.to_thread(other.command, "PUBSUB", "NUMSUB", CHANNEL)
        return bool(there[1] == 1 and elsewhere[1] == 0)

    await eventually(is_there, what="the subscription at the new primary")
    await asyncio.to_thread(server.command, "PUBLISH", CHANNEL, b"here")
    heard = [await ear.next()]
    while heard[-1] != b"here":
        heard.append(await ear.next())
    kinds = [type(each) for each in heard if isinstance(each, Lost | Back)]
    assert kinds, "it was told to read the keys again"
    assert kinds == [Lost, Back] * (len(kinds) // 2)


def switch(address: Address, old: RedisServer, new: RedisServer) -> None:
    """Make the replica the primary, and the primary its replica."""
    new.command("REPLICAOF", "NO", "ONE")
    address.server = new
    old.command("REPLICAOF", "127.0.0.1", str(new.port))


async def test_after_a_failover_behind_an_address_that_stays_writes_and_messages_go_to_the_new_primary(
    old: RedisServer, new: RedisServer
) -> None:
    async with address_of(old) as address, bus_of(address.url) as bus, listening(bus.listen(CHANNEL)) as ear:
        await asyncio.gather(*(bus.put(f"{KEY}{number}", b"before") for number in range(8)))
        switch(address, old, new)
        with pytest.raises(BusError, match=r"(?i)read.?only.*primary"):
            await bus.put(KEY, b"refused")
        await written(bus, new)
        await heard_at(new, ear, old)
        await asyncio.gather(*(bus.put(f"{KEY}{number}", b"after") for number in range(8)))


async def test_who_only_listens_follows_the_address_too(
    old: RedisServer, new: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (redis_pools, redis_subscription):
        monkeypatch.setattr(module, "PRIMARY_CHECK_MS", 50)
    async with address_of(old) as address, bus_of(address.url) as bus, listening(bus.listen(CHANNEL)) as ear:
        assert await bus.get(KEY) is None
        switch(address, old, new)
        await heard_at(new, ear, old)


@pytest.mark.parametrize("refusal", ["NOREPLICAS", "MASTERDOWN"])
async def test_a_server_that_goes_on_to_refuse_is_left_for_the_one_that_the_address_leads_to(
    refusal: str, old: RedisServer
) -> None:
    with redis_server(port=0) as new:
        async with address_of(old) as address, bus_of(address.url) as bus, listening(bus.listen(CHANNEL)) as ear:
            await bus.put(KEY, b"before")
            if refusal == "NOREPLICAS":
                old.command("CONFIG", "SET", "min-replicas-to-write", "1")
            else:
                old.command("CONFIG", "SET", "replica-serve-stale-data", "no")
                old.command("REPLICAOF", "127.0.0.1", "1")
            address.server = new
            await written(bus, new)
            await heard_at(new, ear, old)


async def test_a_connection_that_breaks_while_its_server_refuses_takes_the_others_along(old: RedisServer) -> None:
    with redis_server(port=0) as new:
        async with address_of(old) as address, bus_of(address.url) as bus, listening(bus.listen(CHANNEL)) as ear:
            old.command("CONFIG", "SET", "min-replicas-to-write", "1")
            with pytest.raises(BusError, match="replicas"):
                await bus.put(KEY, b"refused")
            address.server = new
            old.command("CLIENT", "KILL", "TYPE", "normal")
            await written(bus, new)
            await heard_at(new, ear, old)


async def test_the_drivers_hints_go_to_the_new_primary(old: RedisServer, new: RedisServer) -> None:
    """A replica takes PUBLISH, and tells no subscriber of the primary."""
    async with address_of(old) as address, bus_of(new.url) as bus:
        publisher = SyncPublisher(address.url, APPLICATION)
        await asyncio.to_thread(publisher.hint, 1)
        switch(address, old, new)
        async with listening(bus.listen(CHANNEL)) as ear:

            async def is_heard() -> bool:  # its deadline is short
                await asyncio.to_thread(publisher.hint, 2)
                return publisher.failures == 0

            await eventually(is_heard, what="a hint that is given")
            assert isinstance(await ear.next(), bytes)
        publisher.close()
