"""When a process reads all keys of the bus, and when and whom it asks instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.support.bus.documents import APPLICATION, assignment, heartbeat
from tests.support.bus.fragile_bus import FragileBus
from tests.support.cluster.fake_cluster import until
from tests.support.router.tables import TASK, assigned, beat, task

from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip, Spoken
from understudy_shared.bus.messages import Assignment, Farewell, Heartbeat
from understudy_shared.cluster.follower import ClusterFollower, Polls
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.cluster.view import ClusterView


class Recorder:
    """A part that counts, and whose keys are read when `may_read` is set."""

    def __init__(self) -> None:
        self.heard: list[Spoken] = []
        self.nodes: list[list[str]] = []
        self.read: list[list[str]] = []
        self.lost: list[str] = []
        self.asks = 0
        self.fails = False
        self.may_read = asyncio.Event()
        self.may_read.set()

    def hear(self, heard: Spoken) -> None:
        self.heard.append(heard)

    def take_nodes(self, seen: list[AgedHeartbeat]) -> None:
        self.nodes.append([each.heartbeat.node_id for each in seen])

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        self.read.append([each.heartbeat.node_id for each in seen])
        await self.may_read.wait()
        if self.fails:
            raise BusError("it was taken away")

    def bus_lost(self, why: str) -> None:
        self.lost.append(why)

    async def ask_others(self) -> None:
        self.asks += 1


@asynccontextmanager
async def following(bus: FragileBus) -> AsyncIterator[tuple[ClusterFollower, Recorder]]:
    gossip, part = Gossip(bus, APPLICATION), Recorder()
    view = ClusterView(lambda kind, why: None, lambda: (None, 0))
    follower = ClusterFollower(gossip, view, part, heartbeat_ms=lambda: 10, clock=SystemClock())
    tasks = [asyncio.ensure_future(follower.run()), asyncio.ensure_future(follower.go_on_without_the_bus())]
    try:
        yield follower, part
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_keys_are_read_at_each_subscription_and_nodes_are_asked_only_in_between() -> None:
    bus = FragileBus()
    assert await Gossip(bus, APPLICATION).beat(heartbeat("n1"))
    async with following(bus) as (follower, part):
        await until(lambda: follower.is_current)
        assert (part.read, part.asks, part.lost) == ([["n1"]], 0, [])
        bus.turn(away=True)
        await until(lambda: part.asks >= 2)
        assert not follower.is_current
        assert follower.is_away
        bus.turn(away=False)
        await until(lambda: follower.is_current)
        assert part.read == [["n1"]] * 2
        assert not follower.is_away
        assert set(part.lost) == {"it was taken away"}


async def test_keys_that_cannot_be_read_are_read_again_before_the_view_counts() -> None:
    bus = FragileBus()
    async with following(bus) as (follower, part):
        await until(lambda: follower.is_current)
        part.fails = True
        await follower.read()
        assert follower.is_away
        assert not follower.is_current
        part.fails = False
        await follower.read_if_required()
        assert follower.is_current
        await follower.read_if_required()
        assert len(part.read) == 3, "once is enough"


async def test_the_keys_of_nodes_are_taken_in_before_others_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat or a farewell that comes meanwhile is later than they are."""
    bus = FragileBus()
    assert await Gossip(bus, APPLICATION).beat(heartbeat("n1"))
    async with following(bus) as (follower, part):
        await until(lambda: follower.is_current)
        hangs = asyncio.Event()

        async def assignment(gossip: Gossip) -> None:
            await hangs.wait()

        monkeypatch.setattr(Gossip, "assignment", assignment)
        reading = asyncio.ensure_future(follower.read())
        await until(lambda: part.nodes == [["n1"]] * 2)
        assert len(part.read) == 1
        hangs.set()
        await reading


async def test_who_ends_to_hear_heartbeats_hears_the_rest_and_reads_the_keys_again() -> None:
    bus = FragileBus()
    gossip = Gossip(bus, APPLICATION)
    async with following(bus) as (follower, part):
        await until(lambda: follower.is_current)
        await gossip.beat(heartbeat("n1"))
        await until(lambda: len(part.heard) == 1)
        follower.hear_heartbeats(False)
        await until(lambda: follower.is_current and not follower.hears_heartbeats)
        assert part.read == [[], ["n1"]]
        await gossip.beat(heartbeat("n1", sequence=2))
        await gossip.leave(Farewell(application_id=APPLICATION, node_id="n1", incarnation="i1"))
        await until(lambda: len(part.heard) == 2)
        assert isinstance(part.heard[-1], Farewell)
        follower.hear_heartbeats(True)
        await until(lambda: follower.is_current and follower.hears_heartbeats)
        await gossip.beat(heartbeat("n1", sequence=3))
        await until(lambda: len(part.heard) == 3)


async def test_a_change_of_what_is_known_is_handed_over_whole_and_any_other_is_read_from_its_key() -> None:
    bus = FragileBus()
    gossip = Gossip(bus, APPLICATION)
    fence = await gossip.take_lease("n1", above=0, expiry_ms=600_000)
    assert fence is not None
    first, *later = (assignment(term=1, epoch=epoch) for epoch in range(1, 5))
    async with following(bus) as (follower, part):
        await until(lambda: follower.is_current)
        follower._view.follow(first)
        assert await gossip.write_assignment(later[0], fence, first)
        await until(lambda: part.heard == later[:1])
        gets = bus.gets
        assert await gossip.write_assignment(later[1], fence, later[0])  # based on what is not followed here
        await until(lambda: part.heard == later[:2])
        assert bus.gets == gets + 1
        follower._view.follow(later[1])
        assert await gossip.write_assignment(later[2], fence, later[1])
        await until(lambda: part.heard == later)
        assert bus.gets == gets + 1


class Nodes:
    """Answers for every node of an assignment, by its address."""

    def __init__(self, assignment: Assignment, beats: Mapping[HostInfo, Heartbeat]) -> None:
        self.latest = assignment
        self.beats = beats
        self.asked: list[HostInfo] = []
        self.fetched: list[HostInfo] = []
        self.most_at_once = 0
        self._now = 0

    async def heartbeat(self, host: HostInfo) -> Heartbeat:
        self.asked.append(host)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        if host not in self.beats:
            raise NodeCallError("nobody there")
        return self.beats[host]

    async def assignment(self, host: HostInfo) -> Assignment:
        self.fetched.append(host)
        await asyncio.sleep(0)
        return self.latest


def world(count: int) -> tuple[Tables, Nodes, Polls]:
    names = [f"n{number:03}" for number in range(count)]
    latest = assigned({TASK: task(names[0], *names[1:])}, order=(2, 5))
    endpoints = {name: latest.members[name].model_copy(update={"port": 7000 + at}) for at, name in enumerate(names)}
    latest = latest.model_copy(update={"members": endpoints})
    beats = {endpoints[name].host_info(): beat(name, endpoint=endpoints[name], term=2, epoch=5) for name in names}
    tables, nodes = Tables(), Nodes(latest, beats)

    def heard(heartbeat: Heartbeat) -> None:
        tables.heard(heartbeat, age_ms=0, now_ms=0)

    def take(assignment: Assignment) -> None:
        tables.assigned(assignment, 0)

    return tables, nodes, Polls(cast(NodeCalls, nodes), tables, heard=heard, assigned=take)


async def test_one_seed_leads_to_everybody_and_each_is_asked_once() -> None:
    tables, nodes, polls = world(50)
    await polls.poll_all([HostInfo("127.0.0.1", 7003), HostInfo("nobody", 1)])
    assert set(tables.nodes) == {f"n{number:03}" for number in range(50)}
    assert sorted(nodes.asked, key=str) == sorted({*nodes.beats, HostInfo("nobody", 1)}, key=str)
    assert tables.assignment == nodes.latest


async def test_the_latest_assignment_is_asked_of_a_node_that_follows_it() -> None:
    tables, nodes, polls = world(3)
    assert await polls.latest_assignment() is None, "nobody is heard"
    tables.heard(beat("old", term=1, epoch=9), age_ms=0, now_ms=0)
    tables.heard(next(iter(nodes.beats.values())), age_ms=0, now_ms=0)
    assert await polls.latest_assignment() == nodes.latest
    assert nodes.fetched == [next(iter(nodes.beats))]


async def test_what_another_node_says_at_the_address_of_a_node_is_dropped() -> None:
    tables, nodes, polls = world(2)
    (first, second) = nodes.beats
    assert await polls.poll(first, expected="n001") == "n000"
    assert (dict(tables.nodes), nodes.fetched) == ({}, [])
    assert await polls.poll(second, expected="n001") == "n001"
    assert tables.assignment == nodes.latest
