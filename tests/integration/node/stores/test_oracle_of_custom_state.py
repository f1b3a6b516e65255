"""What `transformWithState` keeps is answered as Spark's own state reader has it: values, lists, maps, timers, and TTL.

Spark writes the checkpoint during the run. What must have occurred is asserted beside what must be equal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Reply, Served, ServedNode, served_node
from tests.support.oracle.changed import assert_changed
from tests.support.oracle.custom_compared import assert_every_version_equal, entries_of
from tests.support.oracle.custom_state import in_order, write_custom_checkpoint
from tests.support.oracle.exported import assert_exported
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import PARTITIONS, Kept, KindsCheckpoint, KindStore
from tests.support.oracle.record import record
from tests.support.oracle.scanned import assert_scanned, assert_sought, pages, scan_target, scanned
from tests.support.services.openapi import judge
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, ROCKSDB_V1, ROCKSDB_V2, StateFormat
from tests.support.spark.queries import wait_until

AVRO = replace(ROCKSDB_CHANGELOG_V2, encoding="avro")
FORMATS = [
    pytest.param(each, id=each.id, marks=() if each == ROCKSDB_CHANGELOG_V2 else pytest.mark.full)
    for each in (
        ROCKSDB_CHANGELOG_V2,
        AVRO,
        replace(ROCKSDB_V1, encoding="avro"),
        replace(ROCKSDB_CHANGELOG_V1, encoding="avro", row_checksum=True),
        ROCKSDB_V1,
        ROCKSDB_V2,
        ROCKSDB_CHANGELOG_V1,
        StateFormat("rocksdb", changelog=True, format_version=2, row_checksum=True),
    )
]
sees_no_format = pytest.mark.parametrize("oracle", FORMATS[:1], indirect=True)
"""For what is made of rows after they were read: the first case shares its checkpoint with all other tests."""
OF_AN_ANSWER = frozenset(
    {"status", "store", "key", "partition", "version", "committed_at", "watermark", "lag", "served_by", "position"}
    | {"next_cursor"}
)
"""Members that do not say what was found."""


@pytest.fixture(scope="module", params=FORMATS)
def oracle(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> KindsCheckpoint:
    state_format: StateFormat = request.param
    return write_custom_checkpoint(spark, tmp_path_factory.mktemp(state_format.id), state_format)


@pytest.fixture(scope="module")
def served(oracle: KindsCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """A node that shows the newest version. All tests of a checkpoint ask this one."""
    with served_node(oracle.path, tmp_path_factory.mktemp("data")) as node:
        _wait(node, oracle, oracle.last)
        yield node


def test_what_the_comparison_is_about_did_occur(oracle: KindsCheckpoint) -> None:
    kinds = {name: store.kind for name, store in oracle.stores.items()}
    assert sorted(kinds.values()) == ["list"] * 3 + ["map"] * 3 + ["timers"] * 2 + ["value"] * 3
    assert sum(name.endswith(".weather") for name in kinds) == 2, "the name is of two operators"
    for store in oracle.stores.values():
        assert all(store.kept[version] for version in oracle.versions), f"{store.name} keeps nothing"
        assert {kept.partition for kept in store.kept[oracle.last]} == set(range(PARTITIONS)), store.name
    keys = [repr(part) for store in oracle.stores.values() for kept in store.kept[oracle.last] for part in kept.key]
    for awkward in ("None", "''", "'日本語é'", "'NaN'"):
        assert awkward in keys, f"no key has {awkward}"
    trips, places, mood = (oracle.stores[name] for name in ("trips", "places", "mood"))
    assert max(len(kept.said["values"]) for kept in trips.kept[oracle.last]) > 5
    assert max(len(kept.said["entries"]) for kept in places.kept[oracle.last]) > 2
    assert _keys(mood, oracle.versions[0]) - _keys(mood, oracle.last), "Spark removed nothing that had expired"
    changed = _by_key(trips, oracle.last)
    shortened = [
        key for key, kept in _by_key(trips, oracle.versions[0]).items()
        if len(changed[key].said["values"]) != len(kept.said["values"])
    ]  # fmt: skip
    assert shortened, "no list changed"
    moved = [store for store in oracle.stores.values() if store.kind == "timers"]
    assert all(_keys_and_times(store, oracle.versions[0]) - _keys_and_times(store, oracle.last) for store in moved)


def test_every_key_at_every_retained_version_is_what_spark_reads(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    assert_every_version_equal(oracle, tmp_path)
    record(f"{pyspark.__version__}-custom-{oracle.state_format.id}", oracle.compared(pyspark.__version__))


def test_every_key_is_answered_by_a_node_one_by_one_and_in_batches(oracle: KindsCheckpoint, served: ServedNode) -> None:
    described = served.get("/v1/stores")
    document = served.get("/openapi.json").body
    _judge(document, "GET /v1/stores", described)
    stores: Any = described.body["stores"]
    shown = {each["store"]: each for each in stores}
    assert described.body["not_served"] == []
    assert [column["name"] for column in shown["places"]["key"]] == ["word", "d"]
    assert [column["type"] for column in shown["places"]["user_key"]] == ["string", "double"]
    assert [column["name"] for column in shown["mood"]["value"]] == ["s"], "the expiry is no column of the value"
    for store in oracle.stores.values():
        _assert_batch(store, served, oracle.last)
        for kept in store.kept[oracle.last][:3]:
            reply = served.look_up(kept.key, store=store.name)
            _assert_answer(kept, {"status": reply.status, **reply.body}, oracle.last)
            _judge(document, "GET /v1/stores/{store}/lookup", reply)
        gone = next(iter(_keys(store, oracle.versions[0]) - _keys(store, oracle.last)), None)
        if gone is not None:
            reply = served.look_up(json.loads(gone), store=store.name)
            assert (reply.status, reply.body["found"]) == (404, False)
        body = json.dumps({"keys": [kept.key, kept.key]}).encode()
        for query in ("", "?compact=true"):
            _judge(
                document, "POST /v1/stores/{store}/lookup", served.post(f"/v1/stores/{store.name}/lookup{query}", body)
            )


def test_a_scan_has_every_key_of_every_variable_once_for_pages_of_any_size(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    for store in oracle.stores.values():
        for limit in ("1", "7", "1000"):
            rows = scanned(served, store.name, limit=limit)
            assert_scanned(rows, store, oracle.last)
        assert_exported(served, store.name, rows, oracle.last)
        assert_sought(served, store, oracle.last)


def test_the_changes_of_each_version_are_keys_as_spark_reads_them(oracle: KindsCheckpoint, served: ServedNode) -> None:
    """Q33, where several records make an answer."""
    count = assert_changed(served, oracle)
    assert count > 10 or not (oracle.state_format.provider == "hdfs" or oracle.state_format.changelog)


def test_timers_in_a_range_of_time_are_those_that_spark_reads_in_the_order_of_time(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    for store in (each for each in oracle.stores.values() if each.kind == "timers"):
        for version in (oracle.versions[0], oracle.last):
            kept = store.kept[version]
            every = sorted((time, json.dumps(each.key)) for each in kept for time in each.said["timers"])
            times = sorted({time for time, _ in every})
            assert len(times) > 2
            for low, high in ((_LONG_AGO, times[-1]), (times[len(times) // 3], times[-1]), (times[0], None)):
                wanted = [each for each in every if low <= each[0] and (high is None or each[0] < high)]
                _assert_timers(oracle, served, store, wanted, _range(version, low, high))
            own = scanned(served, store.name, prefix=kept[0].key, version=version, **{"from": _LONG_AGO})
            assert [row["timers"][0] for row in own] == kept[0].said["timers"]
        reply = served.get(scan_target(store.name, order="key", **{"from": times[0]}))
        assert (reply.status, reply.body["where"]) == (400, "order")
        for asked in ({"from": "soon"}, {"from": times[-1], "to": times[0]}):
            assert served.get(scan_target(store.name, **asked)).status == 400


_LONG_AGO = "1900-01-01T00:00:00Z"


def _range(version: int, low: str, high: str | None) -> dict[str, Any]:
    return {"version": version, "from": low, **({} if high is None else {"to": high})}


def _assert_timers(
    oracle: KindsCheckpoint, served: Served, store: KindStore, wanted: list[tuple[str, str]], asked: dict[str, Any]
) -> None:
    for limit in (2, 1000):
        found = list(pages(served, store.name, limit=limit, explain=True, **asked))
        every = [row for page in found for row in page["rows"]]
        rows = [(row["timers"][0], json.dumps(list(row["key"].values()))) for row in every]
        assert [time for time, _ in rows] == [time for time, _ in wanted]
        assert sorted(rows) == wanted
        _assert_sought_by_time(oracle, found)
    (*_, counted) = pages(served, store.name, "count", **asked)
    assert counted["count"] == len(wanted)


def _assert_sought_by_time(oracle: KindsCheckpoint, found: list[dict[str, Any]]) -> None:
    """Each partition looks at the timers that it returns, which the page may have no room for."""
    for page in found:
        explained = page["explain"]
        if oracle.state_format.encoding == "avro":
            assert explained["access"] == "filtered-pass"
        else:
            assert explained["access"] == "seek"
            assert explained["looked_at"] <= PARTITIONS * max(1, explained["returned"])


def test_a_version_is_shown_when_it_is_committed_and_not_before(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    """The next changelog lies there, with pieces to merge into lists; its commit comes while we watch."""
    checkpoint = shutil.copytree(oracle.path, tmp_path / "checkpoint")
    commit, held = checkpoint / "commits" / str(oracle.last - 1), tmp_path / "held"
    commit.rename(held)
    before = oracle.versions[-2]
    with served_node(checkpoint, tmp_path / "data") as served:
        _wait(served, oracle, before)
        for store in oracle.stores.values():
            _assert_batch(store, served, before)
        held.rename(commit)
        _wait(served, oracle, oracle.last)
        for store in oracle.stores.values():
            _assert_batch(store, served, oracle.last)


@sees_no_format
def test_one_entry_of_a_map_is_found_by_a_path_and_by_the_exact_form(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    promises = oracle.stores["promises"]
    kept = next(each for each in promises.kept[oracle.last] if None not in each.key and "" not in each.key)
    key, entry = next(entries_of(kept))
    path = "/".join(quote(str(part), safe="") for part in key)
    by_path = served.get(f"/v1/stores/promises/keys/{path}")
    exact = served.look_up(key, store="promises")
    for reply in (by_path, exact):
        assert {name: reply.body[name] for name in entry} == entry
        asked: Any = reply.body["key"]
        assert list(asked.values()) == key
    whole = served.get(f"/v1/stores/promises/keys/{'/'.join(quote(str(part), safe='') for part in kept.key)}")
    assert whole.body["entries"] == in_order(kept.said)["entries"]
    absent = served.look_up([*kept.key, -1], store="promises")
    assert (absent.status, absent.body["found"]) == (404, False)
    wrong = served.look_up([*kept.key, "no day"], store="promises")
    assert wrong.status == 400
    assert "bad-key" in str(wrong.body["type"])
    assert "day" in str(wrong.body["where"])


@sees_no_format
def test_every_key_is_answered_through_a_router_as_by_the_node(
    oracle: KindsCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(oracle.path, tmp_path, redis.url, nodes=2) as known:
        router = known.router
        _wait(router, oracle, oracle.last)
        stores: Any = router.get("/v1/stores").body["stores"]
        assert {each["store"]: each["kind"] for each in stores} == {
            name: store.kind for name, store in oracle.stores.items()
        }
        for store in oracle.stores.values():
            _assert_batch(store, router, oracle.last)
            kept = store.kept[oracle.last][0]
            reply = router.look_up(kept.key, store=store.name)
            _assert_answer(kept, {"status": reply.status, **reply.body}, oracle.last)
            explained = router.get(f"/v1/stores/{store.name}/metadata?key={quote(json.dumps(kept.key))}")
            assert (explained.status, explained.body["partition"]) == (200, kept.partition)
            for key, entry in entries_of(kept):
                one = router.look_up(key, store=store.name)
                assert (one.status, {name: one.body[name] for name in entry}) == (200, entry)
                assert one.body["partition"] == kept.partition


def _wait(served: Served, oracle: KindsCheckpoint, version: int) -> None:
    """Return when every partition of every store shows that version."""
    wait_until(lambda: not served.not_ready() and _shows(served, oracle, version), what=f"version {version}")


def _shows(served: Served, oracle: KindsCheckpoint, version: int) -> bool:
    stores: Any = served.lag()["stores"]
    replicas = [replica for store in stores for replica in store["partitions"]]
    return len(stores) == len(oracle.stores) and all(
        replica["current_offset_position"] == version and replica["offset_lag"] == 0 for replica in replicas
    )


def _assert_batch(store: KindStore, served: Served, version: int) -> None:
    kept = store.kept[version]
    for each, answer in zip(kept, served.look_up_all([each.key for each in kept], store=store.name), strict=True):
        _assert_answer(each, answer, version)


def _assert_answer(kept: Kept, answer: dict[str, Any], version: int) -> None:
    said = {name: value for name, value in answer.items() if name not in OF_AN_ANSWER}
    assert answer["status"] == 200, f"{kept.key}: {answer}"
    assert as_text(in_order(said)) == as_text(in_order(kept.said)), f"{answer['store']} {kept.key}"
    assert as_text(list(answer["key"].values())) == as_text(kept.key)
    assert (answer["partition"], answer["version"]) == (kept.partition, version)


def _judge(document: dict[str, object], call: str, reply: Reply) -> None:
    judge(document, call, reply.status, reply.content_type, json.dumps(reply.body).encode())


def _by_key(store: KindStore, version: int) -> dict[str, Kept]:
    return {json.dumps(kept.key): kept for kept in store.kept[version]}


def _keys(store: KindStore, version: int) -> set[str]:
    return set(_by_key(store, version))


def _keys_and_times(store: KindStore, version: int) -> set[tuple[str, str]]:
    return {(key, time) for key, kept in _by_key(store, version).items() for time in kept.said["timers"]}
