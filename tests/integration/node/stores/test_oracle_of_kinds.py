"""Every kind of state is answered as Spark's own state reader has it: by key, at a node, through a router, in batches.

Spark writes the checkpoints during the run. What must have occurred is asserted beside what must be equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.reader import CheckpointReader, has_keys
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Reply, Served, ServedNode, served_node
from tests.support.oracle.answered import (
    LISTS,
    OF_AN_ANSWER,
    assert_answer,
    assert_batch,
    assert_history,
    assert_several,
    assert_snapshot,
    wait_for_last,
    watch_target,
)
from tests.support.oracle.changed import assert_changed
from tests.support.oracle.exported import assert_exported
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import PARTITIONS, Kept, KindsCheckpoint, KindStore, write_kinds_checkpoint
from tests.support.oracle.kinds_compared import assert_equal
from tests.support.oracle.record import record
from tests.support.oracle.scanned import assert_scanned, assert_sought, scanned
from tests.support.services.openapi import judge
from tests.support.services.watches import Watcher
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)
from tests.support.spark.kinds import BRANCHES, Placing

from understudy_shared.base.words import StoreName
from understudy_shared.spark.key_codec import KeyCodec

OF_EACH_PROVIDER = (HDFS_V1, ROCKSDB_CHANGELOG_V2)
SCATTERED: list[Any] = [
    pytest.param((HDFS_V1, "repartition"), id="scattered-by-repartition-hdfs"),
    pytest.param((ROCKSDB_CHANGELOG_V2, "repartition"), id="scattered-by-repartition", marks=pytest.mark.full),
    pytest.param((HDFS_V1, "static-join"), id="scattered-by-static-join", marks=pytest.mark.full),
]
FEW = [*(pytest.param(each, id=each.id, marks=pytest.mark.full) for each in OF_EACH_PROVIDER), *SCATTERED]
OTHER_FORMATS = (
    ROCKSDB_V1,
    ROCKSDB_V2,
    ROCKSDB_CHANGELOG_V1,
    StateFormat("hdfs", codec="zstd", row_checksum=True),
    StateFormat("rocksdb", changelog=True, format_version=2, row_checksum=True),
)
CASES = [*FEW, *(pytest.param(each, id=each.id, marks=pytest.mark.full) for each in OTHER_FORMATS)]
"""Formats by themselves, and with what places rows by a part of the keys before the operators. Each run has the hardest
of them; keys of every kind that the hash places are compared with Spark 3.5's there.
"""

sees_no_format = pytest.mark.parametrize("oracle", FEW, indirect=True)
"""For what is made of rows after they were read: the first cases share checkpoints with all other tests."""


@pytest.fixture(scope="module", params=CASES)
def oracle(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> KindsCheckpoint:
    given: StateFormat | tuple[StateFormat, Placing] = request.param
    state_format, placing = given if isinstance(given, tuple) else (given, "by-hash")
    return write_kinds_checkpoint(spark, tmp_path_factory.mktemp(state_format.id), state_format, placing=placing)


@pytest.fixture(scope="module")
def served(oracle: KindsCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """A node that shows the newest version. All tests of a checkpoint ask this one."""
    with served_node(oracle.path, tmp_path_factory.mktemp("data")) as node:
        wait_for_last(node, oracle)
        yield node


def test_what_the_comparison_is_about_did_occur(oracle: KindsCheckpoint) -> None:
    assert {store.operator for store in oracle.stores.values()} == {*BRANCHES, "stateStoreSave"}
    assert len(oracle.versions) == 3
    for store in oracle.stores.values():
        assert all(store.kept[version] for version in oracle.versions), f"{store.operator} keeps nothing"
        if store.operator != "globalLimit":
            assert len({kept.partition for kept in store.kept[oracle.last]}) > 1, store.operator
    keys = [repr(part) for store in oracle.stores.values() for kept in store.kept[oracle.last] for part in kept.key]
    for awkward in ("None", "''", "'日本語é'", "'NaN'", "-0.0", "0.0"):
        assert awkward in keys, f"no key has {awkward}"
    (lately,) = oracle.of("dedupeWithinWatermark")
    assert Counter(kept.said["expired"] for kept in lately.kept[oracle.last]).keys() == {True, False}
    (groups,) = oracle.of("applyInPandasWithState")
    timeouts = [kept.said["timeout_at"] for rows in groups.kept.values() for kept in rows]
    assert None in timeouts
    assert len(set(timeouts)) > 2
    (visits,) = oracle.of("sessionWindowStateStoreSaveExec")
    assert max(len(kept.said["sessions"]) for kept in visits.kept[oracle.last]) > 2
    sessions = [session for kept in visits.kept[oracle.last] for session in kept.said["sessions"]]
    assert {session["expired"] for session in sessions} == {True, False}
    sides = [kept.said["rows"] for side in oracle.of("symmetricHashJoin") for kept in side.kept[oracle.last]]
    assert max(map(len, sides)) > 2
    assert {row["matched"] for rows in sides for row in rows} == {True, False}
    assert _keys(lately, oracle.versions[0]) - _keys(lately, oracle.last), "nothing was evicted"


def test_every_key_at_every_retained_version_is_what_spark_reads(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            assert {store.name: store.kind for store in reader.stores.values()} == {
                store.name: store.kind for store in oracle.stores.values()
            }
            for store in oracle.stores.values():
                assert_equal(reader, store, version)
    if oracle.placing == "by-hash":
        record(f"{pyspark.__version__}-kinds-{oracle.state_format.id}", oracle.compared(pyspark.__version__))


def test_keys_lie_where_the_hash_of_the_whole_key_says_only_where_the_store_says_so(
    oracle: KindsCheckpoint, tmp_path: Path
) -> None:
    with closing(CheckpointReader(oracle.path, tmp_path)) as reader:
        elsewhere = Counter[str]()
        for store in oracle.stores.values():
            served = reader.stores[StoreName(store.name)]
            assert served.codec.is_scattered is (oracle.placing != "by-hash" and has_keys(served)), store.operator
            hashed = KeyCodec(served.key_schema, num_hash_columns=served.codec.num_hash_columns)
            for kept in store.kept[oracle.last] if has_keys(served) else ():
                placed = hashed.partition(served.codec.parse_json(kept.key), PARTITIONS)
                elsewhere[store.operator] += placed != kept.partition
    by_part = {"dedupe", "applyInPandasWithState", "sessionWindowStateStoreSaveExec", "stateStoreSave"}
    assert {operator for operator, keys in elsewhere.items() if keys} == (
        set() if oracle.placing == "by-hash" else by_part
    )


@sees_no_format
def test_an_absent_key_of_a_scattered_store_is_absent_in_all_partitions(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    (seen,) = oracle.of("dedupe")
    absent = served.look_up(["absent", 7.5], store=seen.name)
    (in_a_batch,) = served.look_up_all([["absent", 7.5]], store=seen.name)
    stores: Any = served.get("/v1/stores").body["stores"]
    assert (absent.status, absent.body["found"], absent.body["version"]) == (404, False, oracle.last)
    assert in_a_batch["partition"] == absent.body["partition"]
    assert (absent.body["partition"] is None) is (oracle.placing != "by-hash")
    placement = {each["store"]: each["placement"] for each in stores}[seen.name]
    assert placement == ("by-hash" if oracle.placing == "by-hash" else "scattered")


def test_every_key_is_answered_by_a_node_one_by_one_and_in_batches(oracle: KindsCheckpoint, served: ServedNode) -> None:
    for store in oracle.stores.values():
        for kept in store.kept[oracle.last]:
            reply = served.look_up(kept.key, store=store.name)
            assert_answer(oracle, store, kept, {"status": reply.status, **reply.body})
        assert_batch(oracle, store, served)
        gone = next(iter(_keys(store, oracle.versions[0]) - _keys(store, oracle.last)), None)
        if gone is not None:
            reply = served.look_up(json.loads(gone), store=store.name)
            assert (reply.status, reply.body["found"]) == (404, False)
    described = served.get("/v1/stores")
    assert described.body["not_served"] == []
    document = served.get("/openapi.json").body
    _judge(document, "GET /v1/stores", described)
    for store in oracle.stores.values():
        key = store.kept[oracle.last][0].key
        _judge(document, "GET /v1/stores/{store}/lookup", served.look_up(key, store=store.name))
        body = json.dumps({"keys": [key, key]}).encode()
        for query in ("", "?compact=true"):
            reply = served.post(f"/v1/stores/{store.name}/lookup{query}", body)
            _judge(document, "POST /v1/stores/{store}/lookup", reply)


def test_a_named_version_is_answered_as_spark_reads_it_by_a_node_that_never_showed_it(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    """Q57."""
    for version in oracle.versions:
        for store in oracle.stores.values():
            assert_batch(oracle, store, served, version=version)
            kept = store.kept[version][0]
            reply = served.look_up(kept.key, store=store.name, bounds=f"version={version}")
            assert_answer(oracle, store, kept, {"status": reply.status, **reply.body}, version=version)
            snapshot = served.look_up(kept.key, store=store.name, bounds=f"snapshot={reply.body['position']}")
            assert snapshot.body["version"] == version
    assert served.node.past.opened > 0
    any_store, key = store.name, quote(json.dumps(kept.key))
    gone = served.get(f"/v1/stores/{any_store}/lookup?key={key}&version=0")
    assert (gone.status, gone.problem) == (410, "version-gone")
    assert gone.body["retained_versions"] == [_first_retained(oracle), oracle.last]
    later = served.get(f"/v1/stores/{any_store}/lookup?key={key}&version={oracle.last + 1}&wait_ms=0")
    assert (later.status, later.problem) == (503, "no-acceptable-replica")
    assert "version-not-yet" in later.text


def test_the_history_of_a_key_is_what_spark_reads_of_it_at_each_version(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    first, last = oracle.versions[0], oracle.last
    for store in oracle.stores.values():
        for kept in (store.kept[last][0], store.kept[first][-1]):
            assert_history(oracle, store, kept.key, served)


@sees_no_format
def test_several_stores_are_read_at_one_version(oracle: KindsCheckpoint, served: ServedNode) -> None:
    """Q64."""
    for version in (None, oracle.versions[0]):
        assert_several(oracle, served, version)


def _first_retained(oracle: KindsCheckpoint) -> int:
    return min(int(path.name) for path in (oracle.path / "commits").iterdir() if path.name.isdigit()) + 1


@sees_no_format
def test_what_is_said_to_have_expired_is_what_spark_removes_in_the_next_batch(oracle: KindsCheckpoint) -> None:
    """The members of the answers are compared with these elsewhere; here they are compared with what Spark did."""
    (lately,) = oracle.of("dedupeWithinWatermark")
    (visits,) = oracle.of("sessionWindowStateStoreSaveExec")
    removed = kept_on = 0
    for version in oracle.versions[:-1]:
        later = {json.dumps(kept.key) for kept in lately.kept[version + 1]}
        for kept in lately.kept[version]:  # each name comes up once
            assert (json.dumps(kept.key) in later) is not kept.said["expired"], kept
            removed += kept.said["expired"]
        after = {
            (json.dumps(kept.key), session["start"])
            for kept in visits.kept[version + 1]
            for session in kept.said["sessions"]
        }
        for kept in visits.kept[version]:
            for session in kept.said["sessions"]:
                is_there = (json.dumps(kept.key), session["start"]) in after
                assert not (session["expired"] and is_there), (kept.key, session)
                removed, kept_on = removed + session["expired"], kept_on + is_there
    assert removed > 10
    assert kept_on > 0


@sees_no_format
def test_the_pages_of_every_key_together_are_what_spark_reads(oracle: KindsCheckpoint, served: ServedNode) -> None:
    for store in oracle.stores.values():
        if store.kind in LISTS:
            member = LISTS[store.kind]
            for kept in sorted(store.kept[oracle.last], key=partial(_length, member))[-5:]:
                _assert_pages(served, store, kept, member)


def _length(member: str, kept: Kept) -> int:
    return len(kept.said[member])


def _assert_pages(served: Served, store: KindStore, kept: Kept, member: str) -> None:
    found: list[Any] = []
    cursor = ""
    while cursor is not None:
        bounds = f"limit=2&cursor={cursor}" if cursor else "limit=2"
        answer: Any = served.look_up(kept.key, store=store.name, bounds=bounds).body
        assert 0 < len(answer[member]) <= 2
        found += answer[member]
        cursor = answer["next_cursor"]
    assert as_text(found) == as_text(kept.said[member])


@sees_no_format
def test_what_a_scan_would_have_to_sort_is_sorted_before_its_version_is_shown(
    oracle: KindsCheckpoint, tmp_path: Path
) -> None:
    """The order takes memory, so a reader who had to sort would leave more of it in use."""
    (visits,) = oracle.of("sessionWindowStateStoreSaveExec")
    with served_node(oracle.path, tmp_path / "data") as served:
        wait_for_last(served, oracle)
        assert served.node.generation is not None
        replicas = served.node.generation.readers[StoreName(visits.name)].replicas.values()
        before = [replica.resident_bytes for replica in replicas]
        served.look_up_all([kept.key for kept in visits.kept[oracle.last]], store=visits.name)
        assert [replica.resident_bytes for replica in replicas] == before


def test_a_scan_and_an_export_have_every_key_of_every_kind_once(oracle: KindsCheckpoint, served: ServedNode) -> None:
    """Q1, Q17, Q64."""
    for store in oracle.stores.values():
        for limit in ("1", "2", "7", "1000"):
            rows = scanned(served, store.name, limit=limit)
            assert_scanned(rows, store, oracle.last)
        assert_exported(served, store.name, rows, oracle.last)
        assert_sought(served, store, oracle.last)


def test_the_changes_of_each_version_are_keys_as_spark_reads_them(oracle: KindsCheckpoint, served: ServedNode) -> None:
    """Q33, where several records make an answer."""
    count = assert_changed(served, oracle)
    assert count > 10 or not (oracle.state_format.provider == "hdfs" or oracle.state_format.changelog)


@sees_no_format
def test_longs_are_texts_in_every_kind_of_answer_that_is_asked_for_so(
    oracle: KindsCheckpoint, served: ServedNode
) -> None:
    for store in oracle.stores.values():
        kept = store.kept[oracle.last][0]
        reply = served.look_up(kept.key, store=store.name, bounds="longs=string")
        said = {name: value for name, value in reply.body.items() if name not in OF_AN_ANSWER}
        assert as_text(said) == as_text(_longs_as_text(kept.said)), store.operator


@sees_no_format
def test_every_key_is_answered_through_a_router_as_by_the_node(
    oracle: KindsCheckpoint, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(oracle.path, tmp_path, redis.url, nodes=2) as known:
        router = known.router
        wait_for_last(router, oracle)
        kinds: Any = router.get("/v1/stores").body["stores"]
        assert {each["store"]: each["kind"] for each in kinds} == {
            store.name: store.kind for store in oracle.stores.values()
        }
        assert_several(oracle, router, None)
        assert_several(oracle, router, oracle.versions[0])
        for store in oracle.stores.values():
            assert_batch(oracle, store, router)
            assert_batch(oracle, store, router, version=oracle.versions[0])
            assert_history(oracle, store, store.kept[oracle.last][0].key, router)
            kept = store.kept[oracle.last][0]
            reply = router.look_up(kept.key, store=store.name)
            assert_answer(oracle, store, kept, {"status": reply.status, **reply.body})
            explained = router.get(f"/v1/stores/{store.name}/metadata?key={quote(json.dumps(kept.key))}")
            assert explained.status == 200
            asked: Any = explained.body.get("asked", [explained.body])
            assert kept.partition in [each["partition"] for each in asked]
            assert len(asked) == (PARTITIONS if explained.body["placement"] == "scattered" else 1)
            with Watcher(router.port, watch_target(store, kept)) as watched:
                assert_snapshot(watched.take(), kept)


def _judge(document: dict[str, object], call: str, reply: Reply) -> None:
    judge(document, call, reply.status, reply.content_type, json.dumps(reply.body).encode())


def _longs_as_text(value: object) -> object:
    if isinstance(value, dict):
        return {name: _longs_as_text(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_longs_as_text(inner) for inner in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _keys(store: KindStore, version: int) -> set[str]:
    return {json.dumps(kept.key) for kept in store.kept[version]}


@pytest.mark.full
def test_a_timeout_in_state_format_1_is_the_whole_long_of_which_sparks_reader_shows_the_lower_half(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark declares that column an int, and writes a long into it."""
    conf = {"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1"}
    oracle = write_kinds_checkpoint(spark, tmp_path, HDFS_V1, operators=["applyInPandasWithState"], conf=conf)
    (store,) = oracle.stores.values()
    with served_node(oracle.path, tmp_path / "data") as served:
        wait_for_last(served, oracle)
        answers = served.look_up_all([kept.key for kept in store.kept[oracle.last]], store=store.name)
    assert answers
    timeouts = set()
    for kept, answer in zip(store.kept[oracle.last], answers, strict=True):
        ours, sparks = dict(cast("dict[str, Any]", answer["value"])), dict(kept.said["value"])
        timeout_ms, half = ours.pop("timeoutTimestamp"), sparks.pop("timeoutTimestamp")
        assert ours == sparks
        assert (timeout_ms - half) % 2**32 == 0
        timeouts.add(timeout_ms)
    assert -1 in timeouts
    assert max(timeouts) > 2**32
