"""`GET /admin/v1/lag` of a router: every node and every replica as it knows them. What is not known is null (pure).

The report comes in pieces of JSON: of 100,000 replicas it takes seconds, and lookups are answered between two pieces.
Each replica is as it was when its piece was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import orjson

from understudy_router.cluster.catalogue import StoreRoute, Stores
from understudy_router.cluster.health import Change
from understudy_router.cluster.tables import DeadNode, NodeReport, Tables
from understudy_router.routing.candidates import Candidate, candidates_of
from understudy_shared.messages import Assignment, Heartbeat
from understudy_shared.times import utc_text
from understudy_shared.words import HostInfo

SLICE_PARTITIONS = 100
"""Partitions of one piece: two or three milliseconds."""

SLICE_TASKS = 2000
"""Tasks that are counted in one piece: as long."""


class Which(NamedTuple):
    """Which replicas a report is about: those of a node, in a state as reports show it, in a role; None: any."""

    node_id: str | None = None
    state: str | None = None
    role: str | None = None


EVERY = Which()

UNKNOWN = "UNKNOWN"
"""How a state is asked for that nobody knows."""


def lag_report(
    tables: Tables, stores: Stores | None, *, application_id: str, view_of: HostInfo, now_ms: float, now_us: int,
    unheard: str | None = None, store: str | None = None, which: Which = EVERY,
) -> Iterator[bytes]:  # fmt: skip
    """The whole report, or the part of it that is about one store or certain replicas. `now_us` is wall time, for
    people only. `unheard` is what is wrong with a bus that is there.
    """
    assignment = tables.assignment
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    duties: Counter[tuple[str, str]] = Counter()
    for counted in _duties(assignment):
        duties.update(counted)
        yield b""
    head = {
        "generated_at": utc_text(now_us),
        "view_of": {"router": f"{view_of.host}:{view_of.port}"},
        "application_id": application_id,
        "lineage": tables.lineage,
        "end_offset_position": tables.end_version or None,
        "end_confirmed": tables.end_confirmed(now_ms),
        "bus": {
            "state": "connected" if tables.bus_lost_why is None and unheard is None else "degraded",
            "why": tables.bus_lost_why or unheard or "",
        },
        "assignment": None
        if assignment is None
        else {"term": assignment.term, "epoch": assignment.epoch, "written_by": assignment.written_by},
        "nodes": [
            *(_node(node, tables.health.of(node_id), duties, now_ms) for node_id, node in sorted(tables.nodes.items())),
            *(_dead(dead, now_ms) for _, dead in sorted(tables.dead.items())),
        ],
    }
    yield orjson.dumps(head)[:-1] + b',"stores":['
    for number, route in enumerate(routes):
        yield b"," * bool(number)
        yield from _store(tables, route, which, now_ms)
    events = [
        {"at": _wall(event.at_ms, now_ms, now_us), "event": event.event, "detail": event.detail}
        for event in tables.events
    ]
    yield b'],"events":' + orjson.dumps(events) + b"}"


def _wall(at_ms: float, now_ms: float, now_us: int) -> str | None:
    return utc_text(now_us - round((now_ms - at_ms) * 1000))


def _store(tables: Tables, route: StoreRoute, which: Which, now_ms: float) -> Iterator[bytes]:
    end = tables.end_version if tables.end_confirmed(now_ms) else None
    yield orjson.dumps({"store": route.name, "operator_id": route.operator_id})[:-1] + b',"partitions":['
    has_any = False
    for first in range(0, route.partitions, SLICE_PARTITIONS):
        replicas = [
            {"partition": partition, **_replica(candidate, end)}
            for partition in range(first, min(first + SLICE_PARTITIONS, route.partitions))
            for candidate in candidates_of(tables, route.operator_id, partition, now_ms)
            if which is EVERY or _is_meant(candidate, which)
        ]
        yield b"," * (has_any and bool(replicas)) + orjson.dumps(replicas)[1:-1]
        has_any = has_any or bool(replicas)
    yield b"]}"


def _is_meant(candidate: Candidate, which: Which) -> bool:
    return (
        which.node_id in {None, candidate.node_id}
        and which.state in {None, _state(candidate) or UNKNOWN}
        and which.role in {None, candidate.role}
    )


def _state(candidate: Candidate) -> str | None:
    return candidate.state if candidate.is_live else "DEAD"


def _replica(candidate: Candidate, end: int | None) -> dict[str, object]:
    return {
        "node_id": candidate.node_id,
        "host": candidate.endpoint.host,
        "port": candidate.endpoint.port,
        "role": candidate.role,
        "state": _state(candidate),
        "current_offset_position": candidate.version,
        "end_offset_position": end,
        "offset_lag": candidate.offset_lag,
        "time_lag_ms": candidate.time_lag_ms,
        "report_age_ms": candidate.report_age_ms,
        "error": candidate.error,
    }


def _duties(assignment: Assignment | None) -> Iterator[Counter[tuple[str, str]]]:
    """How many tasks each node has in each role, by (node id, role), in parts to be added up."""
    tasks = iter(() if assignment is None else assignment.tasks.values())
    while few := list(islice(tasks, SLICE_TASKS)):
        duties: Counter[tuple[str, str]] = Counter()
        for task in few:
            if task.active is not None:
                duties[task.active, "active"] += 1
            duties.update((node_id, "standby") for node_id in task.standbys)
            duties.update((node_id, "warmup") for node_id in task.warmups)
        yield duties


def _node(node: NodeReport, health: Change, duties: Counter[tuple[str, str]], now_ms: float) -> dict[str, object]:
    node_id = node.heartbeat.node_id
    return {
        **_identity(node.heartbeat),
        "state": node.heartbeat.standing,
        "live": True,
        "health": health.health,
        "heartbeat_age_ms": round(node.age_ms(now_ms)),
        "version": node.heartbeat.applied.version,
        "active": duties[node_id, "active"],
        "standby": duties[node_id, "standby"],
        "warmup": duties[node_id, "warmup"],
        "reason": health.why,
    }


def _dead(dead: DeadNode, now_ms: float) -> dict[str, object]:
    return {
        **_identity(dead.heartbeat),
        "state": "dead",
        "live": False,
        "health": None,
        "heartbeat_age_ms": round(now_ms - dead.died_ms),
        "version": None,
        "active": 0,
        "standby": 0,
        "warmup": 0,
        "reason": dead.why,
    }


def _identity(heartbeat: Heartbeat) -> dict[str, object]:
    return {
        "node_id": heartbeat.node_id,
        "host": heartbeat.endpoint.host,
        "port": heartbeat.endpoint.port,
        "zone": heartbeat.zone,
    }
