"""The explanation of a key, and the metadata of a store. What is not known is null."""

from __future__ import annotations

from typing import Any

import orjson
from tests.support.router.tables import (
    APPLICATION,
    LINEAGE,
    TASK,
    assigned,
    beat,
    port_of,
    route,
    tables_of,
    task,
)

from understudy_router.cluster.health import MAX_BAD_IN_A_ROW
from understudy_router.cluster.tables import Tables
from understudy_router.routing.explain import explain_key
from understudy_router.routing.store_metadata import StoreMetadata
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.spark.key_encoding import parse_encoding


def explained(tables: Tables, bound: Bound = NO_BOUND, *, now_ms: float = 0) -> dict[str, Any]:
    explanation = explain_key(tables, route(), ("w",), bound, load={}, now_ms=now_ms)
    return dict(orjson.loads(orjson.dumps(explanation)))


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
    metadata = orjson.loads(b"".join(StoreMetadata(tables, route(partitions=3), {}).pieces()))
    a, b = ({"host": "127.0.0.1", "port": port_of(node_id)} for node_id in "ab")
    assert metadata["partitions"] == [
        {"partition": 0, "active_host": a, "standby_hosts": [b]},
        {"partition": 1, "active_host": None, "standby_hosts": []},
        {"partition": 2, "active_host": b, "standby_hosts": [a]},
    ]
    assert metadata["hosts"] == [a, b]


def test_the_metadata_of_a_store_places_keys_as_the_router_does_and_excludes_what_it_does_not_read() -> None:
    """What a client needs that asks nodes itself."""
    beats = {
        "a": beat("a"),
        "b": beat("b", state="draining"),
        "c": beat("c", lineage="l2"),
        "d": beat("d", partitions=8),
    }
    tables = tables_of(task("a", "b", "c", "d"), *beats.values())
    asked = StoreMetadata(tables, route(), {"max_lag": 5})
    metadata = orjson.loads(b"".join(asked.pieces()))
    assert parse_encoding(metadata["encoding"], 1).layout(1) == route().codec.layout(1)
    assert (metadata["lineage"], metadata["application_id"], metadata["bounds"]) == (
        LINEAGE,
        APPLICATION,
        {"max_lag": 5},
    )
    excluded = {each["port"]: each["reason"] for each in metadata["excluded_hosts"]}
    assert excluded == {port_of("b"): "draining", port_of("c"): "lineage-changed", port_of("d"): "other-layout"}
    tag = asked.etag()
    assert StoreMetadata(tables, route(), {"max_lag": 5}).etag() == tag
    assert StoreMetadata(tables, route(), {}).etag() != tag, "other bounds"
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=1)
    assert StoreMetadata(tables, route(), {"max_lag": 5}).etag() != tag, "the node drains no more"
    tables.assigned(assigned({TASK: task("b", "a")}, order=(1, 2)), 1)
    moved = StoreMetadata(tables, route(), {"max_lag": 5})
    assert orjson.loads(b"".join(moved.pieces()))["epoch"] == 2


def test_a_task_is_named_as_assignments_name_it() -> None:
    assert route().task(0) == TASK


def test_a_node_in_quarantine_is_explained_with_the_reason() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b", version=3))
    for number in range(MAX_BAD_IN_A_ROW):
        tables.hop_failed("a", number * 1000, "timeout: no reply within 1000 ms")
    explanation = explained(tables, now_ms=4000)
    assert [(each["node_id"], each["health"]) for each in explanation["choice"]] == [("b", "ok"), ("a", "quarantined")]
    why = f"{MAX_BAD_IN_A_ROW} bad results in a row, the last: timeout: no reply within 1000 ms"
    assert explanation["choice"][1]["why"] == f"asked last: quarantined, {why}"


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


def test_the_metadata_of_a_large_store_comes_in_pieces_that_make_one_document() -> None:
    count = 100
    tables = Tables()
    tables.assigned(assigned({f"0_{partition}": task("a", "b") for partition in range(count)}, partitions=count), 0)
    described = list(StoreMetadata(tables, route(partitions=count), {}).pieces())
    assert len(described) == 2 + count
    assert [each["partition"] for each in orjson.loads(b"".join(described))["partitions"]] == list(range(count))
