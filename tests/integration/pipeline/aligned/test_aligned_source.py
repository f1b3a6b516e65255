"""`format("understudy")` in a real Spark, over files: order, bounds, checkpoints, poison, the spool, what is refused.

One session for all cases. How records get into it is the inputs' matter, and tested with them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.bus.redis_server import RedisServer
from tests.support.spark.accelerator import Way
from tests.support.spark.aligned_queries import (
    QUICK,
    InputLogs,
    Kept,
    Row,
    has_ended,
    load,
    logs_options,
    planner_of,
    rows_of,
    run_to_end,
    running,
    wait_for_rows,
)
from tests.support.spark.queries import settings, wait_until

TOPICS = "weather,flights"
SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:string,timestamp:timestamp,timestampType:int,"
)
ORDER = "merge_order:struct<batch:bigint,effective_ms:bigint,topic_rank:int,partition:int,ordinal:bigint>>"


@pytest.fixture(autouse=True, scope="module")
def _quick_session(spark: SparkSession) -> Iterator[None]:
    with settings(spark, QUICK):
        yield


@pytest.fixture
def logs(redis: RedisServer, tmp_path: Path) -> InputLogs:
    """Two topics of two partitions with a few records out of order."""
    made = InputLogs(redis.url, tmp_path)
    for topic, first in (("weather", 0), ("flights", 5)):
        for partition in range(2):
            made.add(topic, partition, [first + 10 * n for n in range(10)])
            made.add(topic, partition, [first + 95, first + 20, first + 100])
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def merged(rows: list[Row]) -> list[Row]:
    """Rows of one task as Kafka would merge them: the least timestamp among the next of each topic is next."""
    left = {topic: deque(row for row in rows if row.topic == topic) for topic in TOPICS.split(",")}
    order = []
    while heads := [topic for topic in left if left[topic]]:
        order.append(left[min(heads, key=lambda topic: left[topic][0].timestamp_ms)].popleft())
    return order


def of_partition(rows: list[Row], partition: int) -> list[Row]:
    return [row for row in rows if row.partition == partition]


@dataclass(slots=True)
class KeptTwice(Kept):
    """Reads every batch once more when its spool is gone."""

    spool: Path = field(kw_only=True)
    removed: int = 0
    differing: list[int] = field(default_factory=list)

    def keep(self, frame: DataFrame, batch_id: int) -> None:
        """Keep the rows of a batch; passed to `foreachBatch`."""
        rows = self.batches[batch_id] = rows_of(frame)
        for path in self.spool.rglob("*.arrow"):
            path.unlink()
            self.removed += 1
        if rows_of(frame) != rows:
            self.differing.append(batch_id)


@pytest.mark.parametrize(
    "waits", [{"max_task_idle_ms": "0"}, {"max_task_idle_ms": "0", "max_drift_ms": "25", "include_stream_time": "true"}]
)
def test_what_there_is_comes_in_the_order_of_time_with_the_spool_or_without_and_then_the_query_ends(
    spark: SparkSession, logs: InputLogs, tmp_path: Path, *, way: Way, waits: dict[str, str]
) -> None:
    """With bounded drift a batch that is read again is the same, too, in an order that is near that of time."""
    checkpoint, spool = tmp_path / "checkpoint", tmp_path / "spool"
    frame = load(spark, logs_options(logs, TOPICS, max_poll_records="20", spool=str(spool), **waits), way)
    stream_time = "stream_time:timestamp," if "include_stream_time" in waits else ""
    assert frame.schema.simpleString() == f"{SCHEMA}{stream_time}{ORDER}"
    kept = KeptTwice(spool=spool)
    run_to_end(frame, checkpoint, kept)
    assert kept.removed == sum(map(bool, kept.batches.values()))
    assert kept.differing == []
    assert len(kept.rows) == 52
    assert all(len(rows) <= 20 for rows in kept.batches.values())
    for partition in range(2):
        of_task = of_partition(kept.rows, partition)
        assert "max_drift_ms" in waits or of_task == merged(of_task)


def test_a_running_query_takes_what_comes_reports_its_metrics_and_leaves_nothing_when_it_is_stopped(
    spark: SparkSession, way: Way, logs: InputLogs, checkpoint: Path, tmp_path: Path
) -> None:
    frame = load(spark, logs_options(logs, TOPICS, checkpoint=str(checkpoint), include_headers="true"), way)
    assert frame.schema.simpleString() == f"{SCHEMA}headers:array<struct<key:string,value:binary>>,{ORDER}"
    spool = tmp_path / "spool"
    with running(frame, checkpoint) as (query, kept):
        wait_for_rows(query, kept, 52)
        logs.add("flights", 1, [200, 201])
        wait_for_rows(query, kept, 54)
        wait_until(lambda: _progress(query).get("batchId") == max(kept.batches), what="the last batch's progress")
        (source,) = _progress(query)["sources"]
        assert len(list(spool.iterdir())) == 1
        planner = planner_of(checkpoint)
        assert not has_ended(planner)
    metrics = source["latestOffset"]
    assert metrics["batches-total"] == source["endOffset"]["batches"] > 0
    assert metrics["input-buffer-bytes-total"] == 0
    assert metrics["enforced-processing-total"] == 0
    assert metrics["undecodable-total"] == 0
    # Stopped and started at once: the planner before may still be on its way out.
    logs.add("flights", 1, [300])
    assert [row.timestamp_ms for row in run_to_end(frame, checkpoint).rows] == [300]
    for process in (planner, planner_of(checkpoint)):
        wait_until(lambda process=process: has_ended(process), what="the planner's end")  # type: ignore[misc]
    assert list(spool.iterdir()) == []


def _progress(query: StreamingQuery) -> dict[str, Any]:
    """The progress of the last batch that had rows."""
    every = [json.loads(progress.json) for progress in query.recentProgress]
    return next((progress for progress in reversed(every) if progress["numInputRows"]), {})


_AWAY = {"topics": "redis:weather,kafka:flights", "kafka": "127.0.0.1:1", "request_timeout_ms": "500"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topics": "weather,flihgts"}, "flihgts"),
        (_AWAY, r"127\.0\.0\.1:1"),
        ({"redis": "redis://127.0.0.1:1"}, r"127\.0\.0\.1:1"),
    ],
    ids=["no such topic", "no Kafka", "no Redis"],
)
def test_what_is_wrong_with_options_or_servers_is_reported_at_load(
    spark: SparkSession, way: Way, logs: InputLogs, change: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(spark, {**logs_options(logs, TOPICS), **change}, way)


def test_poison_ends_the_query_and_can_be_set_aside_when_it_goes_on(
    spark: SparkSession, way: Way, logs: InputLogs, checkpoint: Path, tmp_path: Path
) -> None:
    logs.add("weather", 0, [500, None, 510])
    kept = Kept()
    options = logs_options(logs, TOPICS, checkpoint=str(checkpoint))
    with pytest.raises(StreamingQueryException, match=r"topic weather, partition 0, offset \d+-\d+"):
        run_to_end(load(spark, options, way), checkpoint, kept)
    aside = tmp_path / "aside"
    frame = load(spark, {**options, "undecodable": "aside", "undecodable_path": str(aside)}, way)
    run_to_end(frame, checkpoint, kept)
    assert sorted(row.timestamp_ms for row in kept.rows)[-2:] == [500, 510]
    assert len(kept.rows) == 54
    (letters,) = aside.iterdir()
    (letter,) = [orjson.loads(line) for line in letters.read_bytes().splitlines()]
    assert letter["topic"] == "weather"
