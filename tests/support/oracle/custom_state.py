"""A checkpoint of `transformWithState`, and what an answer must say of each key by what Spark's own reader returns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import DataType, LongType, StructType
from tests.support.oracle.json import json_array, json_object, unique
from tests.support.oracle.kinds import PARTITIONS, Expected, Kept, KindsCheckpoint, KindStore, moment
from tests.support.oracle.spark_reader import comparable, python_value, reader_conf
from tests.support.spark.custom_state import CUSTOM_SCHEMA, EXPIRED, OPERATORS, VARIABLES, build_custom, custom_batches
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import QueryOptions, committed_batches, run_query, settings
from tests.support.spark.session import SPARK_RELEASE

BATCHES, RETAINED = 3, 2
Variables = Mapping[str, Mapping[str, str]]
"""The kinds of state variables by name, for each operator of a query."""


class VariableSource(NamedTuple):
    operator_id: int
    variable: str
    kind: str
    name: str
    """The name of its store."""

    @property
    def options(self) -> dict[str, str]:
        if self.kind == "timers":
            return {"readRegisteredTimers": "true"}
        return {"stateVarName": self.variable, "flattenCollectionTypes": "true"}


def write_custom_checkpoint(
    spark: SparkSession,
    folder: Path,
    state_format: StateFormat,
    *,
    operators: Sequence[str] = tuple(OPERATORS),
    batch_count: int = BATCHES,
) -> KindsCheckpoint:
    """Run the query, with snapshots among the changelogs, and ask Spark for every retained version. A query that is
    there goes on.
    """
    run = run_query(
        spark,
        name="custom",
        schema=CUSTOM_SCHEMA,
        batches=custom_batches(batches=batch_count, rows_per_batch=30),
        build=partial(build_custom, operators=operators),
        checkpoint=folder / "checkpoint",
        state_format=state_format,
        options=custom_options(),
    )
    return read_custom_checkpoint(spark, run.checkpoint, state_format, {name: VARIABLES[name] for name in operators})


def copied(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint and of its input, which a query can go on from."""
    copy = shutil.copytree(checkpoint, folder / checkpoint.name)
    shutil.copytree(f"{checkpoint}.input", f"{copy}.input")
    for path in (copy / "sources").rglob("[0-9]*"):
        if path.is_file():  # the names of the files that the query has read
            path.write_text(path.read_text().replace(str(checkpoint), str(copy)))
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return copy


def custom_options(conf: Mapping[str, str] | None = None) -> QueryOptions:
    """How such a query keeps its state, so that there are snapshots among the changelogs.

    Not so before Spark 4.3: it stops its stores under a lock that maintenance waits for, and gives up after minutes.
    """
    return QueryOptions(
        partitions=PARTITIONS,
        min_batches_to_retain=RETAINED,
        min_deltas_for_snapshot=2,
        maintenance_interval_ms=100 if SPARK_RELEASE > (4, 2) else 60_000,
        output_mode="append",
        extra_conf=conf or {},
    )


def read_custom_checkpoint(
    spark: SparkSession, checkpoint: Path, state_format: StateFormat, variables: Variables
) -> KindsCheckpoint:
    batches = committed_batches(checkpoint)[-RETAINED:]
    found = list(_sources(checkpoint, variables))
    kept = read_variables(spark, checkpoint, found, batches)
    stores = {
        source.name: KindStore(source.name, _operator_name(checkpoint, source.operator_id), source.kind, kept[source])
        for source in found
    }
    return KindsCheckpoint(checkpoint, state_format, tuple(batch + 1 for batch in batches), stores)


def _sources(checkpoint: Path, variables: Variables) -> Iterator[VariableSource]:
    """What the operators of a checkpoint keep. A variable goes by its own name where that is the only one."""
    names = [name for of_operator in variables.values() for name in of_operator]
    for operator_id in sorted(int(entry.name) for entry in (checkpoint / "state").iterdir() if entry.name.isdigit()):
        said = json.loads(_metadata(checkpoint, operator_id)["operatorPropertiesJson"])["stateVariables"]
        known = {each["stateName"] for each in said}
        (kinds,) = (found for found in variables.values() if found.keys() == {n for n in known if n[0] != "$"})
        for name, kind in kinds.items():
            shown = name if names.count(name) == 1 else f"op{operator_id}.{name}"
            yield VariableSource(operator_id, name, kind, shown)
        if any(each["stateVariableType"] == "TimerState" for each in said):
            yield VariableSource(operator_id, "timers", "timers", f"op{operator_id}.timers")


def _operator_name(checkpoint: Path, operator_id: int) -> str:
    name: str = _metadata(checkpoint, operator_id)["operatorInfo"]["operatorName"]
    return name


def _metadata(checkpoint: Path, operator_id: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / f"state/{operator_id}/_metadata/v2/0").read_text().splitlines()[1])
    return found


def read_variables(
    spark: SparkSession, checkpoint: Path, sources: Sequence[VariableSource], batches: Sequence[int]
) -> dict[VariableSource, dict[int, list[Kept]]]:
    """Every key of these at every version, by one Spark job."""
    frames, types = [], {}
    with settings(spark, reader_conf(checkpoint)):
        for at, source in enumerate(sources):
            for batch in batches:
                reader = (
                    spark.read.format("statestore").option("operatorId", source.operator_id).option("batchId", batch)
                )
                frame = reader.options(**source.options).load(str(checkpoint))
                columns = [name for name in frame.columns if name != "partition_id"]
                types[source] = {name: frame.schema[name].dataType for name in columns}
                frames.append(_tagged(frame, at, batch, columns))
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames).collect()
    read: dict[tuple[VariableSource, int], dict[tuple[int, str], list[Mapping[str, Any]]]] = {}
    for row in rows:
        source, known = sources[row["source"]], types[sources[row["source"]]]
        cells: dict[str, Any] = {name: python_value(row[f"{name}_{row['source']}"]) for name in known}
        key = json.dumps(json_array(cells["key"], cast(StructType, known["key"])))
        of_version = read.setdefault((source, row["batch"]), {})
        of_version.setdefault((row["partition_id"], key), []).append(cells)
    return {
        source: {
            batch + 1: [
                Kept(partition, json.loads(key), _SAID[source.kind](source, cells, types[source]))
                for (partition, key), cells in read.get((source, batch), {}).items()
            ]
            for batch in batches
        }
        for source in sources
    }


def _tagged(frame: DataFrame, source: int, batch: int, columns: Sequence[str]) -> DataFrame:
    """The columns under names of their own, as `spark_reader` makes them comparable."""
    cells = [comparable(frame, name).alias(f"{name}_{source}") for name in columns]
    return frame.select(F.lit(source).alias("source"), F.lit(batch).alias("batch"), "partition_id", *cells)


Cells = Mapping[str, Any]
Types = Mapping[str, DataType]


def _said_of_value(source: VariableSource, cells: list[Cells], types: Types) -> Expected:
    (row,) = cells
    return {"found": True, **_value(source, row["value"], types["value"])}


def _said_of_list(source: VariableSource, cells: list[Cells], types: Types) -> Expected:
    return {"found": True, "values": [_value(source, row["list_element"], types["list_element"]) for row in cells]}


def _said_of_map(source: VariableSource, cells: list[Cells], types: Types) -> Expected:
    """In any order: see `in_order`. Columns of the user key have other names than those of the grouping key."""
    user_key, grouping = (cast(StructType, types[each]) for each in ("user_map_key", "key"))
    names = unique([*grouping.fieldNames(), *user_key.fieldNames()])[len(grouping.fields) :]
    entries = [
        {
            "key": dict(zip(names, json_array(row["user_map_key"], user_key), strict=True)),
            **_value(source, row["user_map_value"], types["user_map_value"]),
        }
        for row in cells
    ]
    return {"found": True, "entries": entries}


def _said_of_timers(source: VariableSource, cells: list[Cells], types: Types) -> Expected:
    assert isinstance(types["expiration_timestamp_ms"], LongType)
    return {
        "found": True,
        "timers": [moment(ms * 1000) for ms in sorted(row["expiration_timestamp_ms"] for row in cells)],
    }


def _value(source: VariableSource, value: tuple[Any, ...], value_type: DataType) -> Expected:
    assert isinstance(value_type, StructType)
    if value_type.fieldNames()[-1] != "ttlExpirationMs":
        return {"value": json_object(value, value_type)}
    stored, expires_ms = value
    return {
        "value": json_object(stored, cast(StructType, value_type["value"].dataType)),
        "expires_at": moment(expires_ms * 1000),
        "expired": source.variable in EXPIRED,
    }


def in_order(said: Expected) -> Expected:
    """What is said of a map, whose entries come in any order, by their keys."""
    return {**said, "entries": sorted(said["entries"], key=json.dumps)} if "entries" in said else said


_SAID: dict[str, Callable[[VariableSource, list[Cells], Types], Expected]] = {
    "value": _said_of_value,
    "list": _said_of_list,
    "map": _said_of_map,
    "timers": _said_of_timers,
}
