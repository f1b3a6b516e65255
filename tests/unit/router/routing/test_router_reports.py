"""The explanation of a key, and the lag report. What is not known is null."""

from __future__ import annotations

from typing import Any

import orjson
from tests.support.router.tables import (
    HEARTBEAT_MS,
    TASK,
    assigned,
    beat,
    catalogue,
    expire,
    port_of,
    route,
    tables_of,
    task,
)

from understudy_router.cluster.catalogue import stores_of
from understudy_router.cluster.health import MAX_BAD_IN_A_ROW
from understudy_router.cluster.tables import Tables
from understudy_router.routing.explain import explain_key, explain_store
from understudy_router.routing.lag_report import SLICE_PARTITIONS, lag_report
from understudy_shared.bounds import NO_BOUND, Bound
from understudy_shared.words import HostInfo


def explained(tables: Tables, bound: Bound = NO_BOUND, *, now_ms: float = 0) -> dict[str, Any]:
    explanation = explain_key(tables, route(), ("w",), bound, load={}, now_ms=now_ms)
    return dict(orjson.loads(orjson.dumps(explanation)))


def reported(tables: Tables, *, now_ms: float = 0) -> dict[str, Any]:
    report = lag_report(
        tables,
        stores_of(catalogue(), "c1"),
        application_id="flights",
        view_of=HostInfo("127.0.0.1", 8080),
        now_ms=now_ms,
        now_us=1_000_000_000,
    )
    return dict(orjson.loads(b"".join(report)))


def test_an_explanation_names_everybody_with_what_is_known_and_why() -> None:
    tables = tables_of(task("a", "b", "c"), beat("a", version=2), beat("b", version=6), beat("c", lineage="l2"))
    explanation = explained(tables, Bound(max_lag=1))
    assert explanation["key"] == {"word": "w"}
    assert (explanation["partition"], explanation["partitions"], explanation["term"], explanation["epoch"]) == (
        0,
        1,
        1,
        1,
    )
    assert (explanation["end_offset_position"], explanation["end_confirmed"], explanation["bounds"]) == (
        7,
        True,
        {"max_lag": 1},
    )
    assert [(each["node_id"], each["offset_lag"]) for each in explanation["choice"]] == [("b", 1), ("a", 5)]
    assert explanation["choice"][0]["why"] == "standby, 1 version behind"
    assert "lag-exceeded" in explanation["choice"][1]["why"]
    assert [(each["node_id"], each["reason"]) for each in explanation["exclusions"]] == [("c", "lineage-changed")]
    assert explanation["active_host"] == {"host": "127.0.0.1", "port": port_of("a")}


def test_an_explanation_says_null_for_what_is_not_known() -> None:
    explanation = explained(tables_of(task("a")))
    assert (explanation["end_offset_position"], explanation["end_confirmed"]) == (None, False)
    (silent,) = explanation["choice"]
    unknown = ("state", "version", "offset_lag", "time_lag_ms", "report_age_ms")
    assert [silent[name] for name in unknown] == [None] * 5


def test_the_metadata_of_a_store_has_every_partition_and_each_host_once() -> None:
    tables = Tables()
    tables.assigned(assigned({"0_0": task("a", "b"), "0_2": task("b", "a")}, partitions=3), 0)
    metadata = orjson.loads(b"".join(explain_store(tables, route(partitions=3))))
    a, b = ({"host": "127.0.0.1", "port": port_of(node_id)} for node_id in "ab")
    assert metadata["partitions"] == [
        {"partition": 0, "active_host": a, "standby_hosts": [b]},
        {"partition": 1, "active_host": None, "standby_hosts": []},
        {"partition": 2, "active_host": b, "standby_hosts": [a]},
    ]
    assert metadata["hosts"] == [a, b]


def test_the_report_has_the_members_that_were_agreed() -> None:
    report = reported(tables_of(task("a", "b", warmups=("c",)), beat("a"), beat("b", version=5), beat("c", version=1)))
    assert report["view_of"] == {"router": "127.0.0.1:8080"}
    assert report["assignment"] == {"term": 1, "epoch": 1, "written_by": "a"}
    assert report["bus"] == {"state": "connected", "why": ""}
    assert [(node["node_id"], node["active"], node["standby"], node["warmup"]) for node in report["nodes"]] == [
        ("a", 1, 0, 0),
        ("b", 0, 1, 0),
        ("c", 0, 0, 1),
    ]
    (store,) = report["stores"]
    assert (store["store"], store["operator_id"]) == ("words", 0)
    assert [(each["role"], each["offset_lag"]) for each in store["partitions"]] == [
        ("active", 0),
        ("standby", 2),
        ("warmup", 6),
    ]


def test_the_report_says_null_for_lag_that_is_unknown() -> None:
    tables = tables_of(task("a", "b"), beat("a", end_age_ms=None))
    report = reported(tables)
    assert report["end_confirmed"] is False
    known, silent = report["stores"][0]["partitions"]
    assert (known["current_offset_position"], known["end_offset_position"], known["offset_lag"]) == (7, None, None)
    assert (silent["current_offset_position"], silent["offset_lag"], silent["report_age_ms"]) == (None, None, None)


def test_the_report_names_the_dead_the_suspect_and_a_bus_that_is_away() -> None:
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


def test_before_anything_is_known_the_report_is_empty_and_not_an_error() -> None:
    report = reported(Tables())
    assert (report["lineage"], report["end_offset_position"], report["assignment"]) == (None, None, None)
    assert report["stores"] == [{"store": "words", "operator_id": 0, "partitions": []}]
    assert report["bus"]["state"] == "degraded"


def test_events_are_dated_by_how_long_ago_they_were() -> None:
    tables = tables_of(task("a"), now_ms=500)
    tables.heard(beat("a"), age_ms=0, now_ms=1500)
    assert [event["at"] for event in reported(tables, now_ms=2500)["events"]][-1] == "1970-01-01T00:16:39.000000Z"


def test_a_task_is_named_as_assignments_name_it() -> None:
    assert route().task(0) == TASK


def test_a_node_that_has_nothing_assigned_is_in_the_report() -> None:
    report = reported(tables_of(task("a"), beat("a"), beat("idle")))
    (idle,) = (node for node in report["nodes"] if node["node_id"] == "idle")
    assert (idle["live"], idle["health"], idle["active"], idle["standby"], idle["warmup"]) == (True, "ok", 0, 0, 0)
    assert "idle" not in {replica["node_id"] for replica in report["stores"][0]["partitions"]}


def test_a_node_in_quarantine_is_named_with_the_reason_by_report_and_explanation() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b", version=3))
    for number in range(MAX_BAD_IN_A_ROW):
        tables.hop_failed("a", number * 1000, "timeout: no reply within 1000 ms")
    explanation = explained(tables, now_ms=4000)
    assert [(each["node_id"], each["health"]) for each in explanation["choice"]] == [("b", "ok"), ("a", "quarantined")]
    why = f"{MAX_BAD_IN_A_ROW} bad results in a row, the last: timeout: no reply within 1000 ms"
    assert explanation["choice"][1]["why"] == f"asked last: quarantined, {why}"
    report = reported(tables, now_ms=4000)
    assert [(node["health"], node["reason"]) for node in report["nodes"]] == [("quarantined", why), ("ok", "")]
    assert [event["event"] for event in report["events"]][-2:] == ["suspect", "quarantined"]


def test_an_explanation_says_which_of_those_that_are_asked_late_is_suspect() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.hop_failed("a", 1, "refused: cannot connect")
    assert explained(tables, now_ms=1)["choice"][1]["why"] == (
        "active, 0 versions behind; asked late: suspect, refused: cannot connect"
    )
    behind = tables_of(task("a"), beat("a", version=1))
    behind.hop_failed("a", 1, "reset")
    (only,) = explained(behind, Bound(max_lag=1), now_ms=1)["choice"]
    assert only["why"].endswith("the node measures it anew; suspect, reset")


def test_large_reports_come_in_small_pieces_that_make_one_document() -> None:
    tasks = {f"0_{partition}": task("a", "b") for partition in range(950)}
    tables = Tables(end_expiry_ms=10_000)
    tables.bus_back(0)
    tables.assigned(assigned(tasks, partitions=950), 0)
    for node_id in "ab":
        tables.heard(beat(node_id, partitions=950), age_ms=0, now_ms=0)
    where = HostInfo("127.0.0.1", 8080)
    stores = stores_of(catalogue(partitions=950), "c1")
    pieces = list(lag_report(tables, stores, application_id="flights", view_of=where, now_ms=0, now_us=0))
    assert max(map(len, pieces)) < 400 * 2 * SLICE_PARTITIONS
    report = orjson.loads(b"".join(pieces))
    assert [each["partition"] for each in report["stores"][0]["partitions"]] == [n // 2 for n in range(2 * 950)]
    assert [node["active"] for node in report["nodes"]] == [950, 0]
    described = list(explain_store(tables, route(partitions=950)))
    assert len(described) == 2 + 3
    assert [each["partition"] for each in orjson.loads(b"".join(described))["partitions"]] == list(range(950))


def test_a_report_without_an_assignment_is_a_document() -> None:
    pieces = lag_report(
        Tables(), stores_of(catalogue(partitions=250), "c1"), application_id="flights",
        view_of=HostInfo("127.0.0.1", 8080), now_ms=0, now_us=0,
    )  # fmt: skip
    assert orjson.loads(b"".join(pieces))["stores"] == [{"store": "words", "operator_id": 0, "partitions": []}]
