"""Runs a streaming query over rows of a test's choice, one micro-batch for each list of rows.

The source is a folder with one JSON file per batch, so that a batch of the test is a batch of Spark, and a restarted
query reads the same again. Settings of a query are set around its start only: a started query keeps its own copy.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.formats import StateFormat
from tests.support.spark.session import SPARK_RELEASE

if TYPE_CHECKING:  # where it is in PySpark 3.3 is another place
    from pyspark.sql.streaming.query import StreamingQuery

InputRow = Mapping[str, object]
Build = Callable[[DataFrame], DataFrame]

_STREAMING = "spark.sql.streaming"
_WAIT_LIMIT_S = 120
_FIRST_FILE_TIME_S = 1_700_000_000
"""The file source orders files by modification time: each gets its own second, counted from here."""


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How a query keeps its state, beside the format of its files."""

    partitions: int = 3
    min_batches_to_retain: int = 100
    min_deltas_for_snapshot: int = 10
    maintenance_interval_ms: int = 60_000
    no_data_batches: bool = False
    output_mode: str = "update"
    generated_code: bool = False
    """Compile the query to Java classes, as Spark does by default. Interpreted, it writes the same bytes, and small
    batches take half the time."""
    extra_conf: Mapping[str, str] = field(default_factory=dict)

    def conf(self) -> dict[str, str | None]:
        return {
            "spark.sql.shuffle.partitions": str(self.partitions),
            f"{_STREAMING}.minBatchesToRetain": str(self.min_batches_to_retain),
            f"{_STREAMING}.stateStore.minDeltasForSnapshot": str(self.min_deltas_for_snapshot),
            f"{_STREAMING}.stateStore.maintenanceInterval": f"{self.maintenance_interval_ms}ms",
            f"{_STREAMING}.noDataMicroBatches.enabled": str(self.no_data_batches).lower(),
            # Spark refuses several aggregations in one query unless its output is in append mode. Branches beside
            # each other never feed one another, so the reason for the refusal does not exist here.
            f"{_STREAMING}.statefulOperator.checkCorrectness.enabled": "false",
            "spark.sql.codegen.wholeStage": str(self.generated_code).lower(),
            "spark.sql.codegen.factoryMode": "FALLBACK" if self.generated_code else "NO_CODEGEN",
            **self.extra_conf,
        }


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """All that starts a query, but for its input."""

    name: str
    schema: str
    build: Build
    checkpoint: Path
    state_format: StateFormat
    options: QueryOptions


@dataclass(frozen=True, slots=True)
class QueryRun:
    """What a finished query left behind."""

    checkpoint: Path
    state_format: StateFormat

    @property
    def batch_ids(self) -> tuple[int, ...]:
        """The batches that the commit log still has."""
        return committed_batches(self.checkpoint)


def committed_batches(checkpoint: Path) -> tuple[int, ...]:
    folder = checkpoint / "commits"
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208  # only names: files may vanish meanwhile
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def run_query(
    spark: SparkSession,
    *,
    name: str,
    schema: str,
    batches: Sequence[Sequence[InputRow]],
    build: Build,
    checkpoint: Path,
    state_format: StateFormat,
    options: QueryOptions | None = None,
) -> QueryRun:
    """Run `build` over `batches` to their end. Called again with more batches, the query goes on where it stopped.

    The input lies beside the checkpoint, in `<checkpoint>.input`; batches that are there already are not written again.
    """
    spec = QuerySpec(name, schema, build, checkpoint, state_format, options or QueryOptions())
    feed = InputFolder(Path(f"{checkpoint}.input"))
    for rows in batches[feed.count :]:
        feed.add(rows)
    with state_stores_unloaded(spark):
        ends = SPARK_RELEASE >= (3, 3)  # no trigger of Spark 3.2 takes all there is, a batch for each file
        query = _start_over_files(spark, feed, spec, available_now=ends)
        if not ends:
            query.processAllAvailable()
            query.stop()
        query.awaitTermination()
    return QueryRun(checkpoint, state_format)


class InputFolder:
    """The files that the query reads: one per batch, in the order in which they were added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)
        self.count = len(list(self.path.glob("*.json")))

    def add(self, rows: Sequence[InputRow]) -> int:
        """Write the rows of the next batch; returns its number."""
        number = self.count
        # A name that starts with a dot is no input: the file appears to the query only when it is complete.
        draft = self.path / f".{number:06d}.json"
        draft.write_text("".join(json_line(row) + "\n" for row in rows))
        os.utime(draft, (_FIRST_FILE_TIME_S + number, _FIRST_FILE_TIME_S + number))
        draft.rename(self.path / f"{number:06d}.json")
        self.count += 1
        return number


class StreamFeeder:
    """A query that keeps running while a test adds batches to it."""

    def __init__(self, query: StreamingQuery, feed: InputFolder, checkpoint: Path) -> None:
        self.query = query
        self.checkpoint = checkpoint
        self._feed = feed

    def add(self, rows: Sequence[InputRow]) -> int:
        """Add a batch and wait for its commit; returns its batch id."""
        batch_id = self._feed.add(rows)
        self.wait_for_commit(batch_id)
        return batch_id

    def wait_for_commit(self, batch_id: int) -> None:
        """Return when the commit log has `batch_id`; fail with Spark's own error when the query ended instead."""
        commit = self.checkpoint / "commits" / str(batch_id)
        wait_until(lambda: commit.exists() or not self.query.isActive, what=f"commit of batch {batch_id}")
        if not commit.exists():
            error = self.query.exception()
            raise AssertionError(f"the query ended before batch {batch_id}: {error}")


@contextmanager
def stream_feeder(
    spark: SparkSession,
    *,
    name: str,
    schema: str,
    build: Build,
    checkpoint: Path,
    state_format: StateFormat,
    options: QueryOptions | None = None,
) -> Iterator[StreamFeeder]:
    """Start `build` over a folder that the test fills batch by batch; the query is stopped at the end of the block."""
    spec = QuerySpec(name, schema, build, checkpoint, state_format, options or QueryOptions())
    feed = InputFolder(Path(f"{checkpoint}.input"))
    with state_stores_unloaded(spark):
        query = _start_over_files(spark, feed, spec, available_now=False)
        try:
            yield StreamFeeder(query, feed, checkpoint)
        finally:
            query.stop()


def wait_until(
    condition: Callable[[], bool], *, what: str, limit_s: float = _WAIT_LIMIT_S, every_s: float = 0.01
) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(every_s)


def read_folder(spark: SparkSession, feed: InputFolder, schema: str) -> DataFrame:
    return spark.readStream.format("json").schema(schema).option("maxFilesPerTrigger", 1).load(str(feed.path))


def start_query(
    frame: DataFrame, checkpoint: Path, *, name: str, available_now: bool, output_mode: str = "update"
) -> StreamingQuery:
    """Start `frame` into a sink that keeps nothing."""
    writer = frame.writeStream.format("noop").queryName(name).outputMode(output_mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="10 milliseconds")
    return writer.start()


@contextmanager
def settings(spark: SparkSession, conf: Mapping[str, str | None]) -> Iterator[None]:
    """Set the session's settings for a block; `None` unsets one. What was set before is set again after it."""
    # The active session of the JVM's thread decides how `F.expr` is parsed, and a new thread has no active session.
    java: Any = spark._jvm
    find_class: Any = getattr(SparkSession, "_get_j_spark_session_class", lambda java: java.SparkSession)  # PySpark 3
    find_class(java).setActiveSession(spark._jsparkSession)
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        _apply(spark, conf)
        yield
    finally:
        _apply(spark, before)


def _apply(spark: SparkSession, conf: Mapping[str, str | None]) -> None:
    for key, value in conf.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _start_over_files(
    spark: SparkSession, feed: InputFolder, spec: QuerySpec, *, available_now: bool
) -> StreamingQuery:
    with settings(spark, {**spec.state_format.conf(), **spec.options.conf()}):
        source = (
            spark.readStream.format("json").schema(spec.schema).option("maxFilesPerTrigger", 1).load(str(feed.path))
        )
        frame = spec.build(source)
        return start_query(
            frame,
            spec.checkpoint,
            name=spec.name,
            available_now=available_now,
            output_mode=spec.options.output_mode,
        )


@contextmanager
def state_stores_unloaded(spark: SparkSession) -> Iterator[None]:
    """Give a query maintenance of its own: the first store loaded decides its interval for as long as any is loaded."""
    stores = spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore  # type: ignore[union-attr]
    stores.stop()
    try:
        yield
    finally:
        stores.stop()


def json_line(row: InputRow) -> str:
    """A row as Spark's JSON source reads it exactly."""
    return json.dumps(_to_json(dict(row)), ensure_ascii=False)


def _to_json(value: object) -> object:
    """A value as Spark's JSON source reads it exactly."""
    match value:
        case dict():
            return {key: _to_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_to_json(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return str(value)
        case datetime() | date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case _:
            return value
