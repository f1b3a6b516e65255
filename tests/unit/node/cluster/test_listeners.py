"""Which nodes hear all heartbeats, and how the others notice that they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import heartbeat

from understudy_node.cluster import heartbeat_loop
from understudy_node.cluster.context import MemberContext, Neighbours
from understudy_node.cluster.heartbeat_loop import (
    LEASE_LOOK_HEARTBEATS,
    LOOK_HEARTBEATS,
    HeartbeatListening,
    is_among_first,
)
from understudy_shared.bus.messages import AssignedTask, Assignment, NodeEndpoint
from understudy_shared.cluster.follower import ClusterFollower

IDS = st.sets(st.text("abc-", min_size=1, max_size=5), min_size=1, max_size=12)
BEAT_MS = 1000


@given(ids=IDS, most=st.integers(1, 14), gone=st.integers(0, 11))
def test_so_many_listen_and_those_that_do_go_on_when_another_node_goes(ids: set[str], most: int, gone: int) -> None:
    first = {each for each in ids if is_among_first(each, ids, most)}
    assert len(first) == min(most, len(ids))
    others = ids - {sorted(ids)[gone % len(ids)]}
    assert first & others <= {each for each in others if is_among_first(each, others, most)}


class World:
    """One node of three, of which one listens; and what it asked of the bus."""

    def __init__(self) -> None:
        self.now_ms, self.wanted, self.readings = 0.0, True, 0
        self.lease: str | None = "a"
        self.needs_all = False
        self.neighbours = Neighbours(self.last())
        tasks = {"0_0": AssignedTask(active="a", standbys=("b", "c"))}
        members = {each: NodeEndpoint(host="h", port=1) for each in "abc"}
        self.neighbours.assignment = Assignment(
            application_id="flights", term=1, epoch=1, written_by="a", lineage="l1", partitions=1, tasks=tasks,
            members=members,
        )  # fmt: skip
        self.read("a", "b", "c")
        context = SimpleNamespace(neighbours=self.neighbours, node_id=self.last(), heartbeat_ms=BEAT_MS, gossip=self)
        self.listening = HeartbeatListening(
            cast(MemberContext, context), cast(ClusterFollower, self), needs_all=lambda: self.needs_all
        )

    def last(self) -> str:
        """The last of them by rank."""
        return next(each for each in "abc" if not is_among_first(each, "abc", 2))

    def read(self, *alive: str) -> None:
        self.neighbours.nodes.clear()
        for each in {*alive, self.last()}:
            self.neighbours.heard(heartbeat(each, heartbeat_ms=BEAT_MS), age_ms=0, now_ms=self.now_ms)

    def hear_heartbeats(self, wanted: bool) -> None:
        self.wanted = wanted

    async def lease_holder(self) -> str | None:
        return self.lease

    async def read_nodes(self) -> None:
        self.readings += 1
        if self.lease is None:
            self.read()

    async def turns(self, heartbeats: int) -> None:
        for _ in range(heartbeats):
            await self.listening.turn(self.now_ms)
            self.now_ms += BEAT_MS


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(heartbeat_loop, "MAX_LISTENERS", 1)
    return World()


async def test_a_node_that_is_not_among_the_first_looks_at_the_keys_seldom_and_takes_nobody_for_dead(
    world: World,
) -> None:
    await world.turns(2 * LOOK_HEARTBEATS)
    assert not world.wanted
    assert 1 <= world.readings <= 4
    assert len(world.neighbours.alive(world.now_ms)) == 3


async def test_a_lease_that_stays_free_shows_that_those_who_listened_are_gone(world: World) -> None:
    await world.turns(1)
    world.lease = None
    await world.turns(4 * LEASE_LOOK_HEARTBEATS)
    assert world.wanted, "it is the first of those that live"
