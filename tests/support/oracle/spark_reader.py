"""What Spark's own state reader says is in a checkpoint, in this project's values: the oracle of the decoders.

Dates are days and timestamps microseconds since the epoch (Python's own types do not reach as far as Spark's), structs
are tuples, arrays lists, maps lists of pairs, binary is bytes. Columns are taken by position, because Spark gives the
same name to several columns of a buffer. All versions of an operator are read by one Spark job.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructField,
    StructType,
    TimestampType,
)
from tests.support.spark.queries import settings

try:
    from pyspark.sql.types import TimestampNTZType
except ImportError:  # PySpark 3.2 has none
    TimestampNTZType = TimestampType  # type: ignore[misc,assignment]

Value = object
"""None, bool, int, float, str, bytes, Decimal, or a tuple or list of values."""


@dataclass(frozen=True, slots=True)
class OracleRow:
    """One key of a store with its value, as Spark reads them."""

    partition: int
    key: tuple[Value, ...]
    value: tuple[Value, ...]


def read_state(spark: SparkSession, checkpoint: Path, operator_id: int, batch_id: int) -> list[OracleRow]:
    return read_versions(spark, checkpoint, operator_id, [batch_id])[batch_id]


def read_versions(
    spark: SparkSession,
    checkpoint: Path,
    operator_id: int,
    batch_ids: Sequence[int],
    store_name: str = "default",
    *,
    has_values: bool = True,
) -> dict[int, list[OracleRow]]:
    """Every row of a store as each of `batch_ids` left it, by one Spark job. Values that the schema does not describe
    are not looked at.
    """
    unchecked = {} if has_values else {"spark.sql.streaming.stateStore.formatValidation.enabled": "false"}
    with settings(spark, {**reader_conf(checkpoint), **unchecked}):
        return _read_versions(spark, checkpoint, operator_id, batch_ids, store_name, has_values=has_values)


def read_operators(
    spark: SparkSession, checkpoint: Path, operator_ids: Iterable[int], batch_ids: Sequence[int]
) -> dict[int, dict[int, list[OracleRow]]]:
    """The default stores of several operators as each of `batch_ids` left them: `{operator: {batch: rows}}`."""
    wanted = tuple(operator_ids)
    with settings(spark, reader_conf(checkpoint)), ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda operator: _read_versions(spark, checkpoint, operator, batch_ids, "default"), wanted)
        return dict(zip(wanted, found, strict=True))


def read_changes(
    spark: SparkSession, checkpoint: Path, operator_id: int, first_batch: int, last_batch: int
) -> dict[int, dict[tuple[int, object], tuple[tuple[Value, ...], tuple[Value, ...] | None]]]:
    """What Spark's change feed says of each batch of an operator's default store: by partition and key, in canonical
    form, the key and its value; None for a deletion. Spark writes a key of these stores once in a batch.
    """
    with settings(spark, reader_conf(checkpoint)):
        reader = spark.read.format("statestore").option("operatorId", operator_id).option("readChangeFeed", True)
        reader = reader.option("changeStartBatchId", first_batch).option("changeEndBatchId", last_batch)
        frame = reader.load(str(checkpoint))
        cells = [comparable(frame, name).alias(name) for name in ("key", "value")]
        rows = frame.select("batch_id", "change_type", "partition_id", *cells).collect()
    found: dict[int, dict[tuple[int, object], tuple[tuple[Value, ...], tuple[Value, ...] | None]]] = {}
    for batch, kind, partition, key, value in rows:
        assert kind in {"update", "delete"}
        of_batch = found.setdefault(batch, {})
        place = (partition, canonical(_struct(key)))
        assert place not in of_batch, "a key twice in one batch"
        of_batch[place] = (_struct(key), None if kind == "delete" else _struct(value))
    return found


def ordered_keys(
    spark: SparkSession, checkpoint: Path, operator_id: int, batch_id: int
) -> list[tuple[int, tuple[Value, ...]]]:
    """Every key of an operator's default store in the order of Spark's ORDER BY over its columns, each with the rank of
    its first column.
    """
    with settings(spark, reader_conf(checkpoint)):
        frame = _load(spark, checkpoint, operator_id, batch_id, "default").select("key")
        key_type = frame.schema["key"].dataType
        assert isinstance(key_type, StructType)
        columns = [F.col("key")[name] for name in key_type.fieldNames()]
        ranked = frame.select(
            F.row_number().over(Window.orderBy(*columns)).alias("at"),
            F.dense_rank().over(Window.orderBy(columns[0])).alias("rank"),
            comparable(frame, "key").alias("key"),
        )
        return [(row["rank"], _struct(row["key"])) for row in sorted(ranked.collect(), key=lambda row: row["at"])]


def operator_ids(checkpoint: Path) -> tuple[int, ...]:
    return tuple(sorted(int(entry.name) for entry in (checkpoint / "state").iterdir() if entry.name.isdigit()))


def key_names(spark: SparkSession, checkpoint: Path, operator_id: int) -> tuple[str, ...]:
    """Names of the key columns of an operator's default store."""
    return tuple(row_types(spark, checkpoint, operator_id)[0].fieldNames())


def row_types(
    spark: SparkSession, checkpoint: Path, operator_id: int, store_name: str = "default"
) -> tuple[StructType, StructType]:
    """The types of key and value in a store of an operator, with Spark's names."""
    with settings(spark, reader_conf(checkpoint)):
        schema = _load(spark, checkpoint, operator_id, None, store_name).schema
    key_type, value_type = schema["key"].dataType, schema["value"].dataType
    assert isinstance(key_type, StructType)
    assert isinstance(value_type, StructType)
    return key_type, value_type


def canonical(value: Value) -> object:
    """A hashable form that is equal for the same value only: type by type, NaN like NaN, 0.0 unlike -0.0."""
    match value:
        case float():
            return "float", b"NaN" if math.isnan(value) else struct.pack(">d", value)
        case Decimal():
            return "decimal", value.as_tuple()
        case tuple() | list():
            return type(value).__name__, *map(canonical, value)
        case _:
            return type(value).__name__, value


def canonical_rows(rows: Iterable[OracleRow]) -> dict[tuple[int, object], object]:
    """`{(partition, key): value}` in canonical form: compares two stores in any order."""
    listed = list(rows)
    found = {(row.partition, canonical(row.key)): canonical(row.value) for row in listed}
    assert len(found) == len(listed), "a key stands twice in one partition"
    return found


def reader_conf(checkpoint: Path) -> dict[str, str | None]:
    """The reader needs the checkpoint's format as a setting; the commit log has it."""
    commits = [entry for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit()]
    newest = max(commits, key=lambda entry: int(entry.name))
    version = "2" if "stateUniqueIds" in newest.read_text() else "1"
    return {"spark.sql.streaming.stateStore.checkpointFormatVersion": version}


def _read_versions(
    spark: SparkSession,
    checkpoint: Path,
    operator_id: int,
    batch_ids: Sequence[int],
    store_name: str,
    *,
    has_values: bool = True,
) -> dict[int, list[OracleRow]]:
    value = F.col("value") if has_values else F.struct(F.lit(None)).alias("value")
    frames = [
        _load(spark, checkpoint, operator_id, batch_id, store_name).select(
            F.lit(batch_id).alias("batch"), "partition_id", "key", value
        )
        for batch_id in batch_ids
    ]
    found: dict[int, list[OracleRow]] = {batch_id: [] for batch_id in batch_ids}
    for batch, partition, key, value in _exact(reduce(DataFrame.unionAll, frames)).collect():
        found[batch].append(OracleRow(partition, _struct(key), _struct(value)))
    return found


def _load(spark: SparkSession, checkpoint: Path, operator_id: int, batch_id: int | None, store_name: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", operator_id).option("storeName", store_name)
    if batch_id is not None:
        reader = reader.option("batchId", batch_id)
    return reader.load(str(checkpoint))


def _exact(frame: DataFrame) -> DataFrame:
    cells = [comparable(frame, name).alias(name) for name in ("key", "value")]
    return frame.select("batch", "partition_id", *cells)


def comparable(frame: DataFrame, name: str) -> Column:
    """A column with fields by position and times as numbers; `python_value` makes a value of what is collected."""
    numbered = _numbered(frame.schema[name].dataType)
    return _without_times(F.col(name).cast(numbered), numbered)


def _numbered(data_type: DataType) -> DataType:
    """The type with the fields of every struct named by position."""
    match data_type:
        case StructType():
            fields = enumerate(data_type.fields)
            return StructType([StructField(f"c{n}", _numbered(field.dataType), field.nullable) for n, field in fields])
        case ArrayType():
            return ArrayType(_numbered(data_type.elementType), data_type.containsNull)
        case MapType():
            key_type, value_type = _numbered(data_type.keyType), _numbered(data_type.valueType)
            return MapType(key_type, value_type, data_type.valueContainsNull)
        case _:
            return data_type


def _without_times(column: Column, data_type: DataType) -> Column:
    """The column with dates and timestamps as numbers, and maps as arrays of pairs, at any depth."""
    match data_type:
        case TimestampType() | TimestampNTZType():
            return F.unix_micros(column.cast("timestamp"))
        case DateType():
            return F.unix_date(column)
        case StructType() if data_type.fields:
            parts = [_without_times(column[f.name], f.dataType).alias(f.name) for f in data_type.fields]
            return F.when(column.isNotNull(), F.struct(*parts))
        case ArrayType():
            element_type = data_type.elementType
            return F.transform(column, lambda item: _without_times(item, element_type))
        case MapType():
            pair = StructType([StructField("key", data_type.keyType), StructField("value", data_type.valueType)])
            return F.transform(F.map_entries(column), lambda item: _without_times(item, pair))
        case _:
            return column


def _struct(value: object) -> tuple[Value, ...]:
    converted = python_value(value)
    assert isinstance(converted, tuple)
    return converted


def python_value(value: object) -> Value:
    """A collected value as this module's values are."""
    match value:
        case tuple():  # a Row is a tuple
            return tuple(python_value(item) for item in value)
        case list():
            return [python_value(item) for item in value]
        case bytearray():
            return bytes(value)
        case _:
            return value
