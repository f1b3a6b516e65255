"""Runs Spark's own Kafka source and ours while the broker stops answering: each with patience, and with little.

Every query is one batch, without our spool. Its rows pass a Python worker, which makes a file `<query>.reading` when
some have come, and takes no more of them before the folder has a file `silent`. Prints `impatient ended` when the
queries with little patience have, and at the end how many rows each query had in each batch, and its error, as JSON.

Arguments: a folder, the jars of Spark's Kafka source separated by commas, and the options as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.spark.queries import wait_until
from tests.support.spark.session import spark_session

OURS = {"spool": "off", "request_timeout_ms": "5000"}
LITTLE = {"kafkaConsumer.pollTimeoutMs": "15000"}
SPARKS_LITTLE = {"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "15000"}
"""Spark's source asks for the ends of the log before it gives up. Both have time to start on a busy machine."""

LIMIT_S = 400
"""The longest wait for four queries to start at once, too."""

QUERIES: Mapping[str, Mapping[str, str]] = {
    "kafka": {},
    "understudy": OURS,
    "kafka-impatient": {**LITTLE, **SPARKS_LITTLE},
    "understudy-impatient": {**OURS, **LITTLE},
}


@dataclass(slots=True)
class Run:
    """A query that runs, and the offsets of each batch."""

    query: StreamingQuery
    batches: list[list[int]] = field(default_factory=list)

    def result(self) -> Mapping[str, object]:
        """Its rows, whether they are each one from the first, and its error."""
        offsets = [offset for batch in self.batches for offset in batch]
        error = self.query.exception()
        return {
            "batches": [len(batch) for batch in self.batches],
            "has each once": offsets == list(range(len(offsets))),
            "error": "" if error is None else str(error),
        }


def held_until_silent(folder: Path, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the worker's function."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (folder / f"{name}.reading").touch()
            wait_until((folder / "silent").exists, what="a broker that is silent", limit_s=LIMIT_S)
            yield batch

    return hold


def start(spark: SparkSession, name: str, options: Mapping[str, str], folder: Path) -> Run:
    """Start one query."""
    batches: list[list[int]] = []

    def keep(batch: DataFrame, _: int) -> None:
        batches.append(sorted(batch.toArrow()["offset"].to_pylist()))

    frame = spark.readStream.format(name.partition("-")[0]).options(**options, **QUERIES[name]).load()
    # The values go to the worker as well: what waits for it must be less than what there is.
    held = frame.select("offset", "value").mapInArrow(held_until_silent(folder, name), "offset long, value binary")
    writer = held.select("offset").writeStream.foreachBatch(keep)
    return Run(writer.option("checkpointLocation", str(folder / name)).trigger(once=True).start(), batches)


def main(folder: Path, jars: str, options: Mapping[str, str]) -> None:
    """Run all of them at once."""
    extra = {"spark.jars": jars, "spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
    with spark_session(folder / "spark", cores=len(QUERIES), extra=extra) as spark:
        runs = {name: start(spark, name, options, folder) for name in QUERIES}
        impatient = [run.query for name, run in runs.items() if name.endswith("impatient")]
        wait_until(
            lambda: not any(each.isActive for each in impatient), what="the impatient ones' end", limit_s=LIMIT_S
        )
        sys.stdout.write("impatient ended\n")
        wait_until(
            lambda: not any(run.query.isActive for run in runs.values()), what="the others' end", limit_s=LIMIT_S
        )
        found = {name: run.result() for name, run in runs.items()}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
