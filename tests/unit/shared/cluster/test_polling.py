"""Asking nodes while Redis is away: everybody once in a round, few at a time, the later assignment wins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from tests.support.router.tables import TASK, assigned, beat, task

from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.follower import Polls
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls


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
    """Nodes that nobody has heard of, all in one assignment."""
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
