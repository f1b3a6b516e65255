"""The answer is Spark's: every key of every shape, in every layout of files, compared with Spark's own state reader.

Spark writes the checkpoints during the run. Nothing here may pass because nothing was compared: what must have occurred
is asserted beside what must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.support.checkpoint.reader import CheckpointReader, has_keys
from tests.support.cluster.served_node import Served, ServedNode, served_node
from tests.support.oracle.checkpoint import (
    BATCHES,
    PARTITIONS,
    OracleCheckpoint,
    Shape,
    read_rows,
    retained_batches,
    write_oracle_checkpoint,
)
from tests.support.oracle.exported import assert_exported
from tests.support.oracle.json import as_text, json_array, json_object, path_segments
from tests.support.oracle.record import record
from tests.support.oracle.scanned import scan_target, scanned
from tests.support.oracle.serving import Asked, served_by_a_process
from tests.support.oracle.spark_reader import OracleRow, canonical_rows, ordered_keys, read_changes
from tests.support.services.changes import changes_of
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, STATE_FORMATS_CI, STATE_FORMATS_FULL, StateFormat
from tests.support.spark.queries import wait_until
from tests.support.spark.shapes import BRANCH_NAMES

from understudy_node.stores.stores import ServedStore
from understudy_shared.spark.unsafe_row import compile_row_decoder

FORMATS = [
    pytest.param(each, id=each.id, marks=() if each == ROCKSDB_CHANGELOG_V2 else pytest.mark.full)
    for each in dict.fromkeys((*STATE_FORMATS_CI, *STATE_FORMATS_FULL))
]
"""In every run the HDFS-backed provider is compared by the kinds of state, by windows and by Spark 3.5."""
sees_no_format = pytest.mark.parametrize("oracle", FORMATS[: len(STATE_FORMATS_CI)], indirect=True)
"""For what is made of rows after they were read: the first cases share checkpoints with all other tests."""
CHANGED = [
    pytest.param(("window",), id="window"),
    pytest.param(tuple(sorted(set(BRANCH_NAMES) - {"window"})), id="others", marks=pytest.mark.full),
]
"""Shapes whose changes are compared: windows are evicted, so that there are deletions."""

BATCH_KEYS = 200
"""More than one batch for the largest store."""

ABSENT_KEYS = [
    ("text", ["absent"], "'absent'"),
    ("text", ["日本語"], "'日本語'"),
    ("composite", ["absent", 7, None], "'absent', 7, CAST(NULL AS BIGINT)"),
    ("composite", [None, None, 5], "CAST(NULL AS STRING), CAST(NULL AS INT), 5L"),
    ("narrow", ["-77.70"], "CAST('-77.70' AS DECIMAL(10,2))"),
    ("wide", ["-77.70000"], "CAST('-77.70000' AS DECIMAL(30,5))"),
    ("date", ["1492-10-12"], "DATE'1492-10-12'"),
    ("timestamp", ["1815-06-18T11:35:00.000001Z"], "TIMESTAMP'1815-06-18 11:35:00.000001Z'"),
    ("local", ["1815-06-18T11:35:00.000001"], "TIMESTAMP_NTZ'1815-06-18 11:35:00.000001'"),
    ("binary", ["AP+B"], "X'00FF81'"),
    ("double", [-77.75], "-77.75D"),
    ("float", [-77.75], "-77.75F"),
    ("struct", [["absent", [3, None]]], "named_struct('a', 'absent', 'b', named_struct('c', 3, 'd', NULL))"),
    ("array", [["absent", None, ""]], "array('absent', NULL, '')"),
    ("small", [True, 99, None], "true, 99Y, CAST(NULL AS SMALLINT)"),
    (
        "window",
        [{"start": "1999-01-01T00:00:00Z", "end": "1999-01-01T01:00:00Z"}, "a"],
        "named_struct('s', TIMESTAMP'1999-01-01 00:00:00Z', 'e', TIMESTAMP'1999-01-01 01:00:00Z'), 'a'",
    ),
]
"""Keys that no batch has, as a reader sends them and as Spark's SQL writes them."""


@pytest.fixture(scope="module", params=FORMATS)
def oracle(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> OracleCheckpoint:
    state_format: StateFormat = request.param
    return write_oracle_checkpoint(spark, tmp_path_factory.mktemp(state_format.id), state_format)


@pytest.fixture(scope="module")
def served(oracle: OracleCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """A node that shows the newest version. All tests of a checkpoint ask this one."""
    with served_node(oracle.path, tmp_path_factory.mktemp("data")) as node:
        _wait_for_the_end(oracle, node)
        yield node


def test_what_the_comparison_is_about_did_occur(oracle: OracleCheckpoint) -> None:
    retained = retained_batches(oracle.state_format)
    assert oracle.versions == tuple(range(BATCHES + 1 - retained, BATCHES + 1))
    assert set(oracle.shapes) == set(BRANCH_NAMES)
    assert all(len(shape.rows[version]) > 0 for shape in oracle.shapes.values() for version in oracle.versions)
    assert {row.partition for _, row in oracle.last_rows()} == set(range(PARTITIONS))
    assert oracle.shapes["window"].evicted(oracle.last), "no window was evicted"
    keys = [repr(part) for _, row in oracle.last_rows() for part in row.key]
    values = [repr(part) for _, row in oracle.last_rows() for part in row.value]
    for awkward in ("None", "''", "'日本語é'", "'\\x00'", "b''", "nan", "inf", "-inf", "[None]", "-1", "-719162"):
        assert awkward in keys, f"no key is {awkward}"
    assert "-0.0" not in keys, "Spark groups -0.0 with 0.0"
    for awkward in ("None", "''", "nan", "-inf", "-0.0"):
        assert awkward in values, f"no value is {awkward}"
    kinds = {path.suffix for path in (oracle.path / "state" / "0" / "1").iterdir()}
    changes, snapshot = {"hdfs": (".delta", ".snapshot"), "rocksdb": (".changelog", ".zip")}[
        oracle.state_format.provider
    ]
    assert snapshot in kinds
    assert (changes in kinds) is (oracle.state_format.provider == "hdfs" or oracle.state_format.changelog)


def test_every_key_at_every_retained_version_is_what_spark_reads(oracle: OracleCheckpoint, tmp_path: Path) -> None:
    for version in oracle.versions:
        # Each with a directory of its own: a local copy from an earlier version would hide which snapshot is chosen.
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            assert reader.versions()[-len(oracle.versions) :] == list(oracle.versions)
            for shape in oracle.shapes.values():
                ours = canonical_rows(read_rows(reader, _store(reader, shape), version))
                assert ours == canonical_rows(shape.rows[version]), f"{shape.name} at version {version}"
    record(f"{pyspark.__version__}-shapes-{oracle.state_format.id}", [oracle.compared(pyspark.__version__)])


@sees_no_format
def test_every_key_sent_as_json_is_encoded_and_placed_as_spark_did(oracle: OracleCheckpoint, tmp_path: Path) -> None:
    with closing(CheckpointReader(oracle.path, tmp_path)) as reader:
        for shape in oracle.shapes.values():
            store = _store(reader, shape)
            decode = compile_row_decoder(store.key_schema)
            stored = {(row.partition, repr(decode(row.key))): row.key for row in reader.rows(store, oracle.last)}
            partitions = PARTITIONS if has_keys(store) else 1
            for row in shape.rows[oracle.last]:
                for sent in (json_array(row.key, shape.key_type), json_object(row.key, shape.key_type)):
                    parsed = store.codec.parse_json(sent)
                    assert store.codec.encode(parsed) == stored[row.partition, repr(row.key)], f"{shape.name} {sent}"
                    assert store.codec.partition(parsed, partitions) == row.partition, f"{shape.name} {sent}"


def test_every_key_is_answered_over_http_with_the_value_that_spark_has(
    oracle: OracleCheckpoint, tmp_path: Path
) -> None:
    asked = Counter[str]()
    with _served(oracle, tmp_path) as served:
        for shape, row in oracle.last_rows():
            key = quote(as_text(json_array(row.key, shape.key_type)), safe="")
            reply = served.get(f"/v1/stores/{shape.store}/lookup?key={key}")
            _assert_answer(oracle, shape, row, {"status": reply.status, **reply.body})
            asked["exact"] += 1
            segments = path_segments(row.key, shape.key_type)
            if segments is not None:
                path = "/".join(quote(segment, safe="") for segment in segments)
                reply = served.get(f"/v1/stores/{shape.store}/keys/{path}")
                _assert_answer(oracle, shape, row, {"status": reply.status, **reply.body})
                asked["path"] += 1
        for shape in oracle.shapes.values():
            keys = [json_object(row.key, shape.key_type) for row in shape.rows[oracle.last]]
            results = _look_up_all(served, shape, keys)
            for row, result in zip(shape.rows[oracle.last], results, strict=True):
                _assert_answer(oracle, shape, row, result)
            asked["batch"] += len(results)
        stores = served.get("/admin/v1/lag").body["stores"]
        assert isinstance(stores, list)
        assert [part["marks"] for store in stores for part in store["partitions"] if part["marks"]] == []
    total = len(list(oracle.last_rows()))
    assert asked["exact"] == asked["batch"] == total
    assert asked["path"] > total // 3


def test_a_scan_has_every_key_of_every_shape_once(oracle: OracleCheckpoint, served: ServedNode) -> None:
    """Q1, Q64, and Q6 of keys with several columns."""
    for shape in oracle.shapes.values():
        wanted = {
            as_text(json_array(row.key, shape.key_type)): as_text(json_object(row.value, shape.value_type))
            for row in shape.rows[oracle.last]
        }
        for limit in ("7", "1000"):
            rows = scanned(served, shape.store, limit=limit)
            assert {as_text(list(row["key"].values())): as_text(row["value"]) for row in rows} == wanted, shape.name
            assert len(rows) == len(wanted)
        assert_exported(served, shape.store, rows, oracle.last)
        _assert_filtered(served, shape, rows)


@pytest.mark.parametrize("names", CHANGED)
def test_the_changes_of_each_version_are_those_of_sparks_change_feed(
    names: tuple[str, ...], oracle: OracleCheckpoint, spark: SparkSession, served: ServedNode
) -> None:
    first, last = oracle.versions[1], oracle.last
    deleted = 0
    for shape in (oracle.shapes[name] for name in names):
        if not (oracle.state_format.provider == "hdfs" or oracle.state_format.changelog):
            reply = served.get(scan_target(shape.store, "changes", **{"from": first}))
            assert (reply.status, reply.problem) == (400, "bad-bound"), "there is no changelog to read"
            continue
        ours = changes_of(served, first, store=shape.store)
        assert ours.end["to"] == last
        theirs = read_changes(spark, oracle.path, shape.operator_id, first - 1, last - 1)
        for version in range(first, last + 1):
            found = {
                (each["partition"], as_text(each["key"])): as_text(each["value"]) if each["found"] else None
                for each in ours.of(version)
            }
            assert len(found) == len(ours.of(version))
            assert found == {
                (partition, as_text(json_object(key, shape.key_type))): (
                    None if value is None else as_text(json_object(value, shape.value_type))
                )
                for (partition, _), (key, value) in theirs.get(version - 1, {}).items()
            }, f"{shape.name} at version {version}"
            deleted += list(found.values()).count(None)
    if "window" in names and (oracle.state_format.provider == "hdfs" or oracle.state_format.changelog):
        assert deleted > 0, "no window was evicted"


@pytest.fixture(scope="module")
def orders() -> dict[str, list[tuple[int, tuple[Any, ...]]]]:
    """Spark's order of the keys by shape, asked for once: the keys of all formats are those of the same batches."""
    return {}


@sees_no_format
def test_rows_come_in_the_order_of_spark_sql_and_a_range_of_the_first_column_is_its_between(
    oracle: OracleCheckpoint,
    spark: SparkSession,
    served: ServedNode,
    orders: dict[str, list[tuple[int, tuple[Any, ...]]]],
) -> None:
    for shape in oracle.shapes.values():
        if shape.name == "array":
            reply = served.get(scan_target(shape.store, order="key"))
            assert (reply.status, reply.body["where"]) == (400, "order")
        elif shape.key_type.fields:
            if shape.name not in orders:
                orders[shape.name] = ordered_keys(spark, oracle.path, shape.operator_id, oracle.last - 1)
            keys = orders[shape.name]
            _assert_ordered(served, shape, keys)
            _assert_ranged(served, shape, keys)


def _assert_ordered(served: Served, shape: Shape, keys: list[tuple[int, tuple[Any, ...]]]) -> None:
    expected = [as_text(json_array(key, shape.key_type)) for _, key in keys]
    for limit in ("3", "1000"):
        rows = scanned(served, shape.store, order="key", limit=limit)
        assert [as_text(list(row["key"].values())) for row in rows] == expected, shape.name
        rows = scanned(served, shape.store, order="key", reverse="true", limit=limit)
        assert [as_text(list(row["key"].values())) for row in rows] == expected[::-1], shape.name


def _assert_ranged(served: Served, shape: Shape, keys: list[tuple[int, tuple[Any, ...]]]) -> None:
    """From the least value to before the greatest, and smaller ranges; a window is ranged by its start."""
    if shape.name == "struct":
        reply = served.get(scan_target(shape.store, **{"from": "1"}))
        assert (reply.status, reply.body["where"]) == (400, "from")
        return
    given = [(rank, key) for rank, key in keys if key[0] is not None]
    ranks = sorted({rank for rank, _ in given})
    first = StructType(shape.key_type.fields[:1])
    texts = {rank: text[0] for rank, key in given if (text := path_segments((key[0],), first)) is not None}
    texts |= {rank: "" for rank, key in given if key[0] == ""}
    for low, high in ((ranks[0], ranks[-1]), (ranks[len(ranks) // 3], ranks[2 * len(ranks) // 3])):
        if low == high or not {low, high} <= texts.keys():
            continue
        rows = scanned(served, shape.store, **{"from": texts[low], "to": texts[high]})
        found = sorted(as_text(list(row["key"].values())) for row in rows)
        wanted = [as_text(json_array(key, shape.key_type)) for rank, key in given if low <= rank < high]
        assert found == sorted(wanted), shape.name
        reply = served.get(scan_target(shape.store, **{"from": texts[high], "to": texts[low]}))
        assert (reply.status, reply.body["where"]) == (400, "from"), shape.name


def _assert_filtered(served: Served, shape: Shape, rows: list[dict[str, Any]]) -> None:
    """A value that was printed finds the rows with it, in each column; as the first part of a key, too."""
    for part in ("key", "value"):
        for name in rows[0][part]:
            literal = next((row[part][name] for row in rows if row[part][name] is not None), None)
            if literal is None or isinstance(literal, dict | list):
                continue
            found = scanned(served, shape.store, where=[[f"{part}.{name}", "=", literal]])
            same = {literal, 0.0, -0.0} if literal == 0.0 else {literal}
            assert found == [row for row in rows if row[part][name] in same], (shape.name, name, literal)
    first = next(iter(rows[0]["key"]), None)
    if first is not None:
        leading = rows[0]["key"][first]
        found = scanned(served, shape.store, prefix=[leading])
        assert found == [row for row in rows if as_text(row["key"][first]) == as_text(leading)], shape.name


@sees_no_format
def test_a_key_that_is_not_there_is_absent_from_the_partition_spark_would_put_it_in(
    oracle: OracleCheckpoint, spark: SparkSession, served: ServedNode
) -> None:
    hashes = [f"pmod(hash({columns}), {PARTITIONS})" for _, _, columns in ABSENT_KEYS]
    (placed,) = spark.sql(f"SELECT {', '.join(hashes)}").collect()
    expected: list[tuple[Shape, object, int]] = [
        (oracle.shapes[name], key, partition) for (name, key, _), partition in zip(ABSENT_KEYS, placed, strict=True)
    ]
    gone = oracle.shapes["window"]
    expected += [(gone, json_array(row.key, gone.key_type), row.partition) for row in gone.evicted(oracle.last)]
    for shape, key, partition in expected:
        reply = served.look_up(key, store=shape.store)
        found = (reply.status, reply.content_type, reply.body["found"])
        assert found == (404, "application/json", False), f"{shape.name} {key}"
        assert (reply.body["partition"], reply.body["version"]) == (partition, oracle.last), f"{shape.name} {key}"
        assert "value" not in reply.body


@sees_no_format
def test_a_key_sent_as_negative_zero_finds_the_group_of_zero(oracle: OracleCheckpoint, served: ServedNode) -> None:
    for name in ("double", "float"):
        shape = oracle.shapes[name]
        (row,) = [row for row in shape.rows[oracle.last] if row.key == (0.0,)]
        reply = served.look_up([-0.0], store=shape.store)
        _assert_answer(oracle, shape, row, {"status": reply.status, **reply.body})


@contextmanager
def _served(oracle: OracleCheckpoint, folder: Path) -> Iterator[Asked]:
    """One format is asked as users ask, a process of its own; a server within this process does for the others."""
    if oracle.state_format == HDFS_V1:
        with served_by_a_process(oracle.path, folder / "served") as process:
            _wait_for_the_end(oracle, process)
            yield process
    else:
        with served_node(oracle.path, folder / "data") as served:
            _wait_for_the_end(oracle, served)
            yield served


def _wait_for_the_end(oracle: OracleCheckpoint, served: Asked) -> None:
    """Return when every partition of every store shows the last version, and knows that it is the last."""

    def is_there() -> bool:
        stores = served.get("/admin/v1/lag").body["stores"]
        assert isinstance(stores, list)
        parts = [part for store in stores for part in store["partitions"]]
        return bool(parts) and all(
            (part["current_offset_position"], part["offset_lag"]) == (oracle.last, 0) for part in parts
        )

    wait_until(is_there, what=f"version {oracle.last} everywhere")


def _look_up_all(served: Asked, shape: Shape, keys: list[dict[str, object]]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for start in range(0, len(keys), BATCH_KEYS):
        body = as_text({"keys": keys[start : start + BATCH_KEYS]}).encode()
        reply = served.post(f"/v1/stores/{shape.store}/lookup", body)
        part = reply.body["results"]
        assert isinstance(part, list)
        results += part
    return results


def _store(reader: CheckpointReader, shape: Shape) -> ServedStore:
    (store,) = [store for store in reader.stores.values() if store.operator_id == shape.operator_id]
    assert store.name == shape.store
    return store


def _assert_answer(oracle: OracleCheckpoint, shape: Shape, row: OracleRow, answer: dict[str, Any]) -> None:
    key, value = json_object(row.key, shape.key_type), json_object(row.value, shape.value_type)
    assert (answer["status"], answer.get("found")) == (200, True), f"{shape.name} {key}: {answer}"
    assert as_text(answer["key"]) == as_text(key)
    assert as_text(answer["value"]) == as_text(value), f"{shape.name} {key}"
    assert (answer["store"], answer["partition"], answer["version"]) == (shape.store, row.partition, oracle.last)
    assert answer["lag"]["offset_lag"] == 0
    assert "marks" not in answer
