"""Queries over the aligned source that a test feeds by Redis Streams and whose output it keeps, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark.accelerator import FORMATS, Way
from tests.support.spark.process import stat_of
from tests.support.spark.queries import wait_until

from understudy_aligned.stream import LOCK_NAME

QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataProgressEventInterval": "100",
}
"""Settings of a session with small batches: interpreting them is faster than compiling their classes."""


_STARTS = 3
_TOO_SLOW = "Python worker failed to connect back"
"""Spark's error for a planner that took over 10 s to start, on an overloaded machine. No setting changes that limit.
Nothing of the source or of the checkpoint has been touched by then."""


class Row(NamedTuple):
    """What tells one record from another. Not its `merge_order`, which says in which batch it came."""

    timestamp_ms: int
    topic: str
    partition: int
    offset: str
    value: bytes


@dataclass(frozen=True, slots=True)
class InputLogs:
    """Topics in Redis Streams. The spool of a query that reads them is in `folder`."""

    url: str
    folder: Path

    def make(self, topic: str, partitions: int) -> None:
        """An empty topic, or more partitions of one."""
        with redis.Redis.from_url(self.url) as client:
            for partition in range(partitions):
                if not client.exists(f"{topic}:{partition}"):
                    client.xgroup_create(f"{topic}:{partition}", "made", mkstream=True)

    def add(self, topic: str, partition: int, times_ms: Sequence[int | None], *, note: str = "") -> None:
        """Append records of these times, all at once; None makes one without a time."""
        records = [{"at": at, "note": note} if at is not None else {"note": note} for at in times_ms]
        with redis.Redis.from_url(self.url) as client, client.pipeline() as pipeline:
            for record in records:
                pipeline.xadd(f"{topic}:{partition}", {"value": json.dumps(record)})
            pipeline.execute()

    def remove(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()


@dataclass(slots=True)
class Kept:
    """Rows of every batch that ran, in merge order. A batch that runs again replaces its rows."""

    batches: dict[int, list[Row]] = field(default_factory=dict)

    def keep(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = rows_of(frame)

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]


def rows_of(frame: DataFrame) -> list[Row]:
    """A batch in merge order. Sorted here: Spark's `orderBy` reads its input twice."""
    columns = ("topic", "partition", "offset", "value")
    rows = frame.selectExpr("merge_order", "unix_millis(timestamp) AS at", *columns).toArrow().to_pylist()
    rows.sort(key=lambda row: tuple(row["merge_order"].values()))
    return [Row(row["at"], *(row[name] for name in columns)) for row in rows]


def load(spark: SparkSession, options: Mapping[str, str], way: Way = "python") -> DataFrame:
    """`format("understudy")`, found by Spark itself; in the shared session by this way."""
    return spark.readStream.format(FORMATS[way]).options(**options).load()


def logs_options(logs: InputLogs, topics: str, **more: str) -> dict[str, str]:
    """Options of a source whose records have their time in `at`. It never waits for an empty topic."""
    options = {"redis": logs.url, "topics": topics, "timestamp": "json:at", "max_task_idle_ms": "-1"}
    return {**options, "spool": str(logs.folder / "spool"), **more}


def run_to_end(frame: DataFrame, checkpoint: Path, kept: Kept | None = None) -> Kept:
    """Everything that is there now, and then the query has ended. Raises what ended it before."""
    kept = kept or Kept()
    query = started(frame, checkpoint, kept.keep, available_now=True)
    query.awaitTermination()
    return kept


@contextmanager
def running(frame: DataFrame, checkpoint: Path, kept: Kept | None = None) -> Iterator[tuple[StreamingQuery, Kept]]:
    kept = kept or Kept()
    query = started(frame, checkpoint, kept.keep, available_now=False)
    try:
        yield query, kept
    finally:
        query.stop()


def planner_of(checkpoint: Path) -> int:
    """The process that holds a query's checkpoint, where the source has the option `checkpoint`."""
    return int((checkpoint / LOCK_NAME).read_text())


def has_ended(process: int) -> bool:
    """Whether it is gone, or waits only for its parent to take notice."""
    try:
        return stat_of(process)[0] == "Z"
    except OSError:
        return True


def wait_for_rows(query: StreamingQuery, kept: Kept, count: int) -> None:
    """Return when so many rows came out; fail with Spark's error when the query ended instead."""
    wait_until(lambda: len(kept.rows) >= count or not query.isActive, what=f"{count} rows")
    if len(kept.rows) < count:
        raise AssertionError(f"the query ended after {len(kept.rows)} rows: {query.exception()}")


def started(
    frame: DataFrame,
    checkpoint: Path,
    keep: Callable[[DataFrame, int], None],
    *,
    available_now: bool,
    once: bool = False,
    output_mode: str = "append",
) -> StreamingQuery:
    """A query that has its planner, or has ended."""
    writer = frame.writeStream.foreachBatch(keep).outputMode(output_mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if once:
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    for _ in range(_STARTS - 1):
        query = writer.start()
        wait_until(lambda query=query: _has_planner(query), what="the query's planner")  # type: ignore[misc]
        if query.isActive or _TOO_SLOW not in str(query.exception()):
            return query
    return writer.start()


def _has_planner(query: StreamingQuery) -> bool:
    """Whether the query's planner runs, or the query has failed."""
    return not query.isActive or not query.status["message"].startswith("Initializing")
