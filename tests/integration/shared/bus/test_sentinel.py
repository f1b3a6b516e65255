"""A Redis that sentinels name: its clients follow the primary, and no failover turns anything back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.documents import Ear, bus_of, eventually, listening
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.sentinel_trio import SentinelProcess, SentinelTrio, sentinel_trio, sentinel_url, sentinels_of
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, TASKS, VERSION, Cluster, cluster
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.spark.queries import wait_until

from understudy_shared.bus import redis_pools, redis_subscription
from understudy_shared.bus.base import Back, BusError, Lost, Stored
from understudy_shared.bus.gossip import Names
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_sync import SyncPublisher

NAMES = Names(APPLICATION)
KEY = "us:{counting}:key"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(port=0) as running:
        yield running


@pytest.fixture
def usurper() -> Iterator[RedisServer]:
    """A second server; it is no replica of the first."""
    with redis_server(port=0) as running:
        yield running


@pytest.fixture
def three(server: RedisServer) -> Iterator[list[SentinelProcess]]:
    with sentinels_of(server, count=3) as running:
        yield running


@pytest.fixture
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (redis_subscription, redis_pools):
        monkeypatch.setattr(module, "PRIMARY_CHECK_MS", 50)


async def written(bus: RedisBus, payload: bytes) -> None:
    async def succeeds() -> bool:
        try:
            await bus.put(KEY, payload)
        except BusError:
            return False
        return True

    await eventually(succeeds, what="a write that succeeds")


async def heard(ear: Ear[Any], payload: bytes) -> None:
    """Read on until that comes."""
    while await ear.next() != payload:
        pass


def connections(server: RedisServer) -> int:
    """How many connections the server has ever accepted."""
    stats: Any = server.command("INFO", "stats")
    return int(stats["total_connections_received"])


# Sentinels that hang, are gone, or know nothing


@pytest.mark.parametrize("fault", ["frozen", "killed"])
async def test_one_sentinel_of_three_is_enough(three: list[SentinelProcess], fault: str) -> None:
    for sentinel in three[:2]:
        sentinel.pause() if fault == "frozen" else sentinel.kill()
    async with bus_of(sentinel_url(three)) as bus:
        pool: Any = bus._pool
        pool._sentinels.sentinels.sort(  # the one that answers comes last
            key=lambda client: client.connection_pool.connection_kwargs["port"] == three[2].port
        )
        await bus.put(KEY, b"1")
        assert await bus.get(KEY) == Stored(b"1", None)


async def test_without_sentinels_a_call_ends_at_its_deadline_and_says_what_is_missing(
    three: list[SentinelProcess],
) -> None:
    url = sentinel_url(three).replace("://", "://me:secret@")
    for sentinel in three:
        sentinel.pause()
    async with bus_of(url + "?sentinel_password=hidden") as bus:
        with pytest.raises(BusError, match=r"primary of 'us' \(3 of them failed: TimeoutError\)") as caught:
            await bus.get(KEY)
        assert "secret" not in str(caught.value)
        assert "hidden" not in str(caught.value)
    for sentinel in three:
        sentinel.kill()
    async with bus_of(url) as bus:
        with pytest.raises(BusError, match=r"primary of 'us' \(3 of them failed: ConnectionError\)"):
            await bus.get(KEY)


async def test_sentinels_that_know_no_such_service_are_said_so(three: list[SentinelProcess]) -> None:
    async with bus_of(sentinel_url(three).replace("/us/", "/them/")) as bus:
        with pytest.raises(BusError, match="no sentinel names a living primary of 'them'"):
            await bus.get(KEY)


@pytest.mark.usefixtures("checks_often")
async def test_without_sentinels_what_stands_goes_on(server: RedisServer, three: list[SentinelProcess]) -> None:
    async with bus_of(sentinel_url(three)) as bus, listening(bus.listen(NAMES.channel)) as ear:
        publisher = SyncPublisher(sentinel_url(three), APPLICATION)
        publisher.hint(1)
        await bus.publish(NAMES.channel, b"before")
        await heard(ear, b"before")
        made = connections(server)
        for sentinel in three:
            sentinel.kill()
        for number in range(10):  # each is a turn of the subscription, which compares
            await bus.publish(NAMES.channel, b"%d" % number)
            assert await ear.next() == b"%d" % number
            await asyncio.sleep(0.02)
        publisher.hint(2)
        assert isinstance(await ear.next(), bytes)
        assert publisher.failures == 0
        assert connections(server) == made + 1, "of this question alone"
        publisher.close()


async def test_a_wrong_password_for_sentinels_says_so(three: list[SentinelProcess]) -> None:
    for sentinel in three:
        sentinel.command("ACL", "SETUSER", "default", "resetpass", ">right")
    async with bus_of(sentinel_url(three) + "?sentinel_password=right") as bus:
        await bus.put(KEY, b"1")
    async with bus_of(sentinel_url(three) + "?sentinel_password=wrong") as bus:
        with pytest.raises(BusError, match="3 of them failed: AuthenticationError"):
            await bus.get(KEY)


# A server that is the primary no more


async def test_a_server_that_is_a_replica_is_not_used_whatever_sentinels_say(
    server: RedisServer, three: list[SentinelProcess]
) -> None:
    publisher = SyncPublisher(sentinel_url(three), APPLICATION)
    async with bus_of(sentinel_url(three)) as bus:
        await bus.put(KEY, b"1")
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BusError, match=r"(?i)read.?only"):
            await bus.put(KEY, b"2")
        with pytest.raises(BusError, match="is a replica"):
            await bus.get(KEY)
        publisher.hint(1)
        assert publisher.failures == 1, "a replica would take it and tell nobody"
        server.command("REPLICAOF", "NO", "ONE")
        await written(bus, b"3")
    publisher.close()


@pytest.mark.usefixtures("checks_often")
async def test_a_primary_that_was_replaced_and_answers_on_is_left(server: RedisServer, usurper: RedisServer) -> None:
    with sentinels_of(server) as sentinels:
        publisher = SyncPublisher(sentinel_url(sentinels), APPLICATION)
        async with bus_of(sentinel_url(sentinels)) as bus, listening(bus.listen(NAMES.channel)) as ear:
            await asyncio.gather(*(bus.put(f"{KEY}{number}", b"1") for number in range(8)))
            publisher.hint(1)
            assert isinstance(await ear.next(), bytes)
            sentinels[0].name(usurper)
            lost = await ear.next()
            assert isinstance(lost, Lost)
            assert str(usurper.port) in lost.why
            assert isinstance(await ear.next(), Back)
            await asyncio.gather(*(bus.put(f"{KEY}{number}", b"2") for number in range(8)))
            assert server.command("GET", f"{KEY}0") != usurper.command("GET", f"{KEY}0")
            assert usurper.command("DBSIZE") == 8, "no connection to the old one is used again"
            publisher.hint(2)
            assert isinstance(await ear.next(), bytes)
        publisher.close()


async def test_a_connection_that_was_in_use_when_the_primary_moved_is_not_used_for_the_next_call(
    server: RedisServer, usurper: RedisServer
) -> None:
    with sentinels_of(server) as sentinels:
        async with bus_of(sentinel_url(sentinels)) as bus:
            await bus.put(KEY, b"1")
            used = await bus._pool.get_connection()
            sentinels[0].name(usurper)
            await bus.put(KEY + "2", b"on a second connection, which asks")
            await bus._pool.release(used)
            await bus.put(KEY, b"3")
        assert (server.command("DBSIZE"), usurper.command("DBSIZE")) == (1, 2)


# Failovers


@pytest.fixture
def trio() -> Iterator[SentinelTrio]:
    with sentinel_trio() as running:
        yield running


@contextmanager
def at_rest(folder: Path, trio: SentinelTrio) -> Iterator[Cluster]:
    """A settled cluster of three nodes and two routers."""
    checkpoint = HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    with cluster(checkpoint.path, folder, trio.url, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        yield known


def wait_to_be_at(server: RedisServer, known: Cluster) -> None:
    """Return when all listen there, every node has its key there, and no probe reports the bus as away."""
    everybody = [*known.routers, *known.nodes.values()]

    def is_so() -> bool:
        subscribers: Any = server.command("PUBSUB", "NUMSUB", NAMES.channel)
        found: Any = server.command("KEYS", "*")
        return (
            subscribers[1] >= len(everybody)
            and {NAMES.assignment, *map(NAMES.node, known.nodes)} <= {key.decode() for key in found}
            and not any(each.get("/readyz").body["degraded"] for each in everybody)
        )

    wait_until(is_so, what="everybody at the new primary", limit_s=LIMIT_S)


@pytest.mark.full
def test_a_primary_killed_under_load_that_takes_the_last_assignments_with_it_turns_nothing_back(
    tmp_path: Path, trio: SentinelTrio
) -> None:
    publisher = SyncPublisher(trio.url, APPLICATION)
    publisher.hint(VERSION)
    with (
        at_rest(tmp_path, trio) as known,
        reading(*known.routers) as reader,
        heard_assignments(trio.url) as heard,
    ):
        replica = trio.unlink_replica()
        known.start("n4")
        known.wait_to_rest(copies=2, version=VERSION)
        lost = known.router.order()
        old = trio.primary
        assert replica.command("GET", NAMES.assignment) != old.command("GET", NAMES.assignment)
        old.kill()
        assert trio.wait_for_new_primary(old) is replica
        wait_until(partial(_are_past, known, lost), what="an assignment after those that were lost", limit_s=LIMIT_S)
        known.wait_to_rest(copies=2, version=VERSION)
        wait_to_be_at(replica, known)
        wait_until(partial(_is_given, publisher), what="a hint that is given again", limit_s=LIMIT_S)
        reader.wait_for_answers()
    publisher.close()
    orders = [assignment.order for assignment in heard]
    assert orders == sorted(set(orders))
    assert lost in orders


def _is_given(publisher: SyncPublisher) -> bool:
    failures = publisher.failures
    publisher.hint(VERSION)
    return publisher.failures == failures


def _are_past(known: Cluster, order: tuple[int, int]) -> bool:
    """Whether every router has a later assignment; never an earlier one."""
    orders = [router.order() for router in known.routers]
    assert min(orders) >= order, "time went back"
    return min(orders) > order
