"""A checkpoint of every shape of state, written by Spark for a test, with what Spark's reader says is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.oracle.record import Compared, compared
from tests.support.oracle.spark_reader import OracleRow, read_operators, row_types
from tests.support.spark.formats import ROCKSDB_V1, StateFormat
from tests.support.spark.queries import QueryOptions, run_query
from tests.support.spark.shapes import SHAPES_SCHEMA, build_shapes, operators_by_branch, shape_batches

from understudy_node.stores.stores import ServedStore
from understudy_shared.spark.unsafe_row import compile_row_decoder

PARTITIONS = 3
BATCHES = 5
ROWS_PER_BATCH = 60


@dataclass(frozen=True, slots=True)
class Shape:
    """One store: the operator, its types as Spark reports them, and its rows at every retained version."""

    name: str
    operator_id: int
    key_type: StructType
    value_type: StructType
    rows: dict[int, list[OracleRow]]

    @property
    def store(self) -> str:
        return f"op{self.operator_id}"

    def evicted(self, version: int) -> list[OracleRow]:
        """Rows of earlier versions whose keys are gone at `version`."""
        left = {(row.partition, repr(row.key)) for row in self.rows[version]}
        earlier = [row for rows in self.rows.values() for row in rows]
        gone = {(row.partition, repr(row.key)): row for row in earlier if (row.partition, repr(row.key)) not in left}
        return list(gone.values())


@dataclass(frozen=True, slots=True)
class OracleCheckpoint:
    """What Spark wrote and what Spark reads back. `versions` are the retained ones, oldest first."""

    path: Path
    state_format: StateFormat
    versions: tuple[int, ...]
    shapes: dict[str, Shape]

    @property
    def last(self) -> int:
        return self.versions[-1]

    def compared(self, spark: str) -> Compared:
        """What has been compared when every key of every store was, at every version."""
        of_versions = [
            {f"{shape.name} {row.key!r}": row.value for shape in self.shapes.values() for row in shape.rows[version]}
            for version in self.versions
        ]
        return compared(spark, "stateStoreSave", "value", self.state_format, of_versions)

    def last_rows(self) -> Iterator[tuple[Shape, OracleRow]]:
        for shape in self.shapes.values():
            for row in shape.rows[self.last]:
                yield shape, row


def retained_batches(state_format: StateFormat) -> int:
    """How many versions the query keeps: fewer than it writes, but for one format that keeps all from the first."""
    return BATCHES if state_format == ROCKSDB_V1 else 3


def write_oracle_checkpoint(spark: SparkSession, folder: Path, state_format: StateFormat) -> OracleCheckpoint:
    """Run the query of all shapes, with snapshots among the changelogs, and ask Spark for every retained version."""
    retained = retained_batches(state_format)
    run = run_query(
        spark,
        name="shapes",
        schema=SHAPES_SCHEMA,
        batches=shape_batches(batches=BATCHES, rows_per_batch=ROWS_PER_BATCH),
        build=build_shapes,
        checkpoint=folder / "checkpoint",
        state_format=state_format,
        options=QueryOptions(
            partitions=PARTITIONS,
            min_batches_to_retain=retained,
            min_deltas_for_snapshot=2,
            maintenance_interval_ms=100,
        ),
    )
    batches = run.batch_ids[-retained:]  # more may be there: what is about to be purged is not asked for
    operators = operators_by_branch(spark, run.checkpoint)
    found = read_operators(spark, run.checkpoint, operators.values(), batches)
    shapes = {
        name: Shape(
            name,
            operator_id,
            *row_types(spark, run.checkpoint, operator_id),
            {batch + 1: found[operator_id][batch] for batch in batches},
        )
        for name, operator_id in operators.items()
    }
    return OracleCheckpoint(run.checkpoint, state_format, tuple(batch + 1 for batch in batches), shapes)


def read_rows(reader: CheckpointReader, store: ServedStore, version: int) -> list[OracleRow]:
    """What this project's reading library finds, as Spark's reader would say it."""
    key, value = compile_row_decoder(store.key_schema), compile_row_decoder(store.value_schema)
    return [OracleRow(row.partition, key(row.key), value(row.value)) for row in reader.rows(store, version)]
