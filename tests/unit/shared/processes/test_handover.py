"""Connections on their way to a worker: each has one owner at a time, whichever process hangs or ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.processes.handover import HandedOver, Intake


class Greeter(asyncio.Protocol):
    """Says hello to each client, and no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class World:
    """The supervisor's side and the worker's. The worker takes connections when the test says so."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.worker = theirs.dup()
        self.handed = HandedOver(ours, theirs)
        self.clients: list[socket.socket] = []
        self.taken: list[socket.socket] = []
        self.given_back: list[socket.socket] = []

    def give(self) -> None:
        client, connection = socket.socketpair()
        client.settimeout(10)
        self.clients.append(client)
        assert self.handed.give(connection, 0.0)

    def take(self) -> None:
        """As a worker does: take, and say so."""
        try:
            _, descriptors, _, _ = socket.recv_fds(self.worker, 1, 1)
        except BlockingIOError:
            return
        self.taken += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        self.worker.send(b"c")

    def close(self) -> None:
        for each in (*self.clients, *self.taken, *self.given_back, *self.handed.ended(), self.worker):
            each.close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


async def greeted(world: World) -> list[bytes]:
    """What each client hears until its connection ends."""
    return [await asyncio.to_thread(_all_of, client) for client in world.clients]


def _all_of(client: socket.socket) -> bytes:
    heard = b""
    while part := client.recv(10):
        heard += part
    return heard


async def test_a_connection_that_is_taken_serves_its_client(world: World) -> None:
    world.give()
    intake = Intake(world.worker.dup())
    intake.start(Greeter)
    async with asyncio.timeout(10):
        while not world.handed.taken():  # noqa: ASYNC110  # until then the supervisor keeps the connection open, too
            await asyncio.sleep(0.001)
    assert await greeted(world) == [b"hello"]
    assert world.handed.waiting == 0
    await intake.stop()


async def test_what_is_on_its_way_when_a_worker_stops_taking_is_taken(world: World) -> None:
    intake = Intake(world.worker.dup())
    intake.start(Greeter)
    for _ in range(40):
        world.give()
    await intake.stop()
    assert world.handed.taken() == 40
    assert await greeted(world) == [b"hello"] * 40
    world.give()
    world.given_back += world.handed.take_back()
    assert len(world.given_back) == 1


STEPS = st.lists(st.sampled_from(["give", "take", "acks", "take back"]), max_size=60)


@given(steps=STEPS)
def test_every_connection_is_in_one_place_and_none_is_lost(steps: list[str]) -> None:
    world = World()
    for step in steps:
        if step == "give":
            world.give()
        elif step == "take":
            world.take()
        elif step == "acks":
            world.handed.taken()
        else:
            world.given_back += world.handed.take_back()
    left = world.handed.ended()
    owners = [*world.taken, *world.given_back, *left]
    for number, owner in enumerate(owners):
        owner.sendall(b"%d" % number)
    said = sorted(int(client.recv(10)) for client in world.clients)
    assert said == list(range(len(owners))), "each client is heard of by exactly one owner"
    for each in (*left, *world.clients):
        each.close()
    world.clients.clear()
    for each in (*world.taken, *world.given_back, world.worker):
        each.close()
