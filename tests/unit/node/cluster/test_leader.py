"""Which node assigns, and when it does not; and what weights decide where numbers alone do not."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.assignor_model import NODES, WEIGHTS, Cluster, check_rest
from tests.support.cluster.placement_world import BEAT_MS, TASKS, World, beat, turns_until_written

from understudy_node.cluster.assignor import Assignor
from understudy_node.cluster.leader import LOOK_AGAIN_HEARTBEATS, LOOK_MS, Leadership, TaskSet
from understudy_node.cluster.weights import Weights
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Load


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def placement(world: World) -> Leadership:
    return world.placement()


async def test_nodes_that_start_together_share_from_the_beginning(world: World, placement: Leadership) -> None:
    assert await world.turn(placement, [beat("a")]) is None
    world.clock.advance(BEAT_MS)
    written = await world.written(placement, [beat("a"), beat("b")])
    assert written.order == (1, 1)
    assert {each.active for each in written.tasks.values()} == {"a", "b"}
    assert await world.gossip.assignment() == written


@pytest.mark.parametrize("other", [beat("b", state="starting", lineage=None), beat("b", state="starting")])
async def test_a_node_that_is_starting_is_waited_for_but_not_for_ever(
    world: World, placement: Leadership, other: AgedHeartbeat
) -> None:
    for _ in range(3):
        assert await world.turn(placement, [beat("a"), other]) is None
        world.clock.advance(BEAT_MS)
    written = await world.written(placement, [beat("a"), other])
    assert set(written.members) == {"a"}


async def test_while_the_nodes_say_the_same_nobody_looks_who_is_caught_up_with_each_task(
    world: World, placement: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await world.first(placement, [beat("a"), beat("b")])
    looks: list[int] = []
    look = placement._holdings.look

    def counted(*arguments: Any) -> Any:
        looks.append(len(looks))
        return look(*arguments)

    monkeypatch.setattr(placement._holdings, "look", counted)

    async def turn(*nodes: AgedHeartbeat) -> int:
        """How often it was looked; nothing is assigned anew."""
        before = len(looks)
        world.clock.advance(BEAT_MS)
        assert await world.turn(placement, list(nodes)) is None
        return len(looks) - before

    in_step = [beat("a", at=first.order), beat("b", at=first.order)]
    assert await turn(*in_step) == 1
    older = [
        AgedHeartbeat(each.heartbeat.model_copy(update={"sequence": 5, "end_age_ms": 70}), 700) for each in in_step
    ]
    assert await turn(*older) == 0
    behind = beat("b", at=first.order, version=8)
    assert await turn(in_step[0], behind) == 1, "another version may be too old"
    assert await turn(in_step[0], behind) == 0
    partly = beat("b", at=first.order, exceptions={"0_0": Applied(version=8)})
    assert await turn(in_step[0], partly) == 1
    assert await turn(*in_step) == 1
    dead = await world.turn(placement, in_step[:1])
    assert dead is not None, "who is no more among the members is seen at once"
    assert all(duty.holders == ("a",) for duty in dead.tasks.values())


class Weighed:
    """A world of one task, whose nodes say what they bear. `restoring` have nothing of it yet."""

    def __init__(self, *nodes: str) -> None:
        self.loads = {node: Load(operator_bytes={"0": 1 << 30}, reads_per_s=300) for node in nodes}
        self.restoring: set[str] = set()
        self._world = World()
        self._placement = self._world.placement()

    def others(self, node: str, **load: int) -> None:
        """Other applications bear so much at a node."""
        self.loads[node] = self.loads[node].model_copy(update=load)

    async def written_within(self, time_ms: int) -> AssignedTask | None:
        """Return the next assignment of the task, None where this time passes without one."""
        for _ in range(time_ms // BEAT_MS):
            order = self._world.known["a"].order if self._world.known else (0, 0)
            said = [self._beat(node, load, order) for node, load in self.loads.items()]
            written = await self._world.turn(self._placement, said, tasks=TaskSet("l1", 1, ["0_0"]))
            if written is not None:
                return written.tasks["0_0"]
            self._world.clock.advance(BEAT_MS)
        return None

    def _beat(self, node: str, load: Load, order: tuple[int, int]) -> AgedHeartbeat:
        unready = {"0_0": Applied(version=None, state="RESTORING")} if node in self.restoring else {}
        said = beat(node, at=order, partitions=1, exceptions=unready)
        return AgedHeartbeat(said.heartbeat.model_copy(update={"load": load}), 0)


async def test_a_replica_moves_where_others_have_less_however_long_its_restore_takes() -> None:
    world = Weighed("a", "b", "c")
    first = await world.written_within(LOOK_MS)
    assert first is not None
    active, (standby,) = str(first.active), first.standbys
    (free,) = world.loads.keys() - set(first.holders)
    world.others(standby, others_bytes=50 << 30)
    world.restoring = {free}
    assert await world.written_within(2 * LOOK_MS) == AssignedTask(active, standbys=(standby,), warmups=(free,))
    assert await world.written_within(4 * LOOK_MS) is None, "it restores"
    world.restoring = set()
    assert await world.written_within(LOOK_MS) == AssignedTask(active, standbys=(free,))
    assert await world.written_within(3 * LOOK_MS) is None


async def test_a_node_that_follows_another_checkpoint_gets_nothing(world: World, placement: Leadership) -> None:
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.written(placement, [beat("a", at=first.order), beat("b", lineage="other")])
    assert set(written.members) == {"a"}


async def test_a_node_that_comes_back_is_warm_up_until_its_heartbeat_says_that_it_is_caught_up(
    world: World, placement: Leadership
) -> None:
    first = await world.first(placement, [beat("a")])
    joined = await world.written(placement, [beat("a", at=first.order), beat("b", version=None)])
    assert all(task.warmups == ("b",) for task in joined.tasks.values())
    late = beat("b", at=joined.order, exceptions={"0_1": Applied(version=5, state="RESTORING")})
    written = await world.written(placement, [beat("a", at=joined.order), late])
    assert (written.tasks["0_0"].warmups, written.tasks["0_1"].warmups) == ((), ("b",))


async def test_a_heartbeat_is_read_by_the_assignment_that_its_node_follows(world: World, placement: Leadership) -> None:
    first = await world.first(placement, [beat("a")])
    joined = await world.written(placement, [beat("a", at=first.order), beat("b", version=None)])
    # b has not heard of it: what it holds, and how far that is, belongs to the assignment before
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=first.order)]) is None
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=joined.order, held=[])]) is None


LIMIT_S = 20.0


async def test_a_bus_that_came_back_empty_gets_the_known_assignment_after_one_expiry_and_no_epoch_goes_back(
    world: World, placement: Leadership
) -> None:
    first = await world.first(placement, [beat("a"), beat("b")])
    world.lose_all()
    placement.bus_came_back()
    for _ in range(3):
        assert await world.turn(placement, [beat("a", at=first.order)]) is None
        world.clock.advance(BEAT_MS)
    written = await world.written(placement, [beat("a", at=first.order), beat("b", at=first.order)])
    assert written.order == (2, 2)
    assert written.tasks == first.tasks


async def test_a_lease_of_a_term_that_others_are_past_is_taken_anew(world: World, placement: Leadership) -> None:
    first = await world.first(placement, [beat("a"), beat("b")])
    later = first.model_copy(update={"term": 5, "epoch": 9})  # of a Redis that was failed over to this one
    world.known["a"] = later
    written = await world.written(placement, [beat("a", at=later.order), beat("b", at=later.order)])
    assert written.order == (6, 10)


async def test_an_assignment_that_nobody_knows_any_more_is_replaced_by_a_later_one(
    world: World, placement: Leadership
) -> None:
    nodes = [beat("a", at=(4, 7)), beat("b", at=(4, 7))]
    for _ in range(3):
        assert await world.turn(placement, nodes) is None
        world.clock.advance(BEAT_MS)
    assert await world.turn(placement, nodes) is None  # and now nodes that start together are waited for
    world.clock.advance(BEAT_MS)
    written = await world.written(placement, nodes)
    assert written.order == (5, 8)


@pytest.mark.parametrize("rubbish", [b"by hand", None])
async def test_an_assignment_that_was_deleted_or_damaged_is_written_again_though_nothing_changed(
    world: World, placement: Leadership, rubbish: bytes | None
) -> None:
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


async def test_a_turn_that_was_held_up_on_its_way_assigns_nothing(world: World, placement: Leadership) -> None:
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
    world: World, placement: Leadership, monkeypatch: pytest.MonkeyPatch, bus_fails: bool
) -> None:
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


GIB = 1 << 30


def cluster(tasks: int, nodes: int, *, standbys: int = 1, weights: Weights | None = None) -> Cluster:
    """A cluster at rest. Its tasks are of the operators 0 and 1 by turns."""
    found = Cluster(tasks, standbys=standbys)
    for node in NODES[:nodes]:
        found.join(node)
    if weights is not None:
        found.weigh(weights)
    found.settle()
    return found


def exchanged(found: Cluster, weights: Weights) -> int:
    """Weigh, then exchange until nothing is to gain; the number of exchanges. The cluster rests between them."""
    found.weigh(weights)
    found.settle()
    for number in range(100):
        if not found.begin_exchange():
            return number
        found.settle()
        check_rest(found)
    pytest.fail("it exchanges for ever")


def bytes_at(found: Cluster) -> Counter[str]:
    """The load of each node, with that of other applications."""
    loads = Counter({node: found.weighed.weights.others_bytes.get(node, 0) for node in found.members})
    for task, node in found.replicas():
        loads[node] += found.weighed.weights.bytes_of(task)
    return loads


def test_the_replicas_of_a_new_application_lie_where_others_have_least() -> None:
    found = cluster(1, 4, weights=Weights(others_bytes={"n0": 9 * GIB, "n1": GIB, "n2": 8 * GIB, "n3": 2 * GIB}))
    assert {node for _, node in found.replicas()} == {"n1", "n3"}


def test_a_replica_leaves_a_node_at_which_others_have_grown() -> None:
    found = cluster(1, 3)
    (away,) = set(found.members) - {node for _, node in found.replicas()}
    active = found.assignment["0_0"].active
    assert active is not None
    assert exchanged(found, Weights({"0": GIB}, others_bytes={active: 50 * GIB})) == 1
    assert {node for _, node in found.replicas()} == {*found.members} - {active}
    assert away in found.assignment["0_0"].holders


def test_a_role_leaves_a_node_at_which_others_are_read_more() -> None:
    found = cluster(1, 2)
    active, (standby,) = found.assignment["0_0"].active, found.assignment["0_0"].standbys
    assert active is not None
    assert exchanged(found, Weights(reads=100, others_reads={active: 1000})) == 1
    assert found.assignment["0_0"].active == standby
    assert found.assignment["0_0"].standbys == (active,)


def test_nodes_exchange_heavy_replicas_for_light_ones() -> None:
    """Nodes that came one after another have as many replicas, and not as many of each operator."""
    found = Cluster(4)
    for node in NODES[:4]:
        found.join(node)
        found.settle()
    found.weigh(Weights({"0": 10 * GIB, "1": GIB}))
    assert bytes_at(found) == {"n0": 2 * GIB, "n1": 11 * GIB, "n2": 11 * GIB, "n3": 20 * GIB}
    assert exchanged(found, found.weighed.weights) == 1
    assert set(bytes_at(found).values()) == {11 * GIB}


@given(
    tasks=st.integers(1, 30),
    nodes=st.integers(1, 6),
    standbys=st.integers(0, 2),
    zones=st.integers(1, 2),
    weights=WEIGHTS,
)
def test_no_node_becomes_heavier_than_the_heaviest_was(
    tasks: int, nodes: int, standbys: int, zones: int, weights: Weights
) -> None:
    found = Cluster(tasks, standbys=standbys, zones=zones)
    for node in NODES[:nodes]:
        found.join(node)
    found.settle()
    found.weigh(weights)
    heaviest = max(bytes_at(found).values())
    exchanged(found, weights)
    assert max(bytes_at(found).values()) <= heaviest
