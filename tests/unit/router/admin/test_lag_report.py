"""The lag report. Pages: every row once, in order, whatever changes between two pages; filters; cursors; CSV. The tree:
of one moment, in small pieces. What is not known is null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import (
    NODES,
    assignments,
    finished,
    snapshot_of,
    stores_named,
    tables_with,
    worlds,
)
from tests.support.router.tables import HEARTBEAT_MS, assigned, beat, catalogue, expire, tables_of, task

from understudy_router.admin.facts import ROLES
from understudy_router.admin.lag_report import (
    SORTS,
    STATES,
    BadLagCursorError,
    LagCursor,
    LagPage,
    LagQuery,
    decoded,
    encoded,
    every_row,
    lag_tree,
    page_of,
)
from understudy_router.admin.snapshot import About, ClusterSnapshot, gather
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import CatalogueStores, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
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


def page(snapshot: ClusterSnapshot, query: LagQuery, cursor: LagCursor | None = None) -> LagPage:
    filled = LagQuery(query.store, query.node, query.state, query.role, query.sort, query.limit, cursor)
    return finished(page_of(snapshot, filled))


def walk(snapshot: ClusterSnapshot, query: LagQuery) -> list[dict[str, Any]]:
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
    world: tuple[Tables, CatalogueStores, float], query: LagQuery
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


def large(tasks: int) -> ClusterSnapshot:
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


World = tuple[Tables, CatalogueStores, float]
FILTERS = st.builds(
    LagQuery,
    node=st.none() | st.sampled_from(NODES),
    state=st.none() | st.sampled_from(["RUNNING", "CREATED", "DEAD", "UNKNOWN"]),
    role=st.none() | st.sampled_from(ROLES),
)


def reported(tables: Tables, *, now_ms: float = 0) -> dict[str, Any]:
    about = About(1, now_ms, 1_000_000_000, "flights", HostInfo("127.0.0.1", 8080))
    snapshot = finished(gather(tables, stores_of(catalogue(), "c1"), about))
    return dict(orjson.loads(b"".join(lag_tree(snapshot))))


def replicas_of(tables: Tables, stores: CatalogueStores, now_ms: float, query: LagQuery) -> Iterator[dict[str, Any]]:
    """Every store's replicas, by what a choice would know of each."""
    end = tables.end_version if tables.end_confirmed(now_ms) else None
    for name, route in stores.by_name.items():
        for partition in range(route.partitions):
            for each in candidates_of(tables, route.operator_id, partition, now_ms):
                state = each.state if each.is_live else "DEAD"
                if (
                    query.node in {None, each.node_id}
                    and query.state in {None, state or "UNKNOWN"}
                    and query.role in {None, each.role}
                ):
                    yield {
                        "store": name,
                        "partition": partition,
                        "node_id": each.node_id,
                        "host": each.endpoint.host,
                        "port": each.endpoint.port,
                        "role": each.role,
                        "state": state,
                        "current_offset_position": each.version,
                        "end_offset_position": end,
                        "offset_lag": each.offset_lag,
                        "time_lag_ms": each.time_lag_ms,
                        "report_age_ms": each.report_age_ms,
                        "error": each.error,
                    }


@given(worlds(), FILTERS)
def test_the_tree_says_of_each_replica_what_a_choice_would_know_in_the_order_of_a_choice(
    world: World, query: LagQuery
) -> None:
    tables, stores, now_ms = world
    tree = orjson.loads(b"".join(lag_tree(snapshot_of(tables, stores, now_ms=now_ms), query)))
    assert [store["store"] for store in tree["stores"]] == list(stores.by_name)
    found = [{"store": store["store"], **row} for store in tree["stores"] for row in store["partitions"]]
    assert found == list(replicas_of(tables, stores, now_ms, query))


def test_pieces_that_are_read_slowly_are_all_of_the_moment_of_the_first() -> None:
    partitions = 30
    tables = Tables(end_expiry_ms=10_000)
    tables.bus_back(0)
    tables.assigned(assigned({f"0_{each}": task("a", "b") for each in range(partitions)}, partitions=partitions), 0)
    for node_id in "ab":
        tables.heard(beat(node_id, partitions=partitions), age_ms=0, now_ms=0)
    stores = stores_of(catalogue(partitions=partitions), "c1")
    snapshot = snapshot_of(tables, stores)
    expected = b"".join(lag_tree(snapshot))
    pieces = lag_tree(snapshot)
    read = [next(pieces) for _ in range(4)]
    tables.heard(beat("b", sequence=2, version=9, end_version=9, partitions=partitions), age_ms=0, now_ms=10)
    tables.hop_failed("b", 10, "timeout")
    tables.assigned(
        assigned({f"0_{each}": task("b") for each in range(partitions)}, order=(1, 2), partitions=partitions), 10
    )
    assert b"".join([*read, *pieces]) == expected
    changed = orjson.loads(b"".join(lag_tree(snapshot_of(tables, stores, now_ms=10))))
    assert (changed["end_offset_position"], len(changed["stores"][0]["partitions"])) == (9, partitions)


def test_the_tree_names_the_dead_the_suspect_and_a_bus_that_is_away() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=3 * HEARTBEAT_MS)
    now_ms = 3 * HEARTBEAT_MS + 1
    expire(tables, now_ms)
    tables.hop_failed("b", now_ms, "timeout")
    tables.bus_lost(now_ms, "connection refused")
    report = reported(tables, now_ms=now_ms)
    nodes = {node["node_id"]: node for node in report["nodes"]}
    assert (nodes["a"]["live"], nodes["a"]["version"]) == (False, None)
    assert "silent" in nodes["a"]["reason"]
    assert (nodes["b"]["health"], nodes["b"]["reason"]) == ("suspect", "timeout")
    assert nodes["a"]["health"] is None
    assert report["bus"] == {"state": "degraded", "why": "connection refused"}
    assert [event["event"] for event in report["events"]][-3:] == ["died", "suspect", "bus-lost"]
