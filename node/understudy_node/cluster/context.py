"""The objects that all parts of one member share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from understudy_node.cluster.bus_state import BusState
from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.neighbours import Neighbours
from understudy_node.node import Node
from understudy_shared.base.clock import Clock
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.cluster.node_calls import NodeCalls


@dataclass(frozen=True, slots=True)
class MemberContext:
    """One process of a node in the cluster of its application."""

    node: Node
    gossip: Gossip
    calls: NodeCalls
    neighbours: Neighbours
    bus_state: BusState
    changed: asyncio.Event
    """Set when the next heartbeat should not wait."""
    member_id: MemberId
    heartbeat_ms: int
    clock: Clock

    @property
    def node_id(self) -> str:
        return self.member_id.node_id

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take in a heartbeat that arrived now."""
        self.neighbours.heard(heartbeat, age_ms=0, now_ms=self.clock.monotonic_ms())
