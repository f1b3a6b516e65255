"""A node that starts in a large cluster reads the bus for a while: until it has, it must not assign."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from tests.support.bus.local_bus import LocalBus
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.followed_node import followed_node
from tests.support.spark.queries import wait_until

from understudy_node.cluster.context import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.bus.base import Stored
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Endpoint, Heartbeat

APPLICATION = "starting"


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
        beat = Heartbeat(
            application_id=APPLICATION, node_id=node_id, incarnation="1", sequence=1,
            endpoint=Endpoint(host="127.0.0.1", port=1), state="serving", heartbeat_ms=60_000, lineage=node.lineage,
            partitions=1, end_version=2, end_age_ms=0, applied=Applied(version=2), term=1, epoch=1,
        )  # fmt: skip
        await gossip.beat(beat)
    fence = await gossip.take_lease("c", above=0, expiry_ms=60_000)
    assert fence is not None
    tasks = {task: AssignedTask(active="a", standbys=("b",)) for task in node.tasks()}
    members = {node_id: Endpoint(host="127.0.0.1", port=1) for node_id in ("a", "b")}
    written = Assignment(
        application_id=APPLICATION, term=fence.term, epoch=1, written_by="c", lineage=node.lineage, partitions=1,
        tasks=tasks, members=members,
    )  # fmt: skip
    assert await gossip.write_assignment(written, fence)
    await gossip.give_lease_up(fence)
    return written


async def start_while_reading(node: Node, settings: ClusterNodeSettings) -> None:
    bus = SlowBus()
    gossip = Gossip(bus, APPLICATION)
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
        checkpoint=str(checkpoint.path), redis="redis://unused", application_id=APPLICATION, data_dir=tmp_path / "data"
    )
    with followed_node(checkpoint.path, tmp_path / "data", application_id=APPLICATION, duties={}) as node:
        wait_until(lambda: node.generation is not None, what="a generation")
        asyncio.run(start_while_reading(node, settings))
