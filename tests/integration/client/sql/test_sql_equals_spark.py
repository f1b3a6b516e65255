"""SQL over a served checkpoint says what Spark SQL says over the state reader of the same version (Q37)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import served_node
from tests.support.oracle.spark_reader import key_names, operator_ids, reader_conf
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import QueryOptions, QueryRun, run_query, settings
from tests.support.spark.shapes import SHAPES_SCHEMA, shape_batches
from tests.support.sql import spark_statements
from tests.support.sql.spark_statements import Statements, differences, register

from understudy import Client
from understudy.sql import reads
from understudy.sql.session import SqlSession

PARTITIONS = 3

NO_PRUNING = {"spark.sql.inMemoryColumnarStorage.partitionPruning": "false"}
"""Spark leaves NaN out of the bounds of a cached batch, and then finds no row that is NaN."""


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> QueryRun:
    return run_query(
        spark,
        name="sql",
        schema=SHAPES_SCHEMA,
        batches=shape_batches(batches=4, rows_per_batch=400),
        build=spark_statements.build,
        checkpoint=tmp_path_factory.mktemp("sql") / "checkpoint",
        state_format=ROCKSDB_CHANGELOG_V2,
        options=QueryOptions(partitions=PARTITIONS, output_mode="update"),
    )


@pytest.fixture(scope="module")
def asked(
    spark: SparkSession, run: QueryRun, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SqlSession, str, str]]:
    """A session, and the names of the two tables, which are views of Spark, too."""
    operators = {len(key_names(spark, run.checkpoint, each)): each for each in operator_ids(run.checkpoint)}
    version = run.batch_ids[-1] + 1
    with served_node(run.checkpoint, tmp_path_factory.mktemp("data")) as node:
        for each in operators.values():
            node.wait_for_version(version, partitions=PARTITIONS, store=f"op{each}")
        with (
            Client(f"http://127.0.0.1:{node.port}") as client,
            SqlSession(client) as session,
            settings(spark, {**reader_conf(run.checkpoint), **NO_PRUNING}),
        ):
            tables = session.refresh()
            for each in operators.values():
                reader = spark.read.format("statestore").option("operatorId", each)
                assert register(spark, f"op{each}", reader.load(str(run.checkpoint)), tables[f"op{each}"]).count() > 2
            yield session, f"op{operators[2]}", f"op{operators[1]}"


@pytest.mark.full
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 5))])
def test_random_statements_equal_those_of_spark(
    spark: SparkSession, asked: tuple[SqlSession, str, str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred for each seed. Pages are small, so that most rows come by exports."""
    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", (1000, 50)[seed % 2])
    session, wide, few = asked
    statements = Statements(seed, session.tables[wide], session.tables[few])
    assert differences(session, spark, [statements.one() for _ in range(100)]) == []
