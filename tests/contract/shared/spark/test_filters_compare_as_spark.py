"""Filters and orders of scans compare two values as Spark SQL does, for each type (Q7)."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.oracle.spark_reader import comparable, python_value
from tests.support.spark.shapes import SHAPES_SCHEMA, shape_batches

from understudy_shared.questions.scan.where import compile_order, order_of
from understudy_shared.spark.types import parse_schema

COLUMNS = ("s", "i", "l", "narrow", "wide", "day", "at", "local", "b", "d", "f", "flag", "tiny", "short")
ROWS = 60
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.fixture(scope="module")
def compared(spark: SparkSession) -> list[Any]:
    """Each pair of rows: their values, and what Spark says of them."""
    (rows,) = shape_batches(seed=7, batches=1, rows_per_batch=ROWS)
    frame = spark.createDataFrame(rows, SHAPES_SCHEMA)
    left = frame.select(*(F.col(name).alias(f"left_{name}") for name in COLUMNS))
    right = frame.select(*(F.col(name).alias(f"right_{name}") for name in COLUMNS))
    pairs = left.crossJoin(right)
    values = [
        comparable(pairs, f"{side}_{name}").alias(f"{side}_{name}") for name in COLUMNS for side in ("left", "right")
    ]
    said = [
        F.expr(f"left_{name} {sign} right_{name}").alias(f"{name}_{index}")
        for name in COLUMNS
        for index, sign in enumerate(OPERATORS)
    ]
    return pairs.select(*values, *said).collect()


@pytest.mark.parametrize("name", COLUMNS)
def test_two_values_compare_as_in_spark_sql(compared: list[Any], spark: SparkSession, name: str) -> None:
    schema = parse_schema(spark.createDataFrame([], SHAPES_SCHEMA).schema.json())
    order = order_of(next(field.type for field in schema.fields if field.name == name))
    as_bytes = compile_order(next(field.type for field in schema.fields if field.name == name))
    assert order is not None
    assert as_bytes is not None
    seen = set()
    for row in compared:
        left, right = python_value(row[f"left_{name}"]), python_value(row[f"right_{name}"])
        for index, (sign, compare) in enumerate(OPERATORS.items()):
            says = row[f"{name}_{index}"]
            ours = None if left is None or right is None else compare(order(left), order(right))
            assert ours is says, (left, sign, right)
            if says is not None:
                assert compare(as_bytes(left), as_bytes(right)) is says, (left, sign, right)
            seen.add((sign, says))
    assert {says for _, says in seen} >= {True, False}
