"""The nodes of a cluster as one node sees them (pure): `ClusterView`, and the nodes that may be given tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from understudy_shared.base.plausible import is_far_ahead
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Endpoint, Heartbeat
from understudy_shared.cluster.view import PROVEN_BEATS, ClusterView, orders


class Neighbours(ClusterView):
    """The view of one node, which contains the node itself."""

    def __init__(
        self,
        own_id: str,
        *,
        refuse: Callable[[str, str], None] = lambda kind, why: None,
        history: Callable[[], tuple[str | None, int]] = lambda: (None, 0),
    ) -> None:
        """Set the callbacks, which are those of `ClusterView`. The history is that of this node."""
        super().__init__(refuse, history)
        self._own_id = own_id

    def members(self) -> Mapping[str, Endpoint]:
        """Return the other nodes that have tasks in the assignment."""
        members = {} if self.assignment is None else self.assignment.members
        return {node_id: endpoint for node_id, endpoint in members.items() if node_id != self._own_id}

    def unasked(self, now_ms: float) -> list[str]:
        """Return the members that are silent, but have not yet failed to answer a request, and have not left."""
        alive = {each.heartbeat.node_id for each in self.alive(now_ms)}
        return sorted(node_id for node_id in self.members().keys() - alive if not self.is_gone(node_id))

    def read(self, seen: list[AgedHeartbeat], *, now_ms: float) -> None:
        """Replace the view by the keys on the bus: nodes without one are gone, and past silence proves nothing."""
        before = dict(self.nodes)
        self.dead = {node_id: dead for node_id, dead in self.dead.items() if dead.said_farewell}
        for node_id in before:
            self.forget(node_id)
        for each in sorted(seen, key=lambda each: each.heartbeat.node_id not in self.holders):
            heard = self.heard(each.heartbeat, age_ms=each.age_ms, now_ms=now_ms)
            known = before.get(each.heartbeat.node_id)
            if heard and known and known.heartbeat.incarnation == each.heartbeat.incarnation:
                self.nodes[each.heartbeat.node_id] = replace(heard.report, beats=known.beats)

    def alive(self, now_ms: float) -> list[AgedHeartbeat]:
        """Return the live nodes by node id."""
        self.expire(now_ms)
        return [
            AgedHeartbeat(node.heartbeat, max(0, round(now_ms - node.said_ms)))
            for _, node in sorted(self.nodes.items())
        ]

    def proven(self, nodes: Sequence[AgedHeartbeat]) -> list[AgedHeartbeat]:
        """Return the nodes that may get tasks: the assignment names them, or they sent PROVEN_BEATS heartbeats."""
        may = {*self.holders, self._own_id}
        return [
            each
            for each in nodes
            if (node_id := each.heartbeat.node_id) in may or self.nodes[node_id].beats >= PROVEN_BEATS
        ]

    def is_far_ahead(self) -> bool:
        """Whether this node's assignment is too far above those of all others to be possible."""
        others = (node for node_id, node in self.nodes.items() if node_id != self._own_id)
        return is_far_ahead(self.order, orders(others))


def outvoted(own: Heartbeat, nodes: list[AgedHeartbeat]) -> str | None:
    """Return why this node must not act for its application: most nodes follow another checkpoint. None if it may.

    When two lineages have equally many nodes, that of the smallest node id counts, so that both sides agree.
    """
    if own.lineage is None:
        return None
    followers: Counter[str] = Counter()
    first: dict[str, str] = {}
    for heartbeat in [own, *(each.heartbeat for each in nodes if each.heartbeat.node_id != own.node_id)]:
        if heartbeat.lineage is not None:
            followers[heartbeat.lineage] += 1
            first[heartbeat.lineage] = min(first.get(heartbeat.lineage, heartbeat.node_id), heartbeat.node_id)
    chosen = min(followers, key=lambda lineage: (-followers[lineage], first[lineage]))
    if chosen == own.lineage:
        return None
    other = next(each.heartbeat for each in nodes if each.heartbeat.lineage == chosen)
    return (
        f"this node follows {own.checkpoint} (lineage {own.lineage}), but {followers[chosen]} others of application "
        f"{own.application_id} follow {other.checkpoint} (lineage {chosen})"
    )
