"""The document of `GET /admin/v1/lag` as a tree: nodes, stores with all replicas, events. Unknown values are null
(pure).

The tree comes in small pieces of JSON: of 100,000 replicas it takes a second, and lookups are answered between two
pieces. All pieces are of one snapshot, so they cannot contradict each other, however slowly they are read.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator

import orjson

from understudy_router.admin.lag_page import Query, Row, matching, replica_row
from understudy_router.admin.node_documents import node_row
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute
from understudy_shared.spark.times import utc_text

EVERY = Query()


def lag_tree(snapshot: Snapshot, query: Query = EVERY) -> Iterator[bytes]:
    """Yield the tree, or its part about one store or certain replicas. Pieces may be empty.

    Raises UnknownStoreError with the first piece.
    """
    stores, store = snapshot.index.stores, query.store
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    wanted = (yield from _wanted(snapshot, query)) if query.is_narrowed else None
    yield orjson.dumps(lag_head(snapshot, snapshot.bus_lost_why))[:-1] + b',"nodes":['
    for number, view in enumerate(snapshot.nodes.values()):
        yield b"," * bool(number) + orjson.dumps(node_row(snapshot, view))
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
    comma = b""
    for partition in range(route.partitions):
        for row in _rows(snapshot, route.operator_id, partition, wanted):
            yield comma + orjson.dumps(row)
            comma = b","
        yield b""
    yield b"]}"


def _rows(snapshot: Snapshot, operator_id: int, partition: int, wanted: Container[int] | None) -> Iterator[Row]:
    """Yield the replicas of one store partition in the order of a choice, the active first."""
    assignment, index = snapshot.assignment, snapshot.index
    duty = None if assignment is None else assignment.tasks.get(f"{operator_id}_{partition}")
    if duty is None:
        return
    first = index.starts[index.tasks_of[operator_id][partition]]
    for node_id in duty.holders:
        replica = index.node.index(index.number_of[node_id], first)
        if wanted is None or replica in wanted:
            yield replica_row(snapshot, replica, partition)
