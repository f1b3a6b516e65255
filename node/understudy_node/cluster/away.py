"""Nodes that are away: who has a place in the assignment, does not live, and may still come back (pure).

Every node keeps count, not only the one that assigns, so that a wait does not begin anew when the lease changes hands.
Who starts to look while a node is away already counts from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy_node.cluster.assignor import Member
from understudy_shared.bus.gossip import Seen
from understudy_shared.messages import Assignment


class Away:
    """Who keeps a place, for how long. It is to be asked at every heartbeat."""

    def __init__(self, rebalance_delay_ms: int) -> None:
        self._rebalance_delay_ms = rebalance_delay_ms
        self._since_ms: dict[str, float] = {}
        """Of whoever the assignment names and is no member now."""
        self._last: dict[str, Member] = {}
        """Of those and of members: how each was when it was one."""
        self._named: tuple[Assignment, frozenset[str]] | None = None

    def of(self, known: Assignment, members: Sequence[Member], nodes: Sequence[Seen], now_ms: float) -> list[Member]:
        """Those who keep their place, by node id.

        `members` may be given tasks; the rest of `nodes` lives, too. A node that was drained keeps no place, nor does
        one that lives and follows another checkpoint. One that is leaving keeps it as long as it says so.
        """
        alive = {member.node_id: member for member in members}
        missing = sorted(self._holders(known) - alive.keys())
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

    def _holders(self, known: Assignment) -> frozenset[str]:
        if self._named is None or self._named[0] is not known:
            holders = frozenset(node_id for task in known.tasks.values() for node_id in task.holders)
            self._named = (known, holders)
        return self._named[1]
