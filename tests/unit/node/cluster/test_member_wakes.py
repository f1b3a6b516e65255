"""Many tasks that reach a version together wake the loop of their node once, and no change is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchmarks.simulated import SimulatedNode
from tests.support.bus.local_bus import LocalBus
from tests.support.clock import ManualClock

from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_shared.bus.gossip import Gossip


class Loop:
    """As much of a loop as a change uses."""

    def __init__(self) -> None:
        self.called: list[Callable[[], None]] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.called.append(call)


async def test_changes_that_come_together_wake_the_loop_once_and_a_later_one_again(tmp_path: Path) -> None:
    settings = ClusterNodeSettings(checkpoint="/nowhere", redis="redis://unused", application_id="a", data_dir=tmp_path)
    clock, node = ManualClock(), SimulatedNode(0, port=1, tasks=3)
    member = ClusterMember(node.as_node, Gossip(LocalBus(clock), "a"), settings, MemberId("n", "i"), clock=clock)
    member.changed()  # before it was started
    loop = Loop()
    member._loop = loop  # type: ignore[assignment]  # what it uses of one
    for turn in (1, 2):
        for _ in range(1000):
            member.changed()
        assert len(loop.called) == turn
        member._changed.clear()  # as a beat begins: what changed until now is in it
        loop.called[-1]()
        assert member._changed.is_set()
    await asyncio.sleep(0)
