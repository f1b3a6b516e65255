"""The key columns of a stream-stream join go by the names that the query has for them, at both sides."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import stream_feeder, wait_until

from understudy_node.stores.stores import naming_of, served_stores
from understudy_pipeline.announcing.query_plan import StatefulJoin, announced_stores
from understudy_pipeline.announcing.spark_query import SparkQuery
from understudy_shared.bus.messages import Announcement


def paired(rows: DataFrame) -> DataFrame:
    orders, payments = rows.toDF("shop", "amount", "ordered"), rows.toDF("shop", "paid", "at")
    same = (orders.shop == payments.shop) & (orders.amount == payments.paid) & (F.upper("ordered") == F.upper("at"))
    return orders.join(payments, same).select(orders.shop)


def test_the_sides_of_a_join_have_key_columns_with_the_names_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    with stream_feeder(
        spark,
        name="paired",
        schema="shop string, amount double, at string",
        build=paired,
        checkpoint=tmp_path / "checkpoint",
        state_format=ROCKSDB_CHANGELOG_V2,
    ) as feeder:
        feeder.add([{"shop": "a", "amount": 1.5, "at": "now"}])
        query = SparkQuery(feeder.query)
        wait_until(lambda: query.plan() is not None, what="the plan of a finished batch", limit_s=60)
        plan = query.plan()
        assert plan is not None
        assert plan.joins == (StatefulJoin(0, ("shop", "amount", None), ("shop", "paid", None)),)
        with closing(CheckpointReader(feeder.checkpoint, tmp_path / "data")) as reader:
            description = reader.description
    announcement = Announcement(
        application_id="paired", query_id=description.query_id, stores=announced_stores(plan, {0: "pairs"})
    )
    naming = naming_of(description, {}, announcement)
    assert naming.left_out == []
    stores = served_stores(description, naming.aliases)
    expected = ("shop", "amount", "field2")
    assert {name: store.codec.names for name, store in stores.items()} == {
        "pairs.left": expected,
        "pairs.right": expected,
    }
