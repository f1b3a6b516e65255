"""Random groups of one type under every aggregate that takes it: what the query put out, and our `result`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.spark.finished_pools import POOLS, Pool, aggregates
from tests.support.spark.formats import HDFS_V1
from tests.support.spark.queries import InputFolder, QueryOptions, read_folder, settings

from understudy_node.stores.stores import naming_of, served_stores
from understudy_pipeline.announcing.query_plan import announced_stores
from understudy_pipeline.announcing.spark_query import SparkQuery
from understudy_shared.bus.messages import AnnouncedStore, Announcement
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import parse_schema

# Overflows and divisions by zero end a query with ANSI rules, and there is no output to compare with.
_OPTIONS = QueryOptions(
    partitions=2,
    output_mode="complete",
    extra_conf={"spark.sql.ansi.enabled": "false", "spark.sql.timeType.enabled": "true"},
)
_GROUPS = 60

Rows = dict[str, dict[str, Any]]
"""Of each key its result columns, as an answer prints them."""


def put_out_and_answered(spark: SparkSession, name: str, seed: int, folder: Path) -> tuple[Rows, Rows]:
    """What a query of a pool put out last, and what is answered of its checkpoint."""
    chance = random.Random(f"{name} {seed}")
    pool, order = POOLS[name], POOLS["double"].values(chance)[:10]
    values = pool.values(chance)
    feed = InputFolder(folder / "input")
    rows = list(_rows(chance, len(values), len(order)))
    chance.shuffle(rows)
    for batch in range(2):
        feed.add(rows[batch::2])
    found: dict[str, Any] = {}

    def keep(frame: DataFrame, batch: int) -> None:
        execution: Any = frame._jdf.queryExecution()
        found["schema"] = frame.schema.json()
        # Rows as they are: Python's times do not reach as far as Spark's.
        found["rows"] = [bytes(row.getBytes()) for row in execution.executedPlan().executeCollect()]

    with settings(spark, {**HDFS_V1.conf(), **_OPTIONS.conf()}):
        source = read_folder(spark, feed, "k string, v int, w int, o int").selectExpr(
            "k",
            f"{_picked(pool.type, values, 'v')} v",
            f"{_picked(pool.type, values, 'w')} w",
            f"{_picked('double', order, 'o')} o",
        )
        writer = _aggregated(source, pool).writeStream.foreachBatch(keep).outputMode("complete")
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    plan = SparkQuery(query).plan()
    assert plan is not None
    (store,) = announced_stores(plan, {})
    printed = compile_json_printer(parse_schema(found["schema"]))
    put_out = {str(row.pop("k")): row for row in map(printed, found["rows"])}
    return put_out, dict(_answered(folder, store))


def _rows(chance: random.Random, values: int, order: int) -> Iterator[dict[str, object]]:
    """Rows whose columns are places in the lists of values, or nothing. The first groups are all null or one value."""
    for group in range(_GROUPS):
        chosen, beside = (chance.sample(range(values), min(values, chance.choice((1, 1, 2, 3, values)))) for _ in "vw")
        ordered = chance.sample(range(order), chance.choice((1, 2, 3, order)))
        nulls, unordered = chance.choice((0, 0, 0.3, 1)), chance.choice((0, 0, 0.3, 1))
        for _ in range(chance.choice((1, 1, 2, 2, 3, 3, 4, 5, 8, 20))):
            yield {
                "k": f"group {group}",
                "v": None if chance.random() < (1 if group == 0 else nulls) else chance.choice(chosen),
                "w": None if chance.random() < nulls / 2 else chance.choice(beside),
                "o": None if chance.random() < unordered else chance.choice(ordered),
            }


def _picked(kind: str, values: list[str], place: str) -> str:
    return f"get(CAST(array({', '.join(values)}) AS array<{kind}>), {place})"


def _aggregated(source: DataFrame, pool: Pool) -> DataFrame:
    columns = [F.expr(text).alias(text) for text in aggregates(pool)]
    products = [F.product("v").alias("product(v)")] if "number" in pool.takes else []
    return source.groupBy("k").agg(*columns, *products)


def _answered(folder: Path, store: AnnouncedStore) -> Iterator[tuple[str, dict[str, Any]]]:
    query_id = json.loads((folder / "checkpoint" / "metadata").read_text())["id"]
    announcement = Announcement(application_id="finished", query_id=query_id, stores=[store])
    with closing(CheckpointReader(folder / "checkpoint", folder / "data")) as reader:
        naming = naming_of(reader.description, {}, announcement)
        assert naming.left_out == []
        (served,) = served_stores(reader.description, naming.aliases).values()
        for row in reader.rows(served, reader.versions()[-1]):
            members = json.loads(b"{%b}" % served.print_found(row.value).rstrip(b","))
            yield str(served.codec.to_json(row.key)["k"]), members["result"]
