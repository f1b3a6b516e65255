"""Pages of the lag report: every row once, in order, whatever changes between two pages; filters; cursors; CSV."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import (
    assignments,
    finished,
    snapshot_of,
    stores_named,
    tables_with,
    worlds,
)
from tests.support.router.tables import assigned, beat, task

from understudy_router.admin.facts import ROLES
from understudy_router.admin.lag_report import (
    SORTS,
    STATES,
    BadLagCursorError,
    LagCursor,
    LagQuery,
    Page,
    decoded,
    encoded,
    every_row,
    page_of,
)
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.tables import Tables
from understudy_shared.bus.messages import AssignedTask

PARTITIONS = 4
STORES = stores_named({"one": 0, "two": 0, "three": 3}, partitions=PARTITIONS)
BY_PLACE = ["store", "-store", "node", "-node"]
Place = tuple[str, int, str]

queries = st.builds(
    LagQuery,
    store=st.none() | st.sampled_from(["one", "two", "three"]),
    node=st.none() | st.sampled_from("abz"),
    state=st.none() | st.sampled_from(STATES),
    role=st.none() | st.sampled_from(ROLES),
    sort=st.sampled_from(SORTS),
    limit=st.integers(1, 5),
)


def page(snapshot: Snapshot, query: LagQuery, cursor: LagCursor | None = None) -> Page:
    filled = LagQuery(query.store, query.node, query.state, query.role, query.sort, query.limit, cursor)
    return finished(page_of(snapshot, filled))


def walk(snapshot: Snapshot, query: LagQuery) -> list[dict[str, Any]]:
    """All pages of one snapshot."""
    rows: list[dict[str, Any]] = []
    cursor: LagCursor | None = None
    while True:
        found = page(snapshot, query, None if cursor is None else decoded(encoded(cursor)))
        rows += found.rows
        cursor = found.next
        if cursor is None:
            return rows
        assert len(found.rows) == query.limit


def place(row: dict[str, Any]) -> Place:
    return (str(row["store"]), int(row["partition"]), str(row["node_id"]))


def value(row: dict[str, Any], key: str) -> float:
    member = {"lag": "offset_lag", "time_lag": "time_lag_ms", "age": "report_age_ms"}[key]
    return math.inf if row[member] is None else row[member]


@given(worlds(), queries)
def test_the_pages_of_a_list_have_every_row_that_is_meant_once_and_in_order(
    world: tuple[Tables, Stores, float], query: LagQuery
) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    every = walk(snapshot, LagQuery(limit=7))
    assert [place(row) for row in every] == sorted(map(place, every))
    assert len(every) == sum(len(snapshot.index.of_store(route)) for route in snapshot.index.routes)
    rows = walk(snapshot, query)
    meant = [
        row
        for row in every
        if query.store in {None, row["store"]}
        and query.node in {None, row["node_id"]}
        and query.state in {None, row["state"] or "UNKNOWN"}
        and query.role in {None, row["role"]}
    ]
    assert Counter(map(place, rows)) == Counter(map(place, meant))
    assert page(snapshot, query).total == len(meant)
    key, is_descending = query.key, query.sort.startswith("-")
    if key == "store":
        assert [place(row) for row in rows] == sorted(map(place, rows), reverse=is_descending)
    elif key == "node":
        nodes = [row["node_id"] for row in rows]
        assert nodes == sorted(nodes, reverse=is_descending)
    else:
        values = [value(row, key) for row in rows]
        assert values == sorted(values, reverse=is_descending)
    assert [row for rows in every_row(snapshot, query) for row in rows] == rows


@given(
    st.lists(assignments(partitions=PARTITIONS, operators=(0, 3)), min_size=1, max_size=6),
    st.sampled_from(BY_PLACE),
    st.integers(1, 4),
)
def test_a_row_that_is_there_throughout_is_on_one_page_whatever_happens_meanwhile(
    changes: list[dict[str, AssignedTask]], sort: str, limit: int
) -> None:
    tables = tables_with(changes[0], partitions=PARTITIONS)
    snapshots = [snapshot_of(tables, STORES)]
    for number, tasks in enumerate(changes[1:], 2):
        tables.assigned(assigned(tasks, order=(1, number), partitions=PARTITIONS), 0)
        snapshots.append(snapshot_of(tables, STORES, tick=number))
    throughout = set.intersection(*({place(row) for row in walk(each, LagQuery(limit=9))} for each in snapshots))
    seen: list[Place] = []
    cursor, query, later = None, LagQuery(sort=sort, limit=limit), iter(snapshots)
    snapshot = next(later)
    while True:
        found = page(snapshot, query, cursor)
        seen += map(place, found.rows)
        cursor, snapshot = found.next, next(later, snapshot)
        if cursor is None:
            break
    counts = Counter(seen)
    assert all(count == 1 for where, count in counts.items() if where in throughout)
    assert throughout <= counts.keys()


def large(tasks: int) -> Snapshot:
    stores = stores_named({"one": 0}, partitions=tasks)
    duties = {f"0_{partition}": task("a", "b") for partition in range(tasks)}
    heartbeats = [beat("a", partitions=tasks), beat("b", partitions=tasks, version=5)]
    return snapshot_of(tables_with(duties, *heartbeats, partitions=tasks), stores)


def test_a_cursor_is_good_for_its_list_alone() -> None:
    snapshot = large(4)
    cursor = page(snapshot, LagQuery(limit=2)).next
    assert cursor is not None
    assert cursor.tick == 0
    for other in (LagQuery(limit=2, node="a"), LagQuery(limit=2, sort="-store"), LagQuery(limit=2, store="one")):
        with pytest.raises(BadLagCursorError, match="other filters"):
            page(snapshot, other, cursor)
    by_value = page(snapshot, LagQuery(sort="-lag", limit=2)).next
    assert by_value is not None
    assert by_value.tick == snapshot.tick
    with pytest.raises(BadLagCursorError):
        page(snapshot, LagQuery(sort="-lag", limit=2), by_value._replace(node_id="z"))
