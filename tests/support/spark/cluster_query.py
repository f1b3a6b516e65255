"""One query for local mode and for a cluster: every row in its place in the order, and answers in a state store.

Records are JSON `{"at": ms, "note": sensor}` in any input. `jobs/cluster_job.py` runs the query where `spark-submit`
says; a test runs it in its own session, and compares.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark.aligned_queries import QUICK, load, started
from tests.support.spark.queries import settings

from understudy.demo.job import state_conf
from understudy_aligned.inputs.records import TopicPartition

TOPICS = ("weather", "flights")
PARTITIONS = 2
SENSORS = tuple(f"s{number}" for number in range(5))
STORE = "sensors"
CONF = {**state_conf("rocksdb"), "spark.sql.shuffle.partitions": "2"}


class Record(NamedTuple):
    at: int
    sensor: str

    @property
    def value(self) -> bytes:
        return json.dumps({"at": self.at, "note": self.sensor}).encode()


class Answer(NamedTuple):
    """What the state store says of one sensor."""

    readings: int
    total: int


class PlacedRow(NamedTuple):
    """A row, and its place as far as it does not depend on where batches end."""

    topic_rank: int
    partition: int
    ordinal: int
    topic: str
    offset: str
    value: str


def records(count: int) -> dict[TopicPartition, list[Record]]:
    """So many for each partition of both topics, some behind their time; the same every time."""
    chance = random.Random(13)
    return {TopicPartition(topic, p): _log(chance, count) for topic in TOPICS for p in range(PARTITIONS)}


def _log(chance: random.Random, count: int) -> list[Record]:
    at, log = 0, []
    for number in range(count):
        at += chance.randint(1, 20)
        log.append(Record(at - chance.choice([0, 0, 0, 30]), SENSORS[number % len(SENSORS)]))
    return log


def answers_of(logs: Mapping[TopicPartition, list[Record]]) -> dict[str, Answer]:
    """The answers by plain counting."""
    times: dict[str, list[int]] = {}
    for log in logs.values():
        for record in log:
            times.setdefault(record.sensor, []).append(record.at)
    return {sensor: Answer(len(each), sum(each)) for sensor, each in times.items()}


def build(source: DataFrame) -> DataFrame:
    text, offset = F.col("value").cast("string"), F.col("offset").cast("string")
    row = F.struct("merge_order", "topic", offset.alias("offset"), text.alias("value"))
    rows = source.select(F.lit("row").alias("kind"), F.to_json(row).alias("json"))
    fields = source.select(
        F.get_json_object(text, "$.note").alias("sensor"), F.get_json_object(text, "$.at").cast("long").alias("at")
    )
    answers = fields.groupBy("sensor").agg(F.count("*").alias("readings"), F.sum("at").alias("total")).alias(STORE)
    return rows.unionAll(answers.select(F.lit("answer"), F.to_json(F.struct("sensor", "readings", "total"))))


def what_executors_see(spark: SparkSession, folder: Path, executors: int) -> list[dict[str, str]]:
    """The work folder of each executor, and what it finds in `folder`: names, or the reason why none."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        try:
            found = " ".join(os.listdir(folder))  # noqa: PTH208  # only names
        except OSError as refusal:
            found = refusal.strerror or "?"
        yield pa.RecordBatch.from_pylist([{"work": str(Path.cwd()), "found": found}])

    one_each = spark.range(0, executors, 1, executors).mapInArrow(look, "work string, found string")
    return [row.asDict() for row in one_each.collect()]


@dataclass(frozen=True, slots=True)
class Output:
    """The files of a run: one for each batch. A batch that runs again replaces its file."""

    folder: Path

    def start(self, frame: DataFrame, checkpoint: Path, *, available_now: bool) -> StreamingQuery:
        self.folder.mkdir(parents=True, exist_ok=True)

        def keep(batch: DataFrame, batch_id: int) -> None:
            draft = self.file(batch_id).with_suffix(".draft")
            draft.write_text(json.dumps([(row.kind, json.loads(row.json)) for row in batch.collect()]))
            draft.rename(self.file(batch_id))

        return started(frame, checkpoint, keep, available_now=available_now, output_mode="update")

    def file(self, batch_id: int) -> Path:
        return self.folder / f"{batch_id}.json"

    def batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.json"))

    def order(self) -> dict[int, list[PlacedRow]]:
        """The rows of each task, in the order of delivery."""
        rows = [document for kind, document in self._documents() if kind == "row"]
        rows.sort(key=lambda row: tuple(row["merge_order"].values()))
        tasks: dict[int, list[PlacedRow]] = {partition: [] for partition in range(PARTITIONS)}
        for row in rows:
            place = {name: row["merge_order"][name] for name in ("topic_rank", "partition", "ordinal")}
            tasks[place["partition"]].append(
                PlacedRow(**place, topic=row["topic"], offset=row["offset"], value=row["value"])
            )
        return tasks

    def count(self) -> int:
        return sum(kind == "row" for kind, _ in self._documents())

    def answers(self) -> dict[str, Answer]:
        newest = (document for kind, document in self._documents() if kind == "answer")
        return {each["sensor"]: Answer(each["readings"], each["total"]) for each in newest}

    def _documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for batch_id in self.batches():
            yield from json.loads(self.file(batch_id).read_text())


def run_in_local_mode(spark: SparkSession, options: Mapping[str, str], folder: Path) -> Output:
    """All that is there, in this process."""
    output = Output(folder / "output")
    with settings(spark, {**QUICK, **CONF}):
        query = output.start(build(load(spark, options)), folder / "checkpoint", available_now=True)
    query.awaitTermination()
    return output
