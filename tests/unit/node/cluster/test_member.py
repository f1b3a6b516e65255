"""Where a node that starts gets an assignment, what it must not do before it has read the bus, and whom it names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.bus.documents import APPLICATION, assignment, heartbeat
from tests.support.bus.local_bus import LocalBus
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fake_node import FakeNode, fake_nodes
from tests.support.cluster.fake_node import status as reply
from tests.support.cluster.followed_node import followed_node
from tests.support.spark.queries import wait_until

from understudy_node.cluster.context import BusState, MemberContext, MemberId, Neighbours
from understudy_node.cluster.member import ClusterMember, Remembering, alone_text
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Stored
from understudy_shared.bus.gossip import Applications, Gossip
from understudy_shared.bus.messages import AssignedTask, Assignment, NodeEndpoint
from understudy_shared.cluster.follower import ClusterDelegate, ClusterFollower
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.without_bus import Memory, Remembered

OWN = HostInfo("127.0.0.1", 9)


@dataclass
class World:
    """One node's memory, its follower, and every assignment that was handed to it."""

    disk: Memory
    memory: Remembering
    follower: ClusterFollower
    taken: list[Assignment] = field(default_factory=list)

    def bus_is_away(self) -> None:
        self.follower.call_failed()

    async def wait_to_take(self, *orders: tuple[int, int]) -> None:
        await until(lambda: [each.order for each in self.taken] == list(orders), what=f"assignments {orders}")


@asynccontextmanager
async def remembering(
    folder: Path | None, seeds: Sequence[FakeNode | HostInfo] = (), *, lineage: str = "l1"
) -> AsyncIterator[World]:
    """A node of that lineage that remembers in `folder`, running."""
    taken: list[Assignment] = []
    calls, gossip, neighbours = NodeCalls(APPLICATION), Gossip(LocalBus(), APPLICATION), Neighbours("n1")
    context = MemberContext(
        node=cast(Node, SimpleNamespace(host=OWN, lineage=lineage)),
        gossip=gossip,
        calls=calls,
        neighbours=neighbours,
        bus_state=BusState(),
        changed=asyncio.Event(),
        member_id=MemberId("n1", "i1"),
        heartbeat_ms=10,
        clock=SystemClock(),
    )

    def take(found: Assignment) -> None:
        if neighbours.follow(found):
            taken.append(found)

    disk = Memory(None if folder is None else Remembered(folder, APPLICATION))
    asked = [each if isinstance(each, HostInfo) else HostInfo("127.0.0.1", each.port) for each in seeds]
    memory = Remembering(context, disk, seeds=asked, take=take)
    part = SimpleNamespace(ask_others=memory.ask_others, bus_lost=lambda why: None)
    follower = ClusterFollower(
        gossip, neighbours, cast(ClusterDelegate, part), heartbeat_ms=lambda: 10, clock=context.clock
    )
    going = [asyncio.ensure_future(disk.keep()), asyncio.ensure_future(follower.go_on_without_the_bus())]
    try:
        yield World(disk, memory, follower, taken)
        assert not any(task.done() for task in going)
    finally:
        for task in going:
            task.cancel()
        await asyncio.wait(going)
        await calls.close()
        await disk.flush()


def publish(node: FakeNode, latest: Assignment) -> None:
    node.documents["/internal/v1/assignment"] = latest.encode()
    beat = heartbeat("n2", term=latest.term, epoch=latest.epoch, lineage=latest.lineage)
    node.documents["/internal/v1/lags"] = beat.encode()


def first(epoch: int, **fields: object) -> Assignment:
    return assignment(term=1, epoch=epoch).model_copy(update=fields)


async def test_what_was_noted_is_taken_at_the_next_start_without_the_bus(tmp_path: Path) -> None:
    async with remembering(tmp_path) as world:
        world.disk.note(first(1))
        world.disk.note(first(2))
    async with remembering(tmp_path) as again:
        assert again.taken == []
        again.bus_is_away()
        await again.wait_to_take((1, 2))


async def test_when_the_bus_is_there_what_is_remembered_comes_after_its_word_and_nobody_is_asked(
    tmp_path: Path,
) -> None:
    Remembered(tmp_path, APPLICATION).save(first(2))
    async with fake_nodes(reply(500, b"")) as (seed,), remembering(tmp_path, [seed]) as world:
        await world.memory.bus_is_there(None)
        assert world.taken == [first(2)]
        world.bus_is_away()  # later in its life: it goes on with what it has
        await world.memory.bus_is_there(None)
        assert world.taken == [first(2)]
        assert seed.requests == []


async def test_without_anything_remembered_seeds_are_asked_until_one_answers(tmp_path: Path) -> None:
    async with (
        fake_nodes(reply(500, b""), reply(500, b"")) as (deaf, seed),
        remembering(tmp_path, [HostInfo("127.0.0.1", 1), deaf, seed]) as world,
    ):
        world.bus_is_away()
        await until(lambda: len(seed.requests) >= 3, what="a third question")
        publish(seed, first(4))
        await world.wait_to_take((1, 4))
        asked = len(deaf.requests)
        world.bus_is_away()
        await world.memory.bus_is_there(None)
        assert len(deaf.requests) == asked, "one answer is enough"


async def test_the_nodes_of_what_is_remembered_may_know_of_a_later_one(tmp_path: Path) -> None:
    async with fake_nodes(reply(500, b"")) as (other,):
        members = {
            "n1": NodeEndpoint(host=OWN.host, port=OWN.port),
            "n2": NodeEndpoint(host="127.0.0.1", port=other.port),
        }
        Remembered(tmp_path, APPLICATION).save(first(2, members=members))
        publish(other, first(3))
        async with remembering(tmp_path) as world:
            world.bus_is_away()
            await world.wait_to_take((1, 2), (1, 3))


async def test_an_assignment_of_another_history_is_left_alone_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Remembered(tmp_path, APPLICATION).save(first(2))
    with caplog.at_level(logging.WARNING):
        async with (
            fake_nodes(reply(500, b"")) as (seed,),
            remembering(tmp_path, [seed], lineage="l2") as world,
        ):
            publish(seed, first(3))
            world.bus_is_away()
            await until(lambda: len(seed.requests) >= 3, what="a third question")
            assert world.taken == []
            publish(seed, first(4, lineage="l2"))
            await world.wait_to_take((1, 4))
    assert caplog.text.count("is of lineage l1; the checkpoint's is l2") == 1


STARTING = "starting"


class SlowBus(LocalBus):
    """A bus whose scan answers when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_scanned = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        self.is_scanned.set()
        await self.may_answer.wait()
        return await super().scan(prefix, known=known)


async def others_have_everything(gossip: Gossip, node: Node) -> Assignment:
    """The other two nodes live and have all tasks; the one that assigned them is gone, and its lease free."""
    for node_id in ("a", "b"):
        await gossip.beat(heartbeat(node_id, application_id=STARTING, lineage=node.lineage, partitions=1))
    fence = await gossip.take_lease("c", above=0, expiry_ms=60_000)
    assert fence is not None
    tasks = {task: AssignedTask(active="a", standbys=("b",)) for task in node.tasks()}
    members = {node_id: NodeEndpoint(host="127.0.0.1", port=1) for node_id in ("a", "b")}
    written = Assignment(
        application_id=STARTING, term=fence.term, epoch=1, written_by="c", lineage=node.lineage, partitions=1,
        tasks=tasks, members=members,
    )  # fmt: skip
    assert await gossip.write_assignment(written, fence)
    await gossip.give_lease_up(fence)
    return written


async def start_while_reading(node: Node, settings: ClusterNodeSettings) -> None:
    bus = SlowBus()
    gossip = Gossip(bus, STARTING)
    written = await others_have_everything(gossip, node)
    member = ClusterMember(node, gossip, settings, MemberId("me", "1"), clock=SystemClock())
    listening = asyncio.ensure_future(member.cluster.run())
    try:
        await bus.is_scanned.wait()
        assert not member.cluster.is_current
        await member.beat.turn()
        await member.beat.turn()
        assert await gossip.assignment() == written, "a node that knew nobody assigned all tasks to itself"
        assert await gossip.lease_holder() is None
        bus.may_answer.set()
        await until(lambda: member.cluster.is_current)
        await member.beat.turn()
        assert {"a", "b"} <= {each.heartbeat.node_id for each in await gossip.nodes()}
        assert member.assignment == written
    finally:
        listening.cancel()
        await asyncio.wait({listening})
        await member.stop()


def test_a_node_that_still_reads_who_is_there_assigns_nothing(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    settings = ClusterNodeSettings(
        checkpoint=str(checkpoint.path), redis="redis://unused", application_id=STARTING, data_dir=tmp_path / "data"
    )
    with followed_node(checkpoint.path, tmp_path / "data", application_id=STARTING, duties={}) as node:
        wait_until(lambda: node.generation is not None, what="a generation")
        asyncio.run(start_while_reading(node, settings))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, None),
        ({"fligths": 1}, None),
        ({"fligths": 2, "flights": 3}, None),
        ({"fligths": 1, "words": 1}, "others there: 'words'."),
        ({"fligths": 1, "flights": 0}, "others there: 'flights'. Did you mean 'flights'?"),
    ],
    ids=["nothing", "alone", "with-its-like", "beside-another", "only-announced"],
)
def test_only_a_node_without_its_like_names_other_applications(found: dict[str, int], text: str | None) -> None:
    said = alone_text("fligths", Applications(found), where="redis://h")
    assert said == (text and f"this is the only node of application 'fligths' on redis://h; {text}")
