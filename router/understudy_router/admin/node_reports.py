"""Reports on nodes: each as a document, the progress of its restores, and where it and this router disagree (pure; time
is passed in).

A difference counts when it lasts for three heartbeats, because a heartbeat or two settle most of them. A conclusion of
this router from its own requests counts at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

from understudy_router.admin.facts import ROLES, NodeView
from understudy_router.admin.safe_to_stop import Losses
from understudy_router.admin.snapshot import ClusterSnapshot, Document
from understudy_router.cluster.health import Health
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Heartbeat

NO_TASKS = [0] * len(ROLES)


def node_document(snapshot: ClusterSnapshot, view: NodeView, losses: Losses) -> Document:
    """Return one node. Unknown values are `None`."""
    beat = view.heartbeat
    return {
        **node_row(snapshot, view),
        "degraded": [] if beat is None else beat.degraded,
        "waits_for": None if beat is None else beat.waits_for,
        "restoring": _restoring(snapshot, view),
        "applied_version": None if beat is None else beat.applied.version,
        "safe_to_stop": {"safe": losses.is_safe if losses.is_known else None, "why": losses.why(view.node_id)},
    }


def node_row(snapshot: ClusterSnapshot, view: NodeView) -> Document:
    """Return the members of one node that every report begins with. A dead node has no tasks."""
    beat = view.heartbeat
    tasks = NO_TASKS if beat is None else snapshot.index.counts.get(view.node_id, NO_TASKS)
    return {
        "node_id": view.node_id,
        "host": view.endpoint.host,
        "port": view.endpoint.port,
        "zone": view.zone,
        "state": view.state,
        "live": view.is_live,
        "health": None if view.health is None else str(view.health.health),
        "heartbeat_age_ms": view.age_ms,
        "version": None if beat is None else beat.applied.version,
        **dict(zip(ROLES, tasks, strict=True)),
        "reason": view.reason,
    }


def _restoring(snapshot: ClusterSnapshot, view: NodeView) -> int:
    """Return how many replicas of a node restore."""
    number = snapshot.index.number_of.get(view.node_id)
    if number is None or not view.is_live:
        return 0
    others = len(snapshot.index.of_node[number]) - len(view.own)
    return sum(each.is_restoring for each in view.own.values()) + others * view.facts.is_restoring


MAX_RESTORES = 200
MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""

Key = tuple[str, str]
"""A node and its task."""


class _RestoreProgress(NamedTuple):
    """The bytes that were done at a moment, and the rate then."""

    at_ms: float
    done_bytes: int
    bytes_per_s: float | None


class RestoreTracker:
    """The memory of the progress of each restore."""

    def __init__(self) -> None:
        self._seen: dict[Key, _RestoreProgress] = {}

    def see(self, snapshot: ClusterSnapshot) -> Generator[None, None, list[Document]]:
        """Return the first MAX_RESTORES restores."""
        before, self._seen = self._seen, {}
        index, found = snapshot.index, list[Document]()
        for number, view in enumerate(snapshot.holders):
            yield
            if not view.is_live or not (view.facts.is_restoring or any(one.is_restoring for one in view.own.values())):
                continue
            for replica in index.of_node[number]:
                yield
                if snapshot.facts(replica).is_restoring:
                    found.append(self._shown(snapshot, view.node_id, replica, before))
                if len(found) == MAX_RESTORES:
                    return found
        return found

    def _shown(
        self, snapshot: ClusterSnapshot, node_id: str, replica: int, before: Mapping[Key, _RestoreProgress]
    ) -> Document:
        index, restore, rate = snapshot.index, snapshot.facts(replica).restore, None
        task = index.task[replica]
        key = (node_id, index.key(task))
        if restore is not None:
            seen = self._seen[key] = _seen(before.get(key), snapshot.about.now_ms, restore.done_bytes)
            rate = seen.bytes_per_s
        return {
            "node_id": node_id,
            "task": key[1],
            "stores": list(index.stores_of[index.operator_id[task]]),
            "stage": "unknown" if restore is None else restore.stage,
            "done_bytes": None if restore is None else restore.done_bytes,
            "total_bytes": None if restore is None else restore.total_bytes,
            "bytes_per_s": rate,
        }


def _seen(before: _RestoreProgress | None, now_ms: float, done_bytes: int) -> _RestoreProgress:
    if before is None or done_bytes < before.done_bytes:
        return _RestoreProgress(now_ms, done_bytes, None)
    took_ms = now_ms - before.at_ms
    if took_ms < MIN_MS:
        return before
    return _RestoreProgress(now_ms, done_bytes, round((done_bytes - before.done_bytes) * 1000 / took_ms, 1))


Difference = tuple[str, str, str]
"""A subject, and what the router and the node say of it."""

_AT_ONCE = frozenset({"health", "bus"})


class Disagreements:
    """The memory of when each difference began."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, str], float] = {}

    def see(self, snapshot: ClusterSnapshot) -> list[Document]:
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


def differences(snapshot: ClusterSnapshot, view: NodeView, beat: Heartbeat) -> Iterator[Difference]:
    """Yield the present differences between the router and a live node."""
    says = f"{beat.standing}, heartbeat {view.age_ms} ms ago"
    if view.health is not None and view.health.health is not Health.OK:
        yield "health", f"{view.health.health}: {view.health.why}", beat.standing
    if view.is_silent:
        yield "bus", "silent on Redis", says
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
