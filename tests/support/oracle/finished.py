"""The query of every finished aggregate: the rows that it put out, and a node's `result` held to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from tests.support.cluster.served_node import served_node
from tests.support.spark.finished import AGGREGATES, FINISHED_SCHEMA, SETS, build_finished, finished_batches
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import InputFolder, QueryOptions, read_folder, settings, wait_until

from understudy_pipeline.announcing.query_plan import announced_stores
from understudy_pipeline.announcing.spark_query import SparkQuery
from understudy_shared.bus.messages import AnnouncedStore, Announcement
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import parse_schema
from understudy_shared.spark.unsafe_row import compile_row_encoder

if TYPE_CHECKING:  # where it is in PySpark 3.3 is another place
    from pyspark.sql.streaming.query import StreamingQuery

# Where Spark's own expression divides by zero a query with ANSI rules fails, and has no output to compare with.
_OPTIONS = QueryOptions(partitions=2, extra_conf={"spark.sql.ansi.enabled": "false"})

NAMES = [*AGGREGATES, "product"]

Row = dict[str, Any]
"""A row that a query put out, as an answer would print it."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The query at its end, with the rows that it put out last."""

    query: StreamingQuery
    rows: list[Row]


def run_finished(spark: SparkSession, checkpoint: Path, state_format: StateFormat) -> FinishedRun:
    feed = InputFolder(Path(f"{checkpoint}.input"))
    for batch in finished_batches():
        feed.add(batch)
    with settings(spark, {**state_format.conf(), **_OPTIONS.conf()}):
        frame = build_finished(read_folder(spark, feed, FINISHED_SCHEMA))
        writer = frame.writeStream.format("memory").queryName("finished").outputMode("complete")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
    sink = spark.table("finished")
    schema = parse_schema(sink.schema.json())
    printed, encode = compile_json_printer(schema), compile_row_encoder(schema)
    return FinishedRun(query, [printed(encode(tuple(row))) for row in sink.collect()])


def announced(run: FinishedRun) -> AnnouncedStore:
    """What the plan of the query says of its one store."""
    plan = SparkQuery(run.query).plan()
    assert plan is not None
    (store,) = announced_stores(plan, {})
    return store


def assert_results(
    checkpoint: Path, data: Path, store: AnnouncedStore, rows: Sequence[Row], *, unknown: str = ""
) -> None:
    """A node that hears what makes each result answers every key with the row that the query put out. One result may
    be `unknown`.
    """
    names = [name for name in NAMES if name != unknown]
    assert {row["k"] for row in rows} == {row["k"] for batch in finished_batches() for row in batch}
    found = [column.name for column in store.result]
    assert found == names, f"not announced: {[name for name in names if name not in found]}"
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    with served_node(checkpoint, data) as served:
        wait_until(lambda: served.get("/readyz").status == 200, what="the store to be open")
        served.node.announce(Announcement(application_id="finished", query_id=query_id, stores=[store]))
        served.wait_for_event("named")
        assert "names left out" not in served.events()
        answers = served.look_up_all([[row["k"]] for row in rows])
        for row, answer in zip(rows, answers, strict=True):
            result: Any = answer["result"]
            for name in names:
                given = f"{name} of {row['k']!r}: {result[name]!r}, not {row[name]!r}; {answer['value']}"
                assert _comparable(name, result[name]) == _comparable(name, row[name]), given
        described: Any = served.get("/v1/stores/op0").body["result"]
        assert [column["name"] for column in described] == names


def _comparable(name: str, value: Any) -> str:
    """The same text for the same value only: 0.0 unlike -0.0. A set has no order."""
    return json.dumps(sorted(value, key=json.dumps) if name in SETS else value)
