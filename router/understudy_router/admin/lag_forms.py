"""The forms of `GET /admin/v1/lag`: the tree of nodes, stores and events, a page of replicas, and CSV. Unknown values
are null, in CSV an empty field (pure).

The tree comes in small pieces of JSON: of 100,000 replicas it takes a second, and lookups are answered between two
pieces. All pieces are of one snapshot, so they cannot contradict each other, however slowly they are read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import orjson

from understudy_router.admin.lag_page import COLUMNS, Page, Query, Row, encoded, replica_row, selected
from understudy_router.admin.node_reports import node_row
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.degraded import bus_document
from understudy_shared.spark.temporal import utc_text

EVERY = Query()

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def lag_tree(snapshot: Snapshot, query: Query = EVERY) -> Iterator[bytes]:
    """Yield the tree, or its part about one store or certain replicas. Pieces may be empty.

    Raises UnknownStoreError with the first piece.
    """
    stores, store = snapshot.index.stores, query.store
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    yield orjson.dumps(_head(snapshot, snapshot.bus_lost_why))[:-1] + b',"nodes":['
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


def page_document(snapshot: Snapshot, page: Page) -> dict[str, object]:
    """Return a page of the report."""
    return {
        **_head(snapshot, snapshot.about.bus_lost_why),
        "replicas": page.rows,
        "total": page.total,
        "next_cursor": None if page.next is None else encoded(page.next),
    }


def csv_text(slices: Iterable[Sequence[Row]]) -> Iterator[bytes]:
    """Yield the heading and the rows as comma-separated values (RFC 4180). An unknown value is an empty field."""
    yield _lines([COLUMNS])
    for rows in slices:
        yield _lines([[_cell(row[column]) for column in COLUMNS] for row in rows])


def _head(snapshot: Snapshot, bus_lost_why: str | None) -> dict[str, object]:
    """Return the members with which the tree and a page begin."""
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
            replica = held.get(index.number_of[node_id])
            if replica is not None:
                yield replica


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(errors="replace")


def _cell(value: object) -> object:
    """Return a value with an apostrophe in front if a spreadsheet would take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
