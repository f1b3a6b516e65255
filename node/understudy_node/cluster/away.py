"""Tracks nodes that are away: they have a place in the assignment, do not live, and may come back (pure).

Every node measures the delay, not only the one that assigns, so that it does not start anew when the lease changes
hands. A node that starts while another is away already measures from its own start.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy_node.cluster.assignor import Member
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Assignment


class Away:
    """The nodes that keep a place, and for how long. Call `of` at every heartbeat."""

    def __init__(self, rebalance_delay_ms: int) -> None:
        self._rebalance_delay_ms = rebalance_delay_ms
        self._since_ms: dict[str, float] = {}
        """The time since which each node of the assignment is not a member."""
        self._last: dict[str, Member] = {}
        """Members, and the missing nodes as they were when last members."""

    def of(
        self, known: Assignment, members: Sequence[Member], nodes: Sequence[AgedHeartbeat], now_ms: float
    ) -> list[Member]:
        """Return the nodes that are away and keep their place, by node id.

        `members` may be given tasks; the rest of `nodes` lives, too. A drained node keeps no place, nor does a live
        one that follows another checkpoint. A leaving node keeps its place while its heartbeats announce its
        departure.
        """
        alive = {member.node_id: member for member in members}
        missing = sorted(known.holders - alive.keys())
        self._since_ms = {node_id: self._since_ms.get(node_id, now_ms) for node_id in missing}
        before = self._last
        self._last = {
            node_id: before.get(node_id, Member(node_id, draining=node_id in known.draining)) for node_id in missing
        } | alive
        beats = [each.heartbeat for each in nodes]
        elsewhere = {beat.node_id for beat in beats if beat.lineage not in (None, known.lineage)}
        leaving = {beat.node_id for beat in beats if beat.leaving}
        return [
            self._last[node_id]
            for node_id in missing
            if (node_id in leaving or now_ms - self._since_ms[node_id] < self._rebalance_delay_ms)
            and not self._last[node_id].draining
            and node_id not in elsewhere
        ]
