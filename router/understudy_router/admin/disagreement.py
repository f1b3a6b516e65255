"""The differences between the reports of this router and of a node about that node, and their beginnings (pure; time is
passed in).

A difference counts when it lasts for three heartbeats, because a heartbeat or two settle most of them. A conclusion of
this router from its own requests counts at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_router.admin.facts import NodeView
from understudy_router.admin.observed import Document
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.health import Health
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Heartbeat

Difference = tuple[str, str, str]
"""A subject, and what the router and the node say of it."""

_AT_ONCE = frozenset({"health", "bus"})


class Disagreements:
    """The memory of when each difference began."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, str], float] = {}

    def see(self, snapshot: Snapshot) -> list[Document]:
        """Return the present differences that count, by node id."""
        now_ms, before = snapshot.about.now_ms, self._since_ms
        self._since_ms = {}
        found: list[Document] = []
        for node_id, view in snapshot.nodes.items():
            beat = view.heartbeat
            if beat is None:
                continue
            for kind, router_says, node_says in differences(snapshot, view, beat):
                since_ms = self._since_ms[node_id, kind] = before.get((node_id, kind), now_ms)
                if kind in _AT_ONCE or now_ms - since_ms > EXPIRY_HEARTBEATS * beat.heartbeat_ms:
                    since = snapshot.about.wall_text(since_ms)
                    says = {"router_says": router_says, "node_says": node_says}
                    found.append({"node_id": node_id, **says, "since": since})
        return found


def differences(snapshot: Snapshot, view: NodeView, beat: Heartbeat) -> Iterator[Difference]:
    """Yield the present differences between the router and a live node."""
    says = f"{beat.standing}, heartbeat {view.age_ms} ms ago"
    if view.health is not None and view.health.health is not Health.OK:
        yield "health", f"{view.health.health}: {view.health.why}", beat.standing
    if view.is_silent:
        yield "bus", "silent on the bus", says
    if snapshot.lineage is not None and beat.lineage != snapshot.lineage:
        node_says = "no history: it cannot read its checkpoint" if beat.lineage is None else f"history {beat.lineage}"
        yield "lineage", f"history {snapshot.lineage}", node_says
    if snapshot.catalogue is not None and beat.catalogue not in {None, snapshot.catalogue}:
        yield "catalogue", f"catalogue {snapshot.catalogue}", f"catalogue {beat.catalogue}"
    assignment = snapshot.assignment
    if assignment is not None and view.node_id in snapshot.index.number_of:
        ours, theirs = assignment.order, (beat.term, beat.epoch)
        if ours != theirs:
            yield "assignment", _assignment(ours), _assignment(theirs)


def _assignment(order: tuple[int, int]) -> str:
    return f"assignment {order[1]} of term {order[0]}"
