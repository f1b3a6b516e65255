"""A node, as reports show it (pure)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from understudy_router.admin.facts import NodeView
from understudy_router.admin.layout import ROLES
from understudy_router.admin.observed import Document
from understudy_router.admin.restoring import is_restoring
from understudy_router.admin.safe_to_stop import BoundOf, Losses, losses_of, nodes_at_risk, usual_losses
from understudy_router.admin.snapshot import Snapshot

SLICE_NODES = 20


def node_document(snapshot: Snapshot, view: NodeView, losses: Losses) -> Document:
    """Return one node. Unknown values are `None`."""
    beat = view.heartbeat
    return {
        **node_row(view, snapshot.layout.counts_by_role(view.node_id)),
        "degraded": [] if beat is None else beat.degraded,
        "waits_for": None if beat is None else beat.waits_for,
        "restoring": _restoring(snapshot, view),
        "applied_version": None if beat is None else beat.applied.version,
        "safe_to_stop": {"safe": losses.is_safe if losses.is_known else None, "why": losses.why(view.node_id)},
    }


def node_row(view: NodeView, duties: Sequence[int]) -> Document:
    """Return the members of one node with which every report begins. `duties` counts its tasks by role; a dead node has
    no tasks.
    """
    beat = view.heartbeat
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
        **dict(zip(ROLES, [0, 0, 0] if beat is None else duties, strict=True)),
        "reason": view.reason,
    }


def losses_of_all(snapshot: Snapshot, bound_of: BoundOf) -> Generator[None, None, Mapping[str, Losses]]:
    """Return the cost of a stop of each node. The tasks of nodes that are not at risk are not examined one by one."""
    at_risk = yield from nodes_at_risk(snapshot, bound_of)
    found: dict[str, Losses] = {}
    for place, node_id in enumerate(snapshot.nodes, 1):
        number = snapshot.layout.number_of.get(node_id)
        if number is not None and (at_risk is None or number in at_risk):
            found[node_id] = yield from losses_of(snapshot, node_id, bound_of)
            yield
        else:
            found[node_id] = usual_losses(snapshot, node_id)
        if place % SLICE_NODES == 0:
            yield
    return found


def _restoring(snapshot: Snapshot, view: NodeView) -> int:
    """Return how many replicas of a node restore."""
    number = snapshot.layout.number_of.get(view.node_id)
    if number is None or not view.is_live:
        return 0
    known = snapshot.layout.replica_by_key
    own = [is_restoring(facts) for key, facts in view.own.items() if known(key, number) is not None]
    others = len(snapshot.layout.of_node[number]) - len(own)
    return sum(own) + others * is_restoring(view.facts)
