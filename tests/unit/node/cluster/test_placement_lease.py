"""Which node may assign: by the lease, by what others follow, and over a bus that lost something."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.cluster.placement_world import BEAT_MS, TASKS, World, beat, turns_until_written

from understudy_node.cluster.assignor import Assignor
from understudy_node.cluster.placement import LOOK_AGAIN_HEARTBEATS
from understudy_shared.bus.base import BusError
from understudy_shared.bus.messages import Assignment

LIMIT_S = 20.0


async def test_a_node_that_does_not_know_what_others_follow_leaves_the_lease_to_them() -> None:
    world = World()
    first = await world.first(world.placement("a"), [beat("a"), beat("b")])
    world.lose_all()
    nodes = [beat("b", at=first.order), beat("c")]
    stranger, other = world.placement("c"), world.placement("b")
    assert await world.turn(stranger, nodes, node="c") is None
    assert stranger.fence is None
    world.known["b"] = first
    written = await world.turn(other, nodes, node="b")
    assert written is not None
    assert written.order == (2, 2)
    assert "b" in {task.active for task in written.tasks.values()}


@pytest.mark.parametrize("rubbish", [b"by hand", None])
async def test_an_assignment_that_was_deleted_or_damaged_is_written_again_though_nothing_changed(
    rubbish: bytes | None,
) -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    key = world.gossip.names.assignment
    if rubbish is None:
        world.bus._values.pop(key)
    else:
        await world.bus.put(key, rubbish)
    began_ms = world.clock.monotonic_ms()
    nodes = [beat("a", at=first.order), beat("b", at=first.order)]
    written = await turns_until_written(world, placement, nodes)
    assert written.tasks == first.tasks
    assert await world.gossip.assignment() == written
    assert world.clock.monotonic_ms() - began_ms <= LOOK_AGAIN_HEARTBEATS * BEAT_MS


async def test_a_turn_that_was_held_up_on_its_way_assigns_nothing() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    world.clock.advance(BEAT_MS)
    late = await placement.turn(
        nodes=[beat("a", at=first.order)],
        tasks=TASKS,
        highest=first.order,
        known=first,
        began_ms=world.clock.monotonic_ms() - BEAT_MS,
    )
    assert late is None
    assert await world.turn(placement, [beat("a", at=first.order)]) is not None


class SlowAssignor:
    """Works on in its thread until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def assign(self, *args: Any, **more: Any) -> Any:
        assert self.released.wait(LIMIT_S)
        return Assignor(num_standby_replicas=1, max_warmup_replicas=2).assign(*args, **more)


@pytest.mark.parametrize("bus_fails", [False, True])
async def test_an_assignor_that_works_for_longer_than_the_lease_holds_keeps_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch, bus_fails: bool
) -> None:
    world = World()
    placement = world.placement()
    monkeypatch.setattr(placement, "_heartbeat_ms", 10)
    slow = SlowAssignor()
    monkeypatch.setattr(placement, "_assignor", slow)
    heartbeats = 0

    async def meanwhile() -> None:
        nonlocal heartbeats
        heartbeats += 1
        world.clock.advance(15)  # the lease holds for 20 ms
        if heartbeats == 5:
            slow.released.set()
        if bus_fails and heartbeats == 2:
            raise BusError("it fails once")

    async def turn() -> Assignment | None:
        now_ms = world.clock.monotonic_ms()
        nodes, highest, known = [beat("a"), beat("b")], (0, 0), None
        return await placement.turn(
            nodes=nodes, tasks=TASKS, highest=highest, known=known, began_ms=now_ms, meanwhile=meanwhile
        )

    assert await turn() is None
    world.clock.advance(15)
    if bus_fails:
        with pytest.raises(BusError):
            await turn()
        assert heartbeats >= 5, "the thread is waited for"
        assert await world.gossip.assignment() is None
        world.clock.advance(100)
    written = await turn()
    assert written is not None
    assert heartbeats >= 5
    assert await world.gossip.assignment() == written
