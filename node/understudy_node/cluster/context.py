"""The objects that all parts of one member share: its view of the nodes, its state of the bus, and its identity."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from understudy_node.events import BUS_AWAY
from understudy_node.node import Node
from understudy_shared.base.clock import Clock
from understudy_shared.base.plausible import is_far_ahead
from understudy_shared.base.words import WRITES_REFUSED
from understudy_shared.bus.base import BusError, BusRefusedError
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip
from understudy_shared.bus.messages import Heartbeat, NodeEndpoint
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.view import PROVEN_BEATS, ClusterView, orders

log = logging.getLogger(__name__)


class MemberId(NamedTuple):
    """The identity of one process: the id of its node, and its incarnation, which each start makes anew."""

    node_id: str
    incarnation: str

    def __str__(self) -> str:
        return "/".join(self)


class Neighbours(ClusterView):
    """The view of one node, which contains the node itself."""

    def __init__(
        self,
        own_id: str,
        *,
        refuse: Callable[[str, str], None] = lambda kind, why: None,
        history: Callable[[], tuple[str | None, int]] = lambda: (None, 0),
    ) -> None:
        super().__init__(refuse, history)
        self._own_id = own_id

    def members(self) -> Mapping[str, NodeEndpoint]:
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
        """Whether this node's assignment is implausibly far above all others'."""
        others = (node for node_id, node in self.nodes.items() if node_id != self._own_id)
        return is_far_ahead(self.order, orders(others))


def outvoted(own: Heartbeat, nodes: list[AgedHeartbeat]) -> str | None:
    """Return why this node must not act for its application: most nodes follow another checkpoint. None if it may.

    If two lineages have equally many nodes, the one with the smallest node id counts, so that both sides agree.
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


class BusState:
    """The state of listening and of writing, which can fail independently; `causes` is empty while both work."""

    def __init__(self) -> None:
        self._subscribe_error: str | None = "not connected yet"
        self._publish_error: str | None = None
        self._is_refused = False

    @property
    def causes(self) -> dict[str, str]:
        """The reason why the bus does not work, at most one: a failed write explains more than a silence."""
        if self._publish_error is not None and self._is_refused:
            return {WRITES_REFUSED: f"Redis refuses writes: {self._publish_error}"}
        why = self._publish_error or self._subscribe_error
        return {} if why is None else {BUS_AWAY: f"Redis is away: {why}"}

    def subscribed(self, error: str | None) -> None:
        """Note that messages arrive (None), or why they do not."""
        was, self._subscribe_error = self.causes, error
        self._note(was)

    def published(self, error: BusError | None) -> None:
        """Note that writes succeed (None), or why they fail."""
        was, self._publish_error = self.causes, None if error is None else str(error)
        self._is_refused = isinstance(error, BusRefusedError)
        self._note(was)

    def _note(self, was: dict[str, str]) -> None:
        now = self.causes
        for cause in now.keys() - was.keys():
            log.warning("%s; lookups go on", now[cause], extra={"action": "bus-lost", "cause": cause})
        if was and not now:
            log.info("Redis is there", extra={"action": "bus-back"})


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
        self.neighbours.heard(heartbeat, age_ms=0, now_ms=self.clock.monotonic_ms())
