"""A checkpoint of every kind of state, and what an answer must say of each key by what Spark's own reader returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, TimestampType
from tests.support.oracle.json import json_array, json_object, json_value
from tests.support.oracle.record import Compared, compared
from tests.support.oracle.spark_reader import OracleRow, read_versions, row_types
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.kinds import BRANCHES, KINDS_SCHEMA, Placing, build_kinds, kinds_batches, operators_by_name
from tests.support.spark.queries import QueryOptions, QueryRun, run_query
from tests.support.spark.session import SPARK_RELEASE

PARTITIONS = 2
BATCHES = 4
RETAINED = 3
_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"

Expected = dict[str, Any]
"""The members of an answer that say what was found."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What Spark's reader says of a key: its partition, the key as an array, and what an answer must say."""

    partition: int
    key: list[object]
    said: Expected


@dataclass(frozen=True, slots=True)
class KindStore:
    """A store as readers see it; `kept` by version."""

    name: str
    operator: str
    kind: str
    kept: dict[int, list[Kept]]


@dataclass(frozen=True, slots=True)
class KindsCheckpoint:
    """`versions` are those that are retained, oldest first; `stores` by name."""

    path: Path
    state_format: StateFormat
    versions: tuple[int, ...]
    stores: dict[str, KindStore]
    placing: Placing = "by-hash"

    @property
    def last(self) -> int:
        return self.versions[-1]

    def compared(self, spark: str) -> list[Compared]:
        """What has been compared when every key of every store was, at every version."""
        operators = dict.fromkeys((store.operator, store.kind) for store in self.stores.values())
        return [
            compared(spark, operator, kind, self.state_format, self._said(operator, kind))
            for operator, kind in operators
        ]

    def _said(self, operator: str, kind: str) -> Iterator[dict[str, object]]:
        """For each version, what is said of each key of an operator's stores of a kind."""
        for version in self.versions:
            yield {
                f"{store.name} {json.dumps(kept.key)}": kept.said
                for store in self.of(operator)
                if store.kind == kind
                for kept in store.kept[version]
            }

    def of(self, operator: str) -> list[KindStore]:
        return [store for store in self.stores.values() if store.operator == operator]


def write_kinds_checkpoint(
    spark: SparkSession,
    folder: Path,
    state_format: StateFormat,
    *,
    operators: Sequence[str] = tuple(BRANCHES),
    conf: dict[str, str] | None = None,
    placing: Placing = "by-hash",
) -> KindsCheckpoint:
    """Run the query of these kinds, and ask Spark for every retained version."""
    run = run_kinds(spark, folder, state_format, operators=operators, conf=conf, placing=placing)
    found = operators_by_name(run.checkpoint)
    return read_kinds_checkpoint(spark, run, found, placing=placing)


def run_kinds(
    spark: SparkSession,
    folder: Path,
    state_format: StateFormat,
    *,
    operators: Sequence[str] = tuple(BRANCHES),
    conf: dict[str, str] | None = None,
    placing: Placing = "by-hash",
    batches: int = BATCHES,
) -> QueryRun:
    """Run the query of these kinds, with snapshots among the changelogs.

    Unless rows are placed by their hash, it runs as Spark 4 runs a query that an early Spark began.
    """
    strict = {} if placing == "by-hash" else {"spark.sql.streaming.statefulOperator.useStrictDistribution": "false"}
    return run_query(
        spark,
        name="kinds",
        schema=KINDS_SCHEMA,
        batches=kinds_batches(batches=batches),
        build=partial(build_kinds, operators=operators, placing=placing),
        checkpoint=folder / "checkpoint",
        state_format=state_format,
        options=QueryOptions(
            partitions=PARTITIONS,
            min_batches_to_retain=RETAINED,
            min_deltas_for_snapshot=2,
            maintenance_interval_ms=100,
            output_mode="append",
            extra_conf={**join_conf(state_format), **strict, **(conf or {})},
        ),
    )


def read_kinds_checkpoint(
    spark: SparkSession, run: QueryRun, operators: Mapping[str, int], *, placing: Placing = "by-hash"
) -> KindsCheckpoint:
    """Ask Spark for every retained version of these operators."""
    batches = run.batch_ids[-RETAINED:]
    stores: dict[str, KindStore] = {}
    for operator, operator_id in sorted(operators.items()):
        for store in read_operator(spark, run.checkpoint, operator, operator_id, batches):
            stores[store.name] = store
    return KindsCheckpoint(run.checkpoint, run.state_format, tuple(batch + 1 for batch in batches), stores, placing)


def read_operator(
    spark: SparkSession, checkpoint: Path, operator: str, operator_id: int, batches: Sequence[int]
) -> Iterator[KindStore]:
    return _READ[operator](_SparkReader(spark, checkpoint, batches), operator, operator_id)


def join_conf(state_format: StateFormat) -> dict[str, str]:
    """Joins are kept by event time (since Spark 4.3), as column families of one store (since 4.1), or in four."""
    if state_format == ROCKSDB_CHANGELOG_V2 and SPARK_RELEASE > (4, 2):
        return {_JOIN_FORMAT: "4"}
    return {_JOIN_FORMAT: "3" if state_format.format_version == 2 and SPARK_RELEASE > (4, 0) else "2"}


@dataclass(frozen=True, slots=True)
class _SparkReader:
    spark: SparkSession
    checkpoint: Path
    batches: Sequence[int]

    def rows(
        self, operator_id: int, store_name: str = "default", *, has_values: bool = True
    ) -> dict[int, list[OracleRow]]:
        found = read_versions(self.spark, self.checkpoint, operator_id, self.batches, store_name, has_values=has_values)
        return {batch + 1: rows for batch, rows in found.items()}

    def types(self, operator_id: int, store_name: str = "default") -> tuple[StructType, StructType]:
        return row_types(self.spark, self.checkpoint, operator_id, store_name)

    def conf(self, name: str) -> str | None:
        body = json.loads((self.checkpoint / "offsets" / str(self.batches[-1])).read_text().splitlines()[1])
        return cast("dict[str, str]", body["conf"]).get(name)

    def next_watermark_us(self, version: int) -> int:
        """What the version left to the next batch, as its commit says."""
        body = json.loads((self.checkpoint / "commits" / str(version - 1)).read_text().splitlines()[1])
        watermark_ms: int = body["nextBatchWatermarkMs"]
        return watermark_ms * 1000


def _one_row_each(
    kind: str, said: Callable[[_SparkReader, int, OracleRow, StructType], Expected]
) -> Callable[[_SparkReader, str, int], Iterator[KindStore]]:
    """An operator whose store has one row for each key."""

    def read(reader: _SparkReader, operator: str, operator_id: int) -> Iterator[KindStore]:
        key_type, value_type = reader.types(operator_id)
        kept = {
            version: [
                Kept(row.partition, json_array(row.key, key_type), said(reader, version, row, value_type))
                for row in rows
            ]
            for version, rows in reader.rows(operator_id, has_values=operator != "dedupe").items()
        }
        yield KindStore(f"op{operator_id}", operator, kind, kept)

    return read


def _of_a_set(reader: _SparkReader, version: int, row: OracleRow, value_type: StructType) -> Expected:
    return {"found": True}


def _of_an_expiring_set(reader: _SparkReader, version: int, row: OracleRow, value_type: StructType) -> Expected:
    (expires_us,) = row.value
    assert isinstance(expires_us, int)
    return {
        "found": True,
        "expires_at": moment(expires_us),
        "expired": reader.next_watermark_us(version) >= expires_us,
    }


def _of_a_group(reader: _SparkReader, version: int, row: OracleRow, value_type: StructType) -> Expected:
    said: Expected = {"found": True, "value": json_object(row.value, value_type)}
    if value_type.fieldNames()[-1] == "timeoutTimestamp":
        timeout_ms = row.value[-1]
        assert isinstance(timeout_ms, int)
        said["timeout_at"] = None if timeout_ms == -1 else moment(timeout_ms * 1000)
    return said


def _sessions(reader: _SparkReader, operator: str, operator_id: int) -> Iterator[KindStore]:
    """The sessions of a key are records of their own, told apart by the last column of their keys."""
    key_type, value_type = reader.types(operator_id)
    prefix_type = StructType(key_type.fields[:-1])
    kept = {}
    for version, rows in reader.rows(operator_id).items():
        of_key: dict[tuple[int, str], list[OracleRow]] = {}
        for row in rows:
            key = json.dumps(json_array(row.key[:-1], prefix_type))
            of_key.setdefault((row.partition, key), []).append(row)
        kept[version] = [
            Kept(partition, json.loads(key), _said_of_sessions(found, value_type, reader.next_watermark_us(version)))
            for (partition, key), found in of_key.items()
        ]
    yield KindStore(f"op{operator_id}", operator, "session", kept)


def _said_of_sessions(rows: list[OracleRow], value_type: StructType, watermark_us: int) -> Expected:
    rows.sort(key=lambda row: row.key[-1])  # type: ignore[arg-type,return-value]  # microseconds
    values = [cast("dict[str, Any]", json_object(row.value, value_type)) for row in rows]
    assert [value["session_window"]["start"] for value in values] == [moment(cast(int, row.key[-1])) for row in rows]
    sessions = [
        {**value["session_window"], "value": value, "expired": value["session_window"]["end"] <= moment(watermark_us)}
        for value in values
    ]
    return {"found": True, "sessions": sessions}


def _sides(reader: _SparkReader, operator: str, operator_id: int) -> Iterator[KindStore]:
    """The rows of a key are records of their own, told apart by the last column of their keys."""
    if reader.conf(_JOIN_FORMAT) == "4":
        yield from _timed_sides(reader, operator, operator_id)
        return
    for side in ("left", "right"):
        table = f"{side}-keyWithIndexToValue"
        key_type, stored_type = reader.types(operator_id, table)
        # Rows of format 1 do not say whether they found a match.
        columns = len(stored_type.fields) - (reader.conf(_JOIN_FORMAT) != "1")
        join_type, row_type = StructType(key_type.fields[:-1]), StructType(stored_type.fields[:columns])
        kept = {}
        for version, found in reader.rows(operator_id, table).items():
            of_key: dict[tuple[int, str], dict[int, Expected]] = {}
            for row in found:
                key = json.dumps(json_array(row.key[:-1], join_type))
                matched = row.value[columns] if columns < len(row.value) else None
                said = {"value": json_object(row.value[:columns], row_type), "matched": matched, "expired": None}
                of_key.setdefault((row.partition, key), {})[cast(int, row.key[-1])] = said
            assert all(set(rows) == set(range(len(rows))) for rows in of_key.values())
            kept[version] = [
                Kept(partition, json.loads(key), {"found": True, "rows": [rows[index] for index in range(len(rows))]})
                for (partition, key), rows in of_key.items()
            ]
        yield KindStore(f"op{operator_id}.{side}", operator, "join-side", kept)


def _timed_sides(reader: _SparkReader, operator: str, operator_id: int) -> Iterator[KindStore]:
    """Rows are ordered by their event time, which is a column of the row; what Spark's reader says in the key is not
    that time.
    """
    for side in ("left", "right"):
        table = f"{side}-keyWithTsToValues"
        key_type, stored_type = reader.types(operator_id, table)
        join_type, row_type = StructType(key_type.fields[:-1]), StructType(stored_type.fields[:-1])
        event = row_type.fieldNames().index(f"{side}_event")
        kept = {}
        for version, found in reader.rows(operator_id, table).items():
            of_key: dict[tuple[int, str], list[Expected]] = {}
            for row in sorted(found, key=lambda row: cast(int, row.value[event])):
                key = json.dumps(json_array(row.key[:-1], join_type))
                said = {"value": json_object(row.value[:-1], row_type), "matched": row.value[-1], "expired": None}
                of_key.setdefault((row.partition, key), []).append(said)
            kept[version] = [
                Kept(partition, json.loads(key), {"found": True, "rows": rows})
                for (partition, key), rows in of_key.items()
            ]
        yield KindStore(f"op{operator_id}.{side}", operator, "join-side", kept)


def moment(micros: int) -> str:
    """A timestamp as an answer prints it: of one length, so that the order is that of time."""
    return cast(str, json_value(micros, TimestampType()))


_READ: dict[str, Callable[[_SparkReader, str, int], Iterator[KindStore]]] = {
    "dedupe": _one_row_each("set", _of_a_set),
    "dedupeWithinWatermark": _one_row_each("set", _of_an_expiring_set),
    "applyInPandasWithState": _one_row_each("value", _of_a_group),
    "flatMapGroupsWithState": _one_row_each("value", _of_a_group),
    "globalLimit": _one_row_each("value", _of_a_group),
    "sessionWindowStateStoreSaveExec": _sessions,
    "symmetricHashJoin": _sides,
    "stateStoreSave": _one_row_each("value", _of_a_group),
    "StatefulStreamlineAggregate": _one_row_each("value", _of_a_group),
}
