"""Who assigns, and when it does not: over the bus in this process, by a clock that is moved by hand."""

from __future__ import annotations

import pytest

from understudy_node.cluster.placement import LOOK_AGAIN_HEARTBEATS, Layout, Placement
from understudy_shared.bus.base import BusError, Fence
from understudy_shared.bus.gossip import Gossip, Seen
from understudy_shared.bus.local_bus import LocalBus
from understudy_shared.clock import ManualClock
from understudy_shared.messages import Applied, Assignment, Endpoint, Heartbeat

BEAT_MS = 1000
LAYOUT: Layout = ("l1", 2, ["0_0", "0_1"])


def beat(
    node_id: str,
    *,
    at: tuple[int, int] = (0, 0),
    version: int | None = 9,
    state: str = "serving",
    lineage: str | None = "l1",
    partitions: int | None = 2,
    held: list[str] | None = None,
    exceptions: dict[str, Applied] | None = None,
    leaving: bool = False,
) -> Seen:
    """What a node told just now; `at` is the (term, epoch) that it follows."""
    return Seen(
        Heartbeat(
            application_id="flights",
            node_id=node_id,
            incarnation="1",
            sequence=1,
            endpoint=Endpoint(host="127.0.0.1", port=7101),
            leaving=leaving,
            state=state,  # type: ignore[arg-type]  # one of the literals
            heartbeat_ms=BEAT_MS,
            lineage=lineage,
            partitions=partitions,
            end_version=9,
            end_age_ms=0,
            applied=Applied(version=version),
            exceptions=exceptions or {},
            held=held,
            term=at[0],
            epoch=at[1],
        ),
        0,
    )


class World:
    """One bus, one clock, and nodes that may assign."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_ms=50_000)
        self.bus = LocalBus(self.clock)
        self.gossip = Gossip(self.bus, "flights")
        self.known: dict[str, Assignment] = {}
        """What each node saw last."""

    def placement(self, node_id: str = "a", gossip: Gossip | None = None, *, rebalance_delay_ms: int = 0) -> Placement:
        return Placement(
            gossip or self.gossip,
            node_id=node_id,
            incarnation="1",
            heartbeat_ms=BEAT_MS,
            num_standby_replicas=1,
            max_warmup_replicas=2,
            rebalance_delay_ms=rebalance_delay_ms,
            acceptable_recovery_lag=3,
            clock=self.clock,
        )

    async def turn(
        self, placement: Placement, nodes: list[Seen], *, node: str = "a", layout: Layout | None = LAYOUT
    ) -> Assignment | None:
        highest = max(((each.heartbeat.term, each.heartbeat.epoch) for each in nodes), default=(0, 0))
        written = await placement.turn(
            nodes=nodes,
            layout=layout,
            highest=highest,
            known=self.known.get(node),
            began_ms=self.clock.monotonic_ms(),
        )
        if written is not None:
            self.known[node] = written
        return written

    async def first(self, placement: Placement, nodes: list[Seen]) -> Assignment:
        """The very first assignment, by node a."""
        assert await self.turn(placement, nodes) is None
        self.clock.advance(BEAT_MS)
        written = await self.turn(placement, nodes)
        assert written is not None
        return written

    def lose_all(self) -> None:
        """Redis comes back empty: another bus in the place of the first."""
        self.bus.__init__(self.clock)  # type: ignore[misc]  # emptied in place, as FLUSHALL does


async def test_nodes_that_start_together_share_from_the_beginning() -> None:
    world = World()
    placement = world.placement()
    assert await world.turn(placement, [beat("a")]) is None
    world.clock.advance(BEAT_MS)
    written = await world.turn(placement, [beat("a"), beat("b")])
    assert written is not None
    assert written.order == (1, 1)
    assert {each.active for each in written.tasks.values()} == {"a", "b"}
    assert await world.gossip.assignment() == written


@pytest.mark.parametrize("other", [beat("b", state="starting", lineage=None), beat("b", state="starting")])
async def test_a_node_that_is_starting_is_waited_for_but_not_for_ever(other: Seen) -> None:
    world = World()
    placement = world.placement()
    for _ in range(3):
        assert await world.turn(placement, [beat("a"), other]) is None
        world.clock.advance(BEAT_MS)
    written = await world.turn(placement, [beat("a"), other])
    assert written is not None
    assert set(written.members) == {"a"}


async def test_nothing_new_is_written_when_nothing_changed() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    in_step = [beat("a", at=first.order), beat("b", at=first.order)]
    assert await world.turn(placement, in_step) is None
    assert await world.gossip.assignment() == first


@pytest.mark.parametrize("state", ["starting", "failed"])
async def test_a_node_that_does_not_serve_gets_nothing(state: str) -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.turn(placement, [beat("a", at=first.order), beat("b", state=state)])
    assert written is not None
    assert all(task.holders == ["a"] for task in written.tasks.values())


async def test_a_node_that_follows_another_checkpoint_gets_nothing() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.turn(placement, [beat("a", at=first.order), beat("b", lineage="other")])
    assert written is not None
    assert set(written.members) == {"a"}


async def test_a_dead_active_is_replaced_by_its_standby_at_once() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.turn(placement, [beat("a", at=first.order)])
    assert written is not None
    assert written.order == (1, 2)
    assert all(task.active == "a" and not task.standbys for task in written.tasks.values())


async def test_a_node_that_comes_back_is_warm_up_until_its_heartbeat_says_that_it_is_caught_up() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a")])
    joined = await world.turn(placement, [beat("a", at=first.order), beat("b", version=None)])
    assert joined is not None
    assert all(task.warmups == ["b"] for task in joined.tasks.values())
    late = beat("b", at=joined.order, exceptions={"0_1": Applied(version=5, state="RESTORING")})
    written = await world.turn(placement, [beat("a", at=joined.order), late])
    assert written is not None
    assert (written.tasks["0_0"].warmups, written.tasks["0_1"].warmups) == ([], ["b"])


async def test_a_heartbeat_is_read_by_the_assignment_that_its_node_follows() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a")])
    joined = await world.turn(placement, [beat("a", at=first.order), beat("b", version=None)])
    assert joined is not None
    # b has not heard of it: what it holds and how far that is, it tells of the assignment before
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=first.order)]) is None
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=joined.order, held=[])]) is None


async def test_replicas_of_another_layout_are_not_caught_up_but_their_nodes_get_tasks() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    wider: Layout = ("l1", 3, ["0_0", "0_1", "0_2"])
    nodes = [beat("a", at=first.order), beat("b", at=first.order)]
    written = await world.turn(placement, nodes, layout=wider)
    assert written is not None
    assert written.partitions == 3
    assert [written.tasks[key] for key in LAYOUT[2]] == [first.tasks[key] for key in LAYOUT[2]]
    assert len(written.tasks["0_2"].holders) == 2


async def test_a_layout_that_only_one_node_serves_already_is_led_by_that_node() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    nodes = [beat("a", at=first.order, partitions=3), beat("b", at=first.order)]
    written = await world.turn(placement, nodes, layout=("l1", 3, ["0_0", "0_1", "0_2"]))
    assert written is not None
    assert [written.tasks[key].active for key in LAYOUT[2]] == ["a", "a"]


async def test_draining_is_told_and_moves_the_roles_away() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.turn(placement, [beat("a", at=first.order), beat("b", at=first.order, state="draining")])
    assert written is not None
    assert written.draining == ["b"]
    assert all(task.holders == ["a"] for task in written.tasks.values())


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
    assert all(task.holders == ["b"] for task in written.tasks.values())


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


async def test_the_lease_is_given_back_on_leaving() -> None:
    world = World()
    placement, other = world.placement("a"), world.placement("b")
    first = await world.first(placement, [beat("a"), beat("b")])
    await placement.give_up()
    world.known["b"] = first
    assert await world.turn(other, [beat("b", at=first.order)], node="b") is not None


async def test_a_node_without_a_layout_leaves_the_lease_to_others() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    assert await world.turn(placement, [beat("a", at=first.order)], layout=None) is None
    assert await world.gossip.lease_holder() is None


async def test_a_new_term_alone_is_no_reason_to_write() -> None:
    world = World()
    first = await world.first(world.placement("a"), [beat("a"), beat("b")])
    world.clock.advance(3 * BEAT_MS)
    world.known["b"] = first
    other = world.placement("b")
    assert await world.turn(other, [beat("a", at=first.order), beat("b", at=first.order)], node="b") is None
    assert other.fence is not None
    assert await world.gossip.assignment() == first


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
    """Loses the answer of one write."""

    lost = False

    async def write_assignment(self, assignment: Assignment, fence: Fence) -> bool:
        """Write, and fail once all the same."""
        done = await super().write_assignment(assignment, fence)
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


# Nodes that are away


DELAY_MS = 30_000


async def settled(world: World, placement: Placement, *, nodes: str = "abc") -> Assignment:
    """The first assignment, of as many nodes as are named."""
    return await world.first(placement, [beat(node_id) for node_id in nodes])


def named(assignment: Assignment) -> set[str]:
    """Who has a place in an assignment."""
    return {node_id for task in assignment.tasks.values() for node_id in task.holders}


async def turns_until_written(world: World, placement: Placement, nodes: list[Seen], *, node: str = "a") -> Assignment:
    """Take turns, a heartbeat each, until something is written."""
    for _ in range(2 * DELAY_MS // BEAT_MS):
        written = await world.turn(placement, nodes, node=node)
        if written is not None:
            return written
        world.clock.advance(BEAT_MS)
    raise AssertionError("nothing was written")


async def test_a_node_that_died_keeps_its_place_and_no_role_until_the_delay_is_over() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    died_ms = world.clock.monotonic_ms()
    away = await turns_until_written(world, placement, [beat("a", at=first.order)])
    assert world.clock.monotonic_ms() == died_ms, "roles move at once"
    assert all((task.active, task.standbys) == ("a", ["b"]) for task in away.tasks.values())
    assert set(away.members) == {"a"}, "who starts now must not ask it"
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
    assert all((task.active, task.standbys) == ("a", ["b"]) for task in back.tasks.values())
    world.clock.advance(BEAT_MS)
    again = await turns_until_written(world, placement, [beat("a", at=back.order)])
    assert "b" in named(again)


@pytest.mark.parametrize("state", ["starting", "failed"])
async def test_a_node_that_starts_or_failed_is_away_while_the_delay_runs(state: str) -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    other = beat("b", state=state, lineage=None if state == "starting" else "l1")
    away = await turns_until_written(world, placement, [beat("a", at=first.order), other])
    assert all((task.active, task.standbys) == ("a", ["b"]) for task in away.tasks.values())


async def test_a_node_that_is_leaving_has_no_role_and_keeps_its_tasks_while_it_says_so() -> None:
    world = World()
    placement = world.placement()  # no delay
    first = await settled(world, placement, nodes="ab")
    away = await turns_until_written(world, placement, [beat("a", at=first.order), beat("b", leaving=True)])
    assert all((task.active, task.standbys) == ("a", ["b"]) for task in away.tasks.values())
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


async def test_a_node_that_came_back_to_another_checkpoint_keeps_no_place() -> None:
    world = World()
    placement = world.placement(rebalance_delay_ms=DELAY_MS)
    first = await settled(world, placement, nodes="ab")
    written = await turns_until_written(world, placement, [beat("a", at=first.order), beat("b", lineage="other")])
    assert named(written) == {"a"}


async def test_whoever_takes_over_waits_as_long_as_it_has_seen_the_node_away() -> None:
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


# What becomes of the key


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
        layout=LAYOUT,
        highest=first.order,
        known=first,
        began_ms=world.clock.monotonic_ms() - BEAT_MS,
    )
    assert late is None
    assert await world.turn(placement, [beat("a", at=first.order)]) is not None
