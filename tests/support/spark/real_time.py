"""Queries in the Real-Time Mode of Spark 4.3, over a stream in memory: its one source that needs no broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import (
    Build,
    InputFolder,
    InputRow,
    QueryOptions,
    StreamFeeder,
    committed_batches,
    json_line,
    settings,
    state_stores_unloaded,
    wait_until,
)

_MODE = "spark.sql.streaming.realTimeMode"
BATCH_MS = 2000
"""How long a batch lasts: state is committed at its end."""
REAL_TIME_CONF = {
    f"{_MODE}.minBatchDuration": str(BATCH_MS),
    f"{_MODE}.allowlistCheck": "false",  # a sink that keeps nothing is not on the list
    f"{_MODE}.dangerouslyAllowCheckpointV1.enabled": "true",
}


class RealTimeFeeder(StreamFeeder):
    """A query in Real-Time Mode. Batches follow one another by time, with rows or without."""

    def __init__(self, query: Any, stream: Any, checkpoint: Path, spark: SparkSession) -> None:
        super().__init__(query, InputFolder(Path(f"{checkpoint}.input")), checkpoint)
        self._stream = stream
        self._added = 0
        self._spark: Any = spark

    def add(self, rows: Sequence[InputRow]) -> int:
        """Add rows, and wait until a batch that has the last of them is committed; returns its batch id."""
        self._stream.addData(self._spark._jvm.PythonUtils.toSeq(list(map(json_line, rows))))
        self._added += len(rows)
        wait_until(lambda: self._read() == self._added or not self.query.isActive, what="a commit of all rows")
        assert self.query.isActive, self.query.exception()
        return committed_batches(self.checkpoint)[-1]

    def _read(self) -> int:
        done = committed_batches(self.checkpoint)
        if not done:
            return 0
        offsets: dict[str, int] = json.loads((self.checkpoint / f"offsets/{done[-1]}").read_text().splitlines()[-1])
        return sum(offsets.values())


@contextmanager
def real_time_feeder(
    spark: SparkSession,
    *,
    schema: str,
    build: Build,
    checkpoint: Path,
    state_format: StateFormat,
    options: QueryOptions,
) -> Iterator[RealTimeFeeder]:
    """Start `build` in Real-Time Mode; the query is stopped at the end of the block."""
    jvm: Any = spark._jvm
    with (
        state_stores_unloaded(spark),
        settings(spark, {**state_format.conf(), **options.conf(), **REAL_TIME_CONF}),
    ):
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        stream = sources.LowLatencyMemoryStream.singlePartition(
            spark._jsparkSession, jvm.org.apache.spark.sql.Encoders.STRING()
        )
        read = DataFrame(stream.toDF(), spark).select(
            F.from_json("value", schema, {"allowNonNumericNumbers": "true"}).alias("row")
        )
        writer: Any = build(read.select("row.*")).writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(realTime=f"{BATCH_MS} milliseconds")
        query = writer.start()
        try:
            yield RealTimeFeeder(query, stream, checkpoint, spark)
        finally:
            query.stop()
