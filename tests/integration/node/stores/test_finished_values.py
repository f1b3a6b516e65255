"""`result` of every aggregate that is finished is the row that the query itself put out, for groups of every kind.

What makes each result comes from the query's own plan, as the pipeline announces it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.oracle.finished import announced, assert_results, run_finished
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
