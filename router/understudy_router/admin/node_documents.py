"""A node, as reports show it (pure)."""

from __future__ import annotations

from understudy_router.admin.facts import NodeView
from understudy_router.admin.observed import Document
from understudy_router.admin.replica_index import ROLES
from understudy_router.admin.restoring import is_restoring
from understudy_router.admin.safe_to_stop import Losses
from understudy_router.admin.snapshot import Snapshot

NO_TASKS = [0] * len(ROLES)


def node_document(snapshot: Snapshot, view: NodeView, losses: Losses) -> Document:
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


def node_row(snapshot: Snapshot, view: NodeView) -> Document:
    """Return the members of one node with which every report begins. A dead node has no tasks."""
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


def _restoring(snapshot: Snapshot, view: NodeView) -> int:
    """Return how many replicas of a node restore."""
    number = snapshot.index.number_of.get(view.node_id)
    if number is None or not view.is_live:
        return 0
    others = len(snapshot.index.of_node[number]) - len(view.own)
    return sum(map(is_restoring, view.own.values())) + others * is_restoring(view.facts)
