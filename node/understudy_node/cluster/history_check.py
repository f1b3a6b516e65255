"""The check whether this node follows the cluster's history, and which nodes do not.

It decides three things at each turn of the beat: whether this node may hold tasks, whether it may assign, and to
which nodes. A node that starts in a living cluster holds nothing until its commits were compared with those of the
nodes of the assignment, and while it may follow a fork of their history. A node that was refused stays refused until
they agree, or until it is restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.fork_finder import ForkFinder, OwnHistory
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import FORK_FOUND, FORKED
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.cluster.forks import refused_forks

log = logging.getLogger(__name__)


class HistoryCheck:
    """The check of one node. Only the node's beat calls the methods that change it."""

    def __init__(self, context: MemberContext) -> None:
        self.is_admitted = False
        """Whether the comparison is done: a live node agrees and no live node differs, or no other node lives."""
        self.refused: str | None = None
        """The reason why this node must not answer for its application; None while it may."""
        self.others: Mapping[str, str] = {}
        """The other nodes that are refused, with the reasons."""
        self.doubt: str | None = None
        """The reason why this node, which has just started, may follow a fork; None once it may hold tasks."""
        self._node = context.node
        self._neighbours = context.neighbours
        self._node_id = context.node_id
        self._grace_ms = EXPIRY_HEARTBEATS * context.heartbeat_ms
        self._finder = ForkFinder(context.node_id)
        self._waits_since_ms: float | None = None

    @property
    def found(self) -> dict[str, str]:
        """The nodes whose commits differ from this node's, for its heartbeat."""
        return self._finder.found

    @property
    def may_hold(self) -> bool:
        """Whether this node may hold tasks."""
        return self.is_admitted and self.refused is None

    def causes(self) -> dict[str, str]:
        """List why forks degrade the node, by cause."""
        if self.refused is not None:
            return {FORKED: self.refused}
        return {FORK_FOUND: "; ".join(self.others.values())} if self.others else {}

    async def compare(self, now_ms: float, *, is_current: bool) -> None:
        """Compare the live nodes with this one's history. With `is_current`, the view has all of them."""
        nodes, own = self._neighbours.alive(now_ms), self._own_history()
        unread = self._finder.unread(nodes, own, self._node.history.is_commit_time_learned)
        if unread:
            await asyncio.to_thread(self._read, unread)
        self._finder.compare(nodes, own, now_ms)
        self.doubt = None if self.is_admitted else self._doubt(nodes)
        if is_current and not self.is_admitted and self.doubt is None:
            self.is_admitted = self._is_known_here(nodes) or self._has_waited(now_ms)

    def judge(self, own: Heartbeat, now_ms: float) -> bool:
        """Decide which nodes are refused, by the findings of all nodes.

        Return True if the decision about this node changed.
        """
        alive = (each.heartbeat for each in self._neighbours.alive(now_ms))
        beats = [own, *(beat for beat in alive if beat.lineage == own.lineage and beat.node_id != self._node_id)]
        refused = refused_forks(beats, self._neighbours.holders, judging=self._node_id)
        why, before = refused.pop(self._node_id, None), self.refused
        for node_id in refused.keys() - self.others.keys():
            log.error("refused: %s", refused[node_id], extra={"action": "fork-found", "node": node_id})
        self.others = refused
        if why is not None:
            self.refused = (
                f"this node is refused and answers nothing: {why}. Follow the cluster's checkpoint, or give the copy "
                "an application id of its own"
            )
        elif any(self._is_cluster(beat.node_id) and self._finder.is_agreed(beat.node_id) for beat in beats):
            self.refused = None
        if (before is None) == (self.refused is None):
            return False
        if self.refused is None:
            log.warning("this node follows the cluster's history again", extra={"action": "fork-over"})
        else:
            log.error("%s", self.refused, extra={"action": "forked"})
        return True

    def may_assign(self, nodes: Sequence[AgedHeartbeat]) -> bool:
        """Whether this node may assign: it is assigned, agrees with an assigned node, or no assigned node lives."""
        return self.may_hold and (self._node_id in self._neighbours.holders or self._is_known_here(nodes))

    def assignable(self, nodes: Sequence[AgedHeartbeat]) -> list[AgedHeartbeat]:
        """Return the nodes that may get tasks: all but the refused, and strangers only with the same commits."""
        return [each for each in nodes if self._is_assignable(each.heartbeat)]

    def go_on_alone(self) -> None:
        """Stop waiting for the comparison while the bus is away, unless a live node differs."""
        self.is_admitted = self.is_admitted or self.doubt is None

    def _is_assignable(self, beat: Heartbeat) -> bool:
        if beat.node_id in self.others:
            return False
        is_comparable = bool(beat.commits) and self._node.end.version > 0
        return self._is_cluster(beat.node_id) or not is_comparable or self._finder.is_agreed(beat.node_id)

    def _is_cluster(self, node_id: str) -> bool:
        return node_id == self._node_id or node_id in self._neighbours.holders

    def _is_known_here(self, nodes: Sequence[AgedHeartbeat]) -> bool:
        """Whether a node of the assignment agrees with this one, or no such node lives."""
        comparable = self._comparable(nodes)
        return not comparable or any(self._finder.is_agreed(node_id) for node_id in comparable)

    def _doubt(self, nodes: Sequence[AgedHeartbeat]) -> str | None:
        """Return why this node may follow a fork of a node of the assignment; to settle it takes some heartbeats."""
        doubts = (self._finder.doubt(node_id) for node_id in self._comparable(nodes) if node_id not in self.others)
        return next(filter(None, doubts), None)

    def _comparable(self, nodes: Sequence[AgedHeartbeat]) -> list[str]:
        """List the nodes of the assignment whose commits can be compared."""
        lineage, holders = self._node.lineage, self._neighbours.holders - {self._node_id}
        beats = (each.heartbeat for each in nodes)
        return [beat.node_id for beat in beats if beat.node_id in holders and beat.lineage == lineage and beat.commits]

    def _has_waited(self, now_ms: float) -> bool:
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        return now_ms - self._waits_since_ms >= self._grace_ms

    def _own_history(self) -> OwnHistory:
        node, history, end = self._node, self._node.history, self._node.end
        place = masked_location(node.settings.checkpoint)
        return OwnHistory(place, history, node.lineage, end.version, end.confirmed_ms, history.seen)

    def _read(self, versions: Sequence[int]) -> None:
        for version in versions:
            self._node.history.learn_commit_time(version)
