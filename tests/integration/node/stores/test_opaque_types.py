"""A variant is shown as JSON, in every form of an answer; what cannot be decoded costs no other column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.cluster.served_node import served_node
from tests.support.oracle.exported import assert_exported
from tests.support.oracle.record import compared, record
from tests.support.oracle.scanned import scanned
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V1
from tests.support.spark.queries import run_query

from understudy import Client
from understudy.sql.session import SqlSession

DOCUMENTS = {"a": '{"x": 1, "b": [null, 1.50, "日本語é"]}', "c": "null", "d": '"hello"', "b": None}


def test_a_variant_is_the_json_that_spark_makes_of_it_in_every_form_of_an_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    def build(source: DataFrame) -> DataFrame:
        last = F.last(F.parse_json("v"))
        return source.groupBy("k").agg(F.count("*"), last, F.collect_list(F.struct(F.parse_json("v").alias("of"))))

    run = run_query(
        spark,
        name="variants",
        schema="k string, v string",
        batches=[[{"k": key, "v": text} for key, text in DOCUMENTS.items()]],
        build=build,
        checkpoint=tmp_path / "checkpoint",
        state_format=ROCKSDB_CHANGELOG_V1,
    )
    texts = [(key, text) for key, text in DOCUMENTS.items() if text]
    frame = spark.createDataFrame(texts, "k string, v string")
    expected = {"b": None, **dict(map(tuple, frame.select("k", F.to_json(F.parse_json("v"))).collect()))}
    with served_node(run.checkpoint, tmp_path / "data") as served:
        served.wait_for_version(1)
        stores: Any = served.get("/v1/stores").body["stores"]
        (store,) = stores
        assert [column["type"] for column in store["value"]][:2] == ["long", "variant"]
        for key, text in expected.items():
            value: Any = served.look_up([key]).body["value"]
            assert value["last"] == text
        rows = scanned(served, "op0", limit="10")
        assert {row["key"]["k"]: row["value"]["last"] for row in rows} == expected
        assert_exported(served, "op0", rows, 1)
        with (
            Client(f"http://127.0.0.1:{served.port}") as client,
            SqlSession(client) as session,
            session.run('select k, "last" from op0') as answer,
        ):
            assert {row["k"]: row["last"] for row in answer.table().to_pylist()} == expected
        refused = served.get('/v1/stores/op0/scan?where=[["last","=","1"]]'.replace('"', "%22"))
        assert (refused.status, refused.problem) == (400, "bad-bound")
    line = compared(pyspark.__version__, "stateStoreSave", "value", ROCKSDB_CHANGELOG_V1, [expected])
    record(f"{pyspark.__version__}-variant", [replace(line, variant="columns of type variant")])
