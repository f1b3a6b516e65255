"""Which node assigns, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cluster.placement_world import BEAT_MS, World, beat

from understudy_node.cluster.leader import LOOK_MS, TaskSet
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Load


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
async def test_a_node_that_is_starting_is_waited_for_but_not_for_ever(other: AgedHeartbeat) -> None:
    world = World()
    placement = world.placement()
    for _ in range(3):
        assert await world.turn(placement, [beat("a"), other]) is None
        world.clock.advance(BEAT_MS)
    written = await world.turn(placement, [beat("a"), other])
    assert written is not None
    assert set(written.members) == {"a"}


async def test_while_the_nodes_say_the_same_nobody_looks_who_is_caught_up_with_each_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    placement = world.placement()
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


async def test_a_node_that_follows_another_checkpoint_gets_nothing() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a"), beat("b")])
    written = await world.turn(placement, [beat("a", at=first.order), beat("b", lineage="other")])
    assert written is not None
    assert set(written.members) == {"a"}


async def test_a_node_that_comes_back_is_warm_up_until_its_heartbeat_says_that_it_is_caught_up() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a")])
    joined = await world.turn(placement, [beat("a", at=first.order), beat("b", version=None)])
    assert joined is not None
    assert all(task.warmups == ("b",) for task in joined.tasks.values())
    late = beat("b", at=joined.order, exceptions={"0_1": Applied(version=5, state="RESTORING")})
    written = await world.turn(placement, [beat("a", at=joined.order), late])
    assert written is not None
    assert (written.tasks["0_0"].warmups, written.tasks["0_1"].warmups) == ((), ("b",))


async def test_a_heartbeat_is_read_by_the_assignment_that_its_node_follows() -> None:
    world = World()
    placement = world.placement()
    first = await world.first(placement, [beat("a")])
    joined = await world.turn(placement, [beat("a", at=first.order), beat("b", version=None)])
    assert joined is not None
    # b has not heard of it: what it holds, and how far that is, belongs to the assignment before
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=first.order)]) is None
    assert await world.turn(placement, [beat("a", at=joined.order), beat("b", at=joined.order, held=[])]) is None
