"""The document of `GET /admin/v1/lag` as a tree: nodes, stores with all replicas, events. Unknown values are null
(pure).

The tree comes in pieces of JSON, each bounded by a number of things: of 100,000 replicas it takes a second, and lookups
are answered between two pieces. All pieces are of one snapshot, so they cannot contradict each other, however slowly
they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterator
from itertools import islice

import orjson

from understudy_router.admin.lag_page import Query, Row, matching, replica_row
from understudy_router.admin.layout import ROLES
from understudy_router.admin.node_documents import node_row
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute
from understudy_shared.spark.times import utc_text

SLICE_PARTITIONS = 200
SLICE_NODES = 100
SLICE_TASKS = 2000
"""Number of things that one piece is made of: one or two milliseconds."""

Duties = Counter[tuple[str, str]]
"""The number of tasks that each node has in each role, by (node id, role)."""

EVERY = Query()


def lag_tree(snapshot: Snapshot, query: Query = EVERY) -> Iterator[bytes]:
    """Yield the tree, or its part about one store or certain replicas. Pieces may be empty.

    Raises UnknownStoreError with the first piece.
    """
    stores, store = snapshot.layout.stores, query.store
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    duties = yield from _duties(snapshot)
    wanted = (yield from _wanted(snapshot, query)) if query.is_narrowed else None
    yield orjson.dumps(lag_head(snapshot, snapshot.bus_lost_why))[:-1] + b',"nodes":['
    views = list(snapshot.nodes.values())
    for first in range(0, len(views), SLICE_NODES):
        few = views[first : first + SLICE_NODES]
        nodes = [node_row(view, [duties[view.node_id, role] for role in ROLES]) for view in few]
        yield b"," * bool(first) + orjson.dumps(nodes)[1:-1]
    yield b'],"stores":['
    for number, route in enumerate(routes):
        yield b"," * bool(number)
        yield from _store(snapshot, route, wanted)
    about = snapshot.about
    events = [
        {"at": about.wall_text(event.at_ms), "event": event.event, "detail": event.detail} for event in snapshot.events
    ]
    yield b'],"events":' + orjson.dumps(events) + b"}"


def lag_head(snapshot: Snapshot, bus_lost_why: str | None) -> dict[str, object]:
    """Return the members with which every form of the lag report begins."""
    about, assignment = snapshot.about, snapshot.assignment
    return {
        "generated_at": utc_text(about.now_us),
        "view_of": about.view_of,
        "application_id": about.application_id,
        "lineage": snapshot.lineage,
        "end_offset_position": snapshot.end_version or None,
        "end_confirmed": snapshot.end_confirmed,
        "bus": bus_document(bus_lost_why or about.unheard),
        "assignment": None
        if assignment is None
        else {"term": assignment.term, "epoch": assignment.epoch, "written_by": assignment.written_by},
    }


def bus_document(why: str | None) -> dict[str, object]:
    """Return the state of the bus, and its fault if there is one."""
    return {"state": "connected" if why is None else "degraded", "why": why or ""}


def _wanted(snapshot: Snapshot, query: Query) -> Generator[bytes, None, Container[int]]:
    """Return the replicas that pass the query's filters; the yielded pieces are empty."""
    found: set[int] = set()
    for few in matching(snapshot, query):
        found.update(replica for *_, replica in few)
        yield b""
    return found


def _store(snapshot: Snapshot, route: StoreRoute, wanted: Container[int] | None) -> Iterator[bytes]:
    yield orjson.dumps({"store": route.name, "operator_id": route.operator_id})[:-1] + b',"partitions":['
    has_any = False
    for first in range(0, route.partitions, SLICE_PARTITIONS):
        partitions = range(first, min(first + SLICE_PARTITIONS, route.partitions))
        replicas = [row for partition in partitions for row in _rows(snapshot, route.operator_id, partition, wanted)]
        yield b"," * (has_any and bool(replicas)) + orjson.dumps(replicas)[1:-1]
        has_any = has_any or bool(replicas)
    yield b"]}"


def _rows(snapshot: Snapshot, operator_id: int, partition: int, wanted: Container[int] | None) -> Iterator[Row]:
    """Yield the replicas of one store partition in the order of a choice, the active first."""
    assignment, layout = snapshot.assignment, snapshot.layout
    duty = None if assignment is None else assignment.tasks.get(f"{operator_id}_{partition}")
    if duty is None:
        return
    first = layout.starts[layout.operators[operator_id].first + partition]
    for node_id in duty.holders:
        replica = layout.node.index(layout.number_of[node_id], first)
        if wanted is None or replica in wanted:
            yield replica_row(snapshot, replica, partition)


def _duties(snapshot: Snapshot) -> Generator[bytes, None, Duties]:
    """Count the duties of all nodes, by the assignment, whether or not its stores are known; the yielded pieces are
    empty.
    """
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
