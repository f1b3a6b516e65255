"""The bus when Redis is away, killed, frozen, emptied, or holds what others wrote."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest
import uvloop
from redis.asyncio.connection import AbstractConnection
from tests.support.bus.documents import APPLICATION, assignment, eventually, heartbeat, listening
from tests.support.bus.redis_server import RedisServer, redis_server

from understudy_shared.bus.base import Back, BusError, Lost, Stored
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.redis_bus import MAX_CONNECTIONS, RedisBus

CHANNEL = "us:{flights}:events"
CALL_MS = 1000
"""Deadline of a call here: long enough for a machine under load, short enough to wait for."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(port=0) as running:
        yield running


@pytest.fixture
async def bus(server: RedisServer) -> AsyncIterator[RedisBus]:
    bus = RedisBus(server.url, call_timeout_ms=CALL_MS)
    yield bus
    await bus.close()


async def answers(bus: RedisBus) -> bool:
    """Whether calls succeed."""
    try:
        await bus.put("us:{flights}:probe", b"1")
    except BusError:
        return False
    return True


async def test_a_redis_that_is_not_there_is_named_and_waited_for() -> None:
    with redis_server(running=False) as server:
        bus = RedisBus(server.url, call_timeout_ms=CALL_MS)
        with pytest.raises(BusError, match="cannot be reached") as caught:
            await bus.get("us:{flights}:key")
        assert caught.value.where == server.url
        assert caught.value.fix
        async with listening(bus.listen(CHANNEL), stands=False) as ear:
            waiting = asyncio.ensure_future(ear.next())
            with pytest.raises(BusError):
                await bus.publish(CHANNEL, b"nobody hears it")
            server.start()
            assert isinstance(await waiting, Back), "nothing was lost that had never stood"
            await bus.publish(CHANNEL, b"heard")
            assert await ear.next() == b"heard"
        await bus.close()


async def test_a_wrong_password_says_so_and_no_message_has_it(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "requirepass", "right")
    wrong = server.url.replace("://", "://:wrong@", 1)
    bus = RedisBus(wrong, call_timeout_ms=CALL_MS)
    with pytest.raises(BusError, match="refused the login") as caught:
        await bus.get("us:{flights}:key")
    assert caught.value.where == server.url.replace("://", "://:***@", 1)
    assert ":wrong" not in f"{caught.value} {bus!r}"
    await bus.close()


async def test_a_killed_redis_is_lost_and_then_back_and_messages_flow(server: RedisServer, bus: RedisBus) -> None:
    gossip = Gossip(bus, APPLICATION)
    assert await gossip.beat(heartbeat())
    async with listening(gossip.listen()) as ear:
        server.kill()
        lost = await ear.next()
        assert isinstance(lost, Lost)
        assert server.url in lost.why
        with pytest.raises(BusError, match="cannot be reached"):
            await gossip.beat(heartbeat(sequence=2))
        server.start()
        assert isinstance(await ear.next(), Back)
        assert await gossip.nodes() == [], "it keeps nothing"
        assert await gossip.beat(heartbeat(sequence=3))
        assert await ear.next() == heartbeat(sequence=3)


async def test_no_call_after_a_restart_fails_because_of_an_old_connection(server: RedisServer) -> None:
    bus = RedisBus(server.url, call_timeout_ms=10_000)  # a crowd takes its time on a busy machine

    async def crowd() -> None:
        await asyncio.gather(*(bus.put(f"us:{{flights}}:{number}", b"1") for number in range(4 * MAX_CONNECTIONS)))

    async with listening(bus.listen(CHANNEL)) as ear:
        await crowd()
        server.kill()
        await ear.until(Lost)
        server.start()
        await ear.until(Back)
        await crowd()
    assert await bus.get("us:{flights}:0") == Stored(b"1", None)
    await bus.close()


async def test_a_frozen_redis_ends_calls_at_their_deadline_and_loses_the_subscription(
    server: RedisServer, bus: RedisBus
) -> None:
    async with listening(bus.listen(CHANNEL)) as ear:
        await bus.put("us:{flights}:key", b"1")
        server.pause()
        calls = [
            bus.get("us:{flights}:key"),
            bus.scan("us:{flights}:"),
            bus.put("us:{flights}:key", b"2"),
            bus.put_owned("us:{flights}:key", "a", b"3", expiry_ms=1000, channel=CHANNEL),
            bus.publish(CHANNEL, b"4"),
            bus.acquire("us:{flights}:lease", "us:{flights}:term", "a", above=0, expiry_ms=1000),
            *(bus.get("us:{flights}:key") for _ in range(2 * MAX_CONNECTIONS)),
        ]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, BusError) for end in ends), ends
        assert "did not answer" in str(ends[0])
        assert isinstance(await ear.next(), Lost)
        server.resume()
        assert isinstance((await ear.until(Back))[-1], Back)

        async def is_back() -> bool:
            return await answers(bus)

        await eventually(is_back, what="calls that succeed again")
        await bus.publish(CHANNEL, b"last")
        heard = await ear.next()
        while heard != b"last":
            heard = await ear.next()


async def test_a_quiet_subscription_to_a_redis_that_lives_is_not_lost(server: RedisServer) -> None:
    bus = RedisBus(server.url, call_timeout_ms=1000)
    calling = RedisBus(server.url, call_timeout_ms=10_000)
    pings = 0
    async with listening(bus.listen(CHANNEL)) as ear:
        heard = asyncio.ensure_future(ear.next())
        while pings < 3:  # each was answered in time, or the subscription would be lost
            stats = server.command("INFO", "commandstats")
            assert isinstance(stats, dict)
            pings = stats.get("cmdstat_ping", {"calls": 0})["calls"]
            await asyncio.sleep(0.005)
        await calling.publish(CHANNEL, b"still there")
        assert await heard == b"still there"
    await bus.close()
    await calling.close()


async def test_a_connection_that_is_closed_while_a_channel_is_asked_for_is_made_again(
    server: RedisServer, bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, closed = AbstractConnection._send_packed_command, list[AbstractConnection]()

    async def closed_meanwhile(connection: AbstractConnection, command: Sequence[bytes]) -> None:
        if not closed and b"SUBSCRIBE" in b"".join(command):
            closed.append(connection)
            await connection.disconnect(nowait=True)
        await send(connection, command)

    async with listening(bus.listen(CHANNEL)) as first:
        monkeypatch.setattr(AbstractConnection, "_send_packed_command", closed_meanwhile)
        async with listening(bus.listen("us:{flights}:others"), stands=False) as second:
            await second.until(Back)
            await first.until(Back)
            await bus.publish(CHANNEL, b"heard")
            assert await first.next() == b"heard"
    assert closed


async def test_what_others_wrote_under_our_keys_is_left_out_and_overwritten(server: RedisServer, bus: RedisBus) -> None:
    gossip = Gossip(bus, APPLICATION)
    names = gossip.names
    foreign: list[tuple[bytes | str | int, ...]] = [
        ("SET", names.node("n1"), "garbage"),
        ("RPUSH", names.node("n2"), "a", "list"),
        ("SET", names.node("n3"), b"us1 owned i3"),
        ("SET", names.node("n4"), b"us2 owned i4\nfrom the future"),
        ("SET", names.nodes.encode() + b"\xff\xfe", b"us1 owned i5\n"),
        ("SET", names.assignment, b"assignment\n" + assignment(term=1, epoch=1).encode()),
        ("HSET", names.announcement, "a", "hash"),
        ("SET", names.term, "many"),
    ]
    for words in foreign:
        server.command(*words)
    assert await gossip.nodes() == []
    assert (await gossip.assignment(), await gossip.announcement()) == (None, None)
    assert gossip.refused == {"assignment": 1, "announcement": 1}
    for number in range(1, 5):
        assert await gossip.beat(heartbeat(f"n{number}"))
    assert [seen.heartbeat.node_id for seen in await gossip.nodes()] == ["n1", "n2", "n3", "n4"]
    fence = await gossip.take_lease("n1", above=3, expiry_ms=600_000)
    assert fence is not None
    assert fence.term == 4
    assert await gossip.write_assignment(assignment(term=4, epoch=1), fence)
    assert await gossip.assignment() == assignment(term=4, epoch=1)


async def test_one_connection_carries_all_listeners_and_each_learns_of_its_loss(
    server: RedisServer, bus: RedisBus
) -> None:
    async with AsyncExitStack() as stack:
        channels = [f"us:{{{number}}}:events" for number in range(20)]
        ears = [await stack.enter_async_context(listening(bus.listen(channel))) for channel in channels]
        assert server.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        for ear in ears:
            assert isinstance(await ear.next(), Lost)
            assert isinstance(await ear.next(), Back)
        for channel, ear in zip(channels, ears, strict=True):
            await bus.publish(channel, channel.encode())
            assert await ear.next() == channel.encode()


def test_on_the_services_loop_a_peer_that_resets_its_connections_at_any_moment_is_a_bus_that_is_away() -> None:
    """A proxy before a dead Redis does this. uvloop reports a lost connection otherwise than asyncio."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        resetting = threading.Thread(target=_reset_every_connection, args=[port], name="resets")
        resetting.start()

        async def ask() -> None:
            bus = RedisBus(f"redis://127.0.0.1:{port.getsockname()[1]}/0")
            for _ in range(400):
                with pytest.raises(BusError):
                    await bus.get("us:{flights}:key")
            await bus.close()

        try:
            uvloop.run(ask())
        finally:
            port.shutdown(socket.SHUT_RDWR)
            resetting.join()


def _reset_every_connection(port: socket.socket) -> None:
    chance = random.Random(1)
    while True:
        try:
            taken, _ = port.accept()
        except OSError:
            return
        time.sleep(chance.uniform(0, 0.0006))  # before, while and after the client says its first words
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        taken.close()
