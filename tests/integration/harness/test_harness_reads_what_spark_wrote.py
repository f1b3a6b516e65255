"""The harness itself: it writes one batch per list of rows, and its oracle tells exactly what Spark keeps."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.oracle.spark_reader import operator_ids, read_operators, read_state, same_value
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import run_query
from tests.support.spark.shapes import SHAPES_SCHEMA, build_shapes, operators_by_branch, shape_batches

pytestmark = pytest.mark.full

TWO_FORMATS = pytest.mark.parametrize("state_format", [HDFS_V1, ROCKSDB_CHANGELOG_V2], ids=lambda f: f.id)


@TWO_FORMATS
def test_every_list_of_rows_is_one_batch_and_every_branch_is_found_in_the_state(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    names = ("text", "double", "window", "global")
    rows = shape_batches(batches=3, rows_per_batch=60)
    run = run_query(
        spark,
        name="shapes",
        schema=SHAPES_SCHEMA,
        batches=rows,
        build=lambda source: build_shapes(source, names),
        checkpoint=tmp_path / "checkpoint",
        state_format=state_format,
    )
    assert run.batch_ids == (0, 1, 2)
    by_branch = operators_by_branch(spark, run.checkpoint)
    assert set(by_branch) == set(names)

    states = read_operators(spark, run.checkpoint, operator_ids(run.checkpoint), run.batch_ids)
    assert set(states) == set(by_branch.values())
    for batch in run.batch_ids:
        seen = [row for rows_of_batch in rows[: batch + 1] for row in rows_of_batch]
        (total,) = states[by_branch["global"]][batch]
        assert (total.partition, total.key, total.value[0]) == (0, (), len(seen))
        counts = {row.key[0]: row.value[0] for row in states[by_branch["text"]][batch]}
        expected = Counter(row["s"] for row in seen)
        assert counts == {text: sum(1 for r in seen if r["s"] == text and r["i"] is not None) for text in expected}


@TWO_FORMATS
def test_the_oracle_keeps_what_python_would_bend(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    row: dict[str, object] = {
        "day": date(1, 1, 1),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001  # the source's column has no zone
        "wide": Decimal("-1.00000"),
        "d": float("nan"),
        "b": b"\x00\xff",
        "items": [{"at": "1960-01-01T00:00:00Z"}, None],
    }

    def build(source: DataFrame) -> DataFrame:
        return source.groupBy("day", "at", "wide", "d", "b").agg(F.sum("zero"), F.sum("zero"), F.first("items"))

    schema = """day date, at timestamp_ntz, wide decimal(30,5), d double, b binary, zero double,
                items array<struct<at: timestamp>>"""
    run = run_query(
        spark,
        name="exact",
        schema=schema,
        batches=[[row | {"zero": -0.0}]],
        build=build,
        checkpoint=tmp_path / "checkpoint",
        state_format=state_format,
    )
    (found,) = read_state(spark, run.checkpoint, operator_id=0, batch_id=0)
    assert same_value(found.key, (-719162, -1, Decimal("-1.00000"), float("nan"), b"\x00\xff"))
    assert same_value(found.value[-2:], ([(-315619200000000,), None], True))
