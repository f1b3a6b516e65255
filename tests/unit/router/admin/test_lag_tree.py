"""The tree of the lag report: of one moment, in small pieces. What is not known is null."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.snapshots import NODES, finished, snapshot_of, worlds
from tests.support.router.tables import HEARTBEAT_MS, assigned, beat, catalogue, expire, tables_of, task

from understudy_router.admin.facts import ROLES
from understudy_router.admin.lag_report import LagQuery, lag_tree
from understudy_router.admin.snapshot import About, gather
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import Stores, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo

World = tuple[Tables, Stores, float]
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


def replicas_of(tables: Tables, stores: Stores, now_ms: float, query: LagQuery) -> Iterator[dict[str, Any]]:
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


def test_the_tree_says_null_for_lag_that_is_unknown() -> None:
    tables = tables_of(task("a", "b"), beat("a", end_age_ms=None))
    report = reported(tables)
    assert report["end_confirmed"] is False
    known, silent = report["stores"][0]["partitions"]
    assert (known["current_offset_position"], known["end_offset_position"], known["offset_lag"]) == (7, None, None)
    assert (silent["current_offset_position"], silent["offset_lag"], silent["report_age_ms"]) == (None, None, None)


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
