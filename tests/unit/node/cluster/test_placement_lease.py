"""Which node may assign: by the lease, by what others follow, and over a bus that lost something."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.cluster.placement_world import BEAT_MS, TASKS, World, beat, turns_until_written

from understudy_node.cluster.assignor import Assignor
from understudy_node.cluster.leader import LOOK_AGAIN_HEARTBEATS
from understudy_shared.bus.base import BusError, Fence
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Assignment

LIMIT_S = 20.0


async def test_only_one_assigns_and_another_takes_over_within_three_heartbeats() -> None:
    world = World()
    holder, other = world.placement("a"), world.placement("b")
    first = await world.first(holder, [beat("a"), beat("b")])
    world.known["b"] = first
    alone = [beat("b", at=first.order)]
    turns = 0
    while await world.turn(other, alone, node="b") is None:
        world.clock.advance(BEAT_MS)
        turns += 1
        assert turns <= 3
    written = await world.gossip.assignment()
    assert written is not None
    assert written.order == (2, 2)
    assert all(task.holders == ("b",) for task in written.tasks.values())


async def test_a_holder_that_slept_does_not_overwrite() -> None:
    world = World()
    slept, other = world.placement("a"), world.placement("b")
    first = await world.first(slept, [beat("a"), beat("b")])
    stale = slept.fence
    assert stale is not None
    world.clock.advance(3 * BEAT_MS)
    world.known["b"] = first
    later = await world.turn(other, [beat("b", at=first.order)], node="b")
    assert later is not None
    assert await world.turn(slept, [beat("a", at=first.order)]) is None
    assert slept.fence is None
    mine = first.model_copy(update={"epoch": 99})
    assert not await world.gossip.write_assignment(mine, stale)
    assert await world.gossip.assignment() == later


async def test_a_bus_that_came_back_empty_gets_the_known_assignment_after_one_expiry_and_no_epoch_goes_back() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    world.lose_all()
    placement.bus_came_back()
    for _ in range(3):
        assert await world.turn(placement, [beat("a", at=first.order)]) is None
        world.clock.advance(BEAT_MS)
    written = await world.turn(placement, [beat("a", at=first.order), beat("b", at=first.order)])
    assert written is not None
    assert written.order == (2, 2)
    assert written.tasks == first.tasks


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


async def test_a_lease_of_a_term_that_others_are_past_is_taken_anew() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    later = first.model_copy(update={"term": 5, "epoch": 9})  # of a Redis that was failed over to this one
    world.known["a"] = later
    written = await world.turn(placement, [beat("a", at=later.order), beat("b", at=later.order)])
    assert written is not None
    assert written.order == (6, 10)


async def test_an_assignment_that_nobody_knows_any_more_is_replaced_by_a_later_one() -> None:
    world = World()
    placement = world.placement()
    nodes = [beat("a", at=(4, 7)), beat("b", at=(4, 7))]
    for _ in range(3):
        assert await world.turn(placement, nodes) is None
        world.clock.advance(BEAT_MS)
    assert await world.turn(placement, nodes) is None  # and now nodes that start together are waited for
    world.clock.advance(BEAT_MS)
    written = await world.turn(placement, nodes)
    assert written is not None
    assert written.order == (5, 8)


class Failing(Gossip):
    """Gossip that loses the answer of one write."""

    lost = False

    async def write_assignment(self, assignment: Assignment, fence: Fence, before: Assignment | None = None) -> bool:
        """Write, and fail once all the same."""
        done = await super().write_assignment(assignment, fence, before)
        if not self.lost:
            self.lost = True
            raise BusError("the answer was lost", where="in this process")
        return done


async def test_a_write_whose_answer_was_lost_is_read_again() -> None:
    world = World()
    placement = world.placement(gossip=Failing(world.bus, "flights"))
    nodes = [beat("a"), beat("b")]
    assert await world.turn(placement, nodes) is None
    world.clock.advance(BEAT_MS)
    with pytest.raises(BusError):
        await world.turn(placement, nodes)
    assert await world.turn(placement, nodes) is None
    stored = await world.gossip.assignment()
    assert stored is not None
    assert stored.order == (1, 1)
    written = await world.turn(placement, [beat("a", at=stored.order)])
    assert written is not None
    assert written.order == (1, 2)


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
