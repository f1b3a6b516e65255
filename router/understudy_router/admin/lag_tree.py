"""The document of `GET /admin/v1/lag` as a tree: nodes, stores with all replicas, events. Unknown values are null
(pure).

The tree comes in small pieces of JSON: of 100,000 replicas it takes a second, and lookups are answered between two
pieces. All pieces are of one snapshot, so they cannot contradict each other, however slowly they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import orjson

from understudy_router.admin.lag_page import Query, replica_row, selected
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
    yield orjson.dumps(lag_head(snapshot, snapshot.bus_lost_why))[:-1] + b',"nodes":['
    for number, view in enumerate(snapshot.nodes.values()):
        yield b"," * bool(number) + orjson.dumps(node_row(snapshot, view))
    yield b'],"stores":['
    for number, route in enumerate(routes):
        yield b"," * bool(number)
        yield from _store(snapshot, route, query)
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


def _store(snapshot: Snapshot, route: StoreRoute, query: Query) -> Iterator[bytes]:
    yield orjson.dumps({"store": route.name, "operator_id": route.operator_id})[:-1] + b',"partitions":['
    comma = b""
    for replicas in selected(snapshot, query, route):
        for replica in _in_order_of_choice(snapshot, replicas):
            yield comma + orjson.dumps(replica_row(snapshot, replica))
            comma = b","
        yield b""
    yield b"]}"


def _in_order_of_choice(snapshot: Snapshot, replicas: Sequence[int]) -> Iterator[int]:
    """Yield the replicas of some tasks in the order in which the assignment names them, the active first."""
    assignment, index = snapshot.assignment, snapshot.index
    for task, few in groupby(replicas, key=index.task.__getitem__):
        assert assignment is not None
        held = {index.node[replica]: replica for replica in few}
        for node_id in assignment.tasks[index.key(task)].holders:
            if index.number_of[node_id] in held:
                yield held[index.number_of[node_id]]
