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

from understudy_router.cluster.tables import Tables
from understudy_router.http.app import StoreMetadata
from understudy_router.routing.choose import explain_key
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.spark.store_keys import parse_encoding


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
