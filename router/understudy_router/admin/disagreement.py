"""The differences between the reports of this router and of a node about that node, and their beginnings (pure; time is
passed in).

A difference counts when it lasts for three heartbeats, because a heartbeat or two settle most of them. A conclusion of
this router from its own requests counts at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from understudy_router.admin.facts import NodeView
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.health import Health
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS


class Difference(NamedTuple):
    """The statements of the router and of a node that differ. `kind` names their subject."""

    node_id: str
    kind: str
    router_says: str
    node_says: str


class Disagreement(NamedTuple):
    """A difference that counts, with its beginning at this machine's monotonic time."""

    difference: Difference
    since_ms: float


_AT_ONCE = frozenset({"health", "bus"})


class Disagreements:
    """The memory of when each difference began."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, str], float] = {}

    def see(self, snapshot: Snapshot) -> list[Disagreement]:
        """Return the present differences that count, by node id."""
        now_ms, before = snapshot.about.now_ms, self._since_ms
        self._since_ms = {}
        found: list[Disagreement] = []
        for node_id, view in snapshot.nodes.items():
            for difference in differences(snapshot, view):
                key = (node_id, difference.kind)
                since_ms = self._since_ms[key] = before.get(key, now_ms)
                if difference.kind in _AT_ONCE or now_ms - since_ms > _patience_ms(view):
                    found.append(Disagreement(difference, since_ms))
        return found


def differences(snapshot: Snapshot, view: NodeView) -> Iterator[Difference]:
    """Yield the present differences between the router and a live node."""
    beat = view.heartbeat
    if beat is None:
        return
    says = f"{beat.standing}, heartbeat {view.age_ms} ms ago"
    if view.health is not None and view.health.health is not Health.OK:
        yield Difference(view.node_id, "health", f"{view.health.health}: {view.health.why}", beat.standing)
    if view.is_silent:
        yield Difference(view.node_id, "bus", "silent on the bus", says)
    if snapshot.lineage is not None and beat.lineage != snapshot.lineage:
        node_says = "no history: it cannot read its checkpoint" if beat.lineage is None else f"history {beat.lineage}"
        yield Difference(view.node_id, "lineage", f"history {snapshot.lineage}", node_says)
    if snapshot.catalogue is not None and beat.catalogue not in {None, snapshot.catalogue}:
        yield Difference(view.node_id, "catalogue", f"catalogue {snapshot.catalogue}", f"catalogue {beat.catalogue}")
    assignment = snapshot.assignment
    if assignment is not None and view.node_id in snapshot.layout.number_of:
        ours, theirs = assignment.order, (beat.term, beat.epoch)
        if ours != theirs:
            yield Difference(view.node_id, "assignment", _assignment(ours), _assignment(theirs))


def _assignment(order: tuple[int, int]) -> str:
    return f"assignment {order[1]} of term {order[0]}"


def _patience_ms(view: NodeView) -> float:
    beat = view.heartbeat
    return 0 if beat is None else EXPIRY_HEARTBEATS * beat.heartbeat_ms
