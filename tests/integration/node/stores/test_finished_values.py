"""`result` of every aggregate that is finished is the row that the query itself put out, to the last digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.oracle.finished import announced, assert_results, run_finished
from tests.support.oracle.finished_pools import put_out_and_answered
from tests.support.spark.finished_pools import POOLS, WITHOUT_RESULT, aggregates
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat

from understudy_shared.base.words import RESULT_FUNCTIONS

FORMATS = [pytest.param(ROCKSDB_CHANGELOG_V2, id="rocksdb"), pytest.param(HDFS_V1, id="hdfs", marks=pytest.mark.full)]


@pytest.mark.parametrize("state_format", FORMATS)
def test_every_result_of_every_key_is_what_the_query_put_out(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    run = run_finished(spark, tmp_path / "finished", state_format)
    store = announced(run)
    functions = {column.function for column in store.result}
    assert functions == RESULT_FUNCTIONS - {"corr_4_2", "regr_intercept_4_2"}, (
        "every function of this Spark that a result may name is there"
    )
    assert_results(tmp_path / "finished", tmp_path / "data", store, run.rows)


@pytest.mark.full
@pytest.mark.parametrize("name", POOLS)
def test_every_result_of_random_groups_is_what_the_query_put_out(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    put_out, answered = put_out_and_answered(spark, name, 1, tmp_path)
    assert answered.keys() == put_out.keys()
    pool = POOLS[name]
    # Sums and averages of intervals, and a percentile, do not follow from what is stored.
    without = WITHOUT_RESULT if "interval" not in pool.takes else {"sum(v)", "try_sum(v)", "avg(v)", "try_avg(v)"}
    for key, results in answered.items():
        assert {*aggregates(pool)} - results.keys() == without & {*aggregates(pool)}
        for column, result in results.items():
            assert _comparable(column, result) == _comparable(column, put_out[key][column]), f"{column} of {key}"


def _comparable(column: str, value: Any) -> str:
    """The same text for the same value only: 0.0 unlike -0.0. A set has no order."""
    is_set = column.startswith("collect_set") and value is not None
    return json.dumps(sorted(value, key=json.dumps) if is_set else value)
