"""`GET /admin/v1/lag` of a router as a tree: nodes, stores with all replicas, events. What is not known is null (pure).

The tree comes in pieces of JSON, each bounded by a number of things: of 100,000 replicas it takes a second, and lookups
are answered between two pieces. All pieces are of one snapshot, so they cannot contradict each other, however slowly
they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from itertools import islice
from typing import NamedTuple

import orjson

from understudy_router.admin.events import wall_text
from understudy_router.admin.facts import UNKNOWN, NodeView
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute
from understudy_shared.bus.messages import AssignedTask, Heartbeat
from understudy_shared.spark.times import utc_text

SLICE_PARTITIONS = 200
SLICE_NODES = 100
SLICE_TASKS = 2000
"""What one piece is made of: one or two milliseconds."""

Duties = Counter[tuple[str, str]]
"""How many tasks each node has in each role, by (node id, role)."""


class Which(NamedTuple):
    """Which replicas the tree is about: those of a node, in a state as reports show it, in a role; None: any."""

    node_id: str | None = None
    state: str | None = None
    role: str | None = None


EVERY = Which()


def lag_tree(snapshot: Snapshot, *, store: str | None = None, which: Which = EVERY) -> Iterator[bytes]:
    """The tree, or the part of it that is about one store or certain replicas. Pieces may be empty.

    Raises UnknownStoreError with the first piece.
    """
    stores = snapshot.layout.stores
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    duties = yield from _duties(snapshot)
    yield orjson.dumps(_head(snapshot))[:-1] + b',"nodes":['
    views = list(snapshot.nodes.values())
    for first in range(0, len(views), SLICE_NODES):
        nodes = [_node(view, duties) for view in views[first : first + SLICE_NODES]]
        yield b"," * bool(first) + orjson.dumps(nodes)[1:-1]
    yield b'],"stores":['
    for number, route in enumerate(routes):
        yield b"," * bool(number)
        yield from _store(snapshot, route, which)
    events = [
        {"at": wall_text(snapshot, event.at_ms), "event": event.event, "detail": event.detail}
        for event in snapshot.events
    ]
    yield b'],"events":' + orjson.dumps(events) + b"}"


def _head(snapshot: Snapshot) -> dict[str, object]:
    about, assignment = snapshot.about, snapshot.assignment
    why = snapshot.bus_lost_why or about.unheard
    return {
        "generated_at": utc_text(about.now_us),
        "view_of": about.view_of,
        "application_id": about.application_id,
        "lineage": snapshot.lineage,
        "end_offset_position": snapshot.end_version or None,
        "end_confirmed": snapshot.end_confirmed,
        "bus": {"state": "connected" if why is None else "degraded", "why": why or ""},
        "assignment": None
        if assignment is None
        else {"term": assignment.term, "epoch": assignment.epoch, "written_by": assignment.written_by},
    }


def _store(snapshot: Snapshot, route: StoreRoute, which: Which) -> Iterator[bytes]:
    yield orjson.dumps({"store": route.name, "operator_id": route.operator_id})[:-1] + b',"partitions":['
    has_any = False
    for first in range(0, route.partitions, SLICE_PARTITIONS):
        partitions = range(first, min(first + SLICE_PARTITIONS, route.partitions))
        replicas = [row for partition in partitions for row in _rows(snapshot, route.operator_id, partition, which)]
        yield b"," * (has_any and bool(replicas)) + orjson.dumps(replicas)[1:-1]
        has_any = has_any or bool(replicas)
    yield b"]}"


def _rows(snapshot: Snapshot, operator_id: int, partition: int, which: Which) -> Iterator[dict[str, object]]:
    """The replicas of one store partition, the active first."""
    assignment, layout = snapshot.assignment, snapshot.layout
    key = f"{operator_id}_{partition}"
    duty = None if assignment is None else assignment.tasks.get(key)
    if duty is None:
        return
    end = snapshot.end_version if snapshot.end_confirmed else None
    for node_id in duty.holders:
        view, role = snapshot.holders[layout.number_of[node_id]], _role(duty, node_id)
        facts = view.own.get(key, view.facts)
        if which is not EVERY and not (
            which.node_id in {None, node_id}
            and which.state in {None, facts.state or UNKNOWN}
            and which.role in {None, role}
        ):
            continue
        yield {
            "partition": partition,
            "node_id": node_id,
            "host": view.endpoint.host,
            "port": view.endpoint.port,
            "role": role,
            "state": facts.state,
            "current_offset_position": facts.version,
            "end_offset_position": end,
            "offset_lag": facts.offset_lag,
            "time_lag_ms": facts.time_lag_ms,
            "report_age_ms": facts.report_age_ms,
            "error": facts.error,
        }


def _role(duty: AssignedTask, node_id: str) -> str:
    return "active" if node_id == duty.active else "standby" if node_id in duty.standbys else "warmup"


def _duties(snapshot: Snapshot) -> Generator[bytes, None, Duties]:
    """Count the duties of all nodes; the pieces are empty. By the assignment, whether or not its stores are known."""
    tasks = iter(() if snapshot.assignment is None else snapshot.assignment.tasks.values())
    found: Duties = Counter()
    while few := list(islice(tasks, SLICE_TASKS)):
        for task in few:
            if task.active is not None:
                found[task.active, "active"] += 1
            for node_id in task.standbys:
                found[node_id, "standby"] += 1
            for node_id in task.warmups:
                found[node_id, "warmup"] += 1
        yield b""
    return found


def _node(view: NodeView, duties: Duties) -> dict[str, object]:
    """A live node, or one that died or left."""
    beat = view.heartbeat
    if beat is None:
        assert view.dead is not None, "these are the nodes that were heard of"
        return {
            **_identity(view.dead.heartbeat),
            "state": "dead",
            "live": False,
            "health": None,
            "heartbeat_age_ms": view.age_ms,
            "version": None,
            "active": 0,
            "standby": 0,
            "warmup": 0,
            "reason": view.dead.why,
        }
    assert view.health is not None, "each live node has one"
    return {
        **_identity(beat),
        "state": beat.standing,
        "live": True,
        "health": view.health.health,
        "heartbeat_age_ms": view.age_ms,
        "version": beat.applied.version,
        "active": duties[view.node_id, "active"],
        "standby": duties[view.node_id, "standby"],
        "warmup": duties[view.node_id, "warmup"],
        "reason": view.health.why,
    }


def _identity(heartbeat: Heartbeat) -> dict[str, object]:
    return {
        "node_id": heartbeat.node_id,
        "host": heartbeat.endpoint.host,
        "port": heartbeat.endpoint.port,
        "zone": heartbeat.zone,
    }
