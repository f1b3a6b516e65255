"""The place of a node that died, restarts, leaves or is drained, while the delay runs and after it."""

from __future__ import annotations

from tests.support.cluster.placement_world import BEAT_MS, DELAY_MS, World, beat, turns_until_written

from understudy_node.cluster.leader import Placement
from understudy_shared.bus.messages import Assignment


async def settled(world: World, placement: Placement, *, nodes: str = "abc") -> Assignment:
    """The first assignment, of as many nodes as are named."""
    return await world.first(placement, [beat(node_id) for node_id in nodes])


def named(assignment: Assignment) -> set[str]:
    """The nodes that have a place in an assignment."""
    return {node_id for task in assignment.tasks.values() for node_id in task.holders}


async def test_a_node_that_died_keeps_its_place_and_no_role_until_the_delay_is_over() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    died_ms = world.clock.monotonic_ms()
    away = await turns_until_written(world, placement, [beat("a", at=first.order)])
    assert world.clock.monotonic_ms() == died_ms, "roles move at once"
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in away.tasks.values())
    assert set(away.members) == {"a"}, "a node that starts now must not ask it"
    gone = await turns_until_written(world, placement, [beat("a", at=away.order)])
    assert world.clock.monotonic_ms() - died_ms == DELAY_MS
    assert named(gone) == {"a"}


async def test_a_node_that_comes_back_in_time_is_waited_for_anew_when_it_dies_again() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    away = await turns_until_written(world, placement, [beat("a", at=first.order)])
    world.clock.advance(DELAY_MS - BEAT_MS)
    back = await turns_until_written(world, placement, [beat("a", at=away.order), beat("b", version=None)])
    assert set(back.members) == {"a", "b"}
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in back.tasks.values())
    world.clock.advance(BEAT_MS)
    again = await turns_until_written(world, placement, [beat("a", at=back.order)])
    assert "b" in named(again)


async def test_a_node_that_is_leaving_has_no_role_and_keeps_its_tasks_while_it_says_so() -> None:
    world = World()
    placement = world.placement()  # no delay
    first = await settled(world, placement, nodes="ab")
    away = await turns_until_written(world, placement, [beat("a", at=first.order), beat("b", leaving=True)])
    assert all((task.active, task.standbys) == ("a", ("b",)) for task in away.tasks.values())
    gone = await turns_until_written(world, placement, [beat("a", at=away.order)])
    assert named(gone) == {"a"}


async def test_a_node_that_was_drained_keeps_no_place_also_when_another_assigns_by_then() -> None:
    world = World()
    placement, other = (world.placement(node_id, rebalance_delay_ms=DELAY_MS) for node_id in "ac")
    first = await settled(world, placement)
    nodes = [beat("a", at=first.order), beat("b", at=first.order, state="draining"), beat("c", at=first.order)]
    draining = await turns_until_written(world, placement, nodes)
    assert draining.draining == ["b"]
    assert "b" in named(draining)
    world.known["c"] = draining
    await placement.give_up()
    gone = await turns_until_written(
        world, other, [beat("a", at=draining.order), beat("c", at=draining.order)], node="c"
    )
    assert "b" not in named(gone)


async def test_a_new_leader_waits_as_long_as_it_has_seen_the_node_away() -> None:
    world = World()
    holder, other = (world.placement(node_id, rebalance_delay_ms=DELAY_MS) for node_id in "ac")
    first = await settled(world, holder)
    world.known["c"] = first
    nodes = [beat("a", at=first.order), beat("c", at=first.order)]
    away = await turns_until_written(world, holder, nodes)
    assert "b" in named(away)
    world.known["c"] = away
    died_ms = world.clock.monotonic_ms()
    nodes = [beat("a", at=away.order), beat("c", at=away.order)]
    assert await world.turn(other, nodes, node="c") is None
    world.clock.advance(DELAY_MS // 2)
    await holder.give_up()
    late = world.placement("c", rebalance_delay_ms=DELAY_MS)  # had it started now, it would wait for longer
    assert await world.turn(late, nodes, node="c") is None
    await late.give_up()
    gone = await turns_until_written(world, other, nodes, node="c")
    assert "b" not in named(gone)
    assert world.clock.monotonic_ms() - died_ms == DELAY_MS
