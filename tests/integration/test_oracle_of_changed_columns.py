"""State in Avro whose columns changed between two starts of a query is answered as Spark has it, on both sides."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.oracle.custom_state import VariableSource, in_order, read_variables
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import PARTITIONS, Kept
from tests.support.spark.changing_state import CHANGING_SCHEMA, CHANGING_VARIABLES, after, before, changing_batches
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import QueryOptions, run_query

from understudy_node.reader import CheckpointReader
from understudy_shared.words import StoreName

SOURCES = [VariableSource(0, name, kind, name) for name, kind in CHANGING_VARIABLES.items()]
Found = dict[VariableSource, dict[int, list[Kept]]]


@pytest.mark.full
def test_values_lists_and_maps_have_the_columns_that_spark_reads_before_and_after_a_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"
    first, second = changing_batches()
    kept_before = _run(spark, checkpoint, before, [first])
    shutil.copytree(checkpoint, old)
    kept_after = _run(spark, checkpoint, after, [first, second])
    assert len(list((checkpoint / "state/0/_stateSchema/default").glob("[0-9]*"))) == 2
    mixed = [kept.said["values"] for kept in kept_after[SOURCES[1]][2] if kept.key == ["w5"]]
    assert {each["value"]["added"] is None for each in mixed[0]} == {True, False}, "a list has values of both"
    _compare(old, kept_before, 1, tmp_path / "a")
    _compare(checkpoint, kept_after, 2, tmp_path / "b")


def _run(
    spark: SparkSession,
    checkpoint: Path,
    build: Callable[[DataFrame], DataFrame],
    batches: list[list[dict[str, object]]],
) -> Found:
    run_query(
        spark,
        name="changing",
        schema=CHANGING_SCHEMA,
        batches=batches,
        build=build,
        checkpoint=checkpoint,
        state_format=replace(ROCKSDB_CHANGELOG_V2, encoding="avro"),
        options=QueryOptions(partitions=PARTITIONS, output_mode="append"),
    )
    return read_variables(spark, checkpoint, SOURCES, [len(batches) - 1])


def _compare(checkpoint: Path, kept: Found, version: int, folder: Path) -> None:
    with closing(CheckpointReader(checkpoint, folder)) as reader:
        for source, versions in kept.items():
            served = reader.stores[StoreName(source.name)]
            finders = [reader.finder(served, partition, version) for partition in range(PARTITIONS)]
            assert versions[version], source.name
            for each in versions[version]:
                found = finders[each.partition](served.codec.encode(served.codec.parse_json(each.key)))
                assert found is not None, f"{source.name} {each.key}"
                said = json.loads(b"{" + found.removesuffix(b",") + b"}")
                assert as_text(in_order(said)) == as_text(in_order(each.said)), f"{source.name} {each.key}"
