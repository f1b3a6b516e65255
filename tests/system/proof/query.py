"""The Spark query of the proof, in a process of its own: commits all the while, and at the end says what was true.

Each batch changes keys, adds keys, and every so often removes some. The input is counted, not read: a restarted driver
runs the same batches. The line `truth PATH` on standard input stops the query and writes Spark's own
account of every version to PATH; the process ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.oracle.kinds import join_conf
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import QueryOptions, settings, wait_until
from tests.support.spark.session import spark_session
from tests.system.proof import kinds_keys, kinds_query, kinds_truth, many_keys, moods_keys, moods_query
from tests.system.proof.keys import ROWS_PER_BATCH, SLOT_S, START, WATERMARK_S, WORDS
from tests.system.proof.subjects import COUNTS, KINDS, MANY, MOODS, SCATTERED, SUBJECTS, Subject
from tests.system.proof.truth import write_truth

STARTED = "the query is running"
TRUTH_WRITTEN = "the truth is written"
AT_REST = "the checkpoint is at rest"
COPY = "checkpoint"
"""The name of its copy in a life's folder."""

COPY_LIMIT_S = 600

STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
"""Whether Spark asks for the hash of the whole key; a query that was begun before Spark knew the setting has no such
demand for ever.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What Spark runs of a query under proof, and how the truth about its checkpoint is written."""

    build: Callable[[DataFrame], DataFrame]
    rows_per_batch: int
    output_mode: str
    write_truth: Callable[[SparkSession, Path, StateFormat, Path], None]
    extra_conf: Callable[[StateFormat], Mapping[str, str]] = lambda _: {}
    build_with_added: Callable[[DataFrame], DataFrame] | None = None
    """Makes the same query with another state variable."""

    def conf(self, subject: Subject, state_format: StateFormat, *, snapshots_often: bool) -> dict[str, str | None]:
        """Settings of the query. Nothing is purged: the truth of every version must still be readable at the end."""
        options = QueryOptions(
            partitions=subject.partitions,
            min_batches_to_retain=100_000,
            min_deltas_for_snapshot=1 if snapshots_often else 10,
            maintenance_interval_ms=1_000 if snapshots_often else 5_000,
            output_mode=self.output_mode,
            extra_conf=self.extra_conf(state_format),
        )
        return {**state_format.conf(), **options.conf()}


def main() -> None:
    """Run until standard input ends."""
    arguments = _arguments()
    state_format = StateFormat(**json.loads(arguments.format))
    with spark_session(arguments.folder, extra=json.loads(arguments.conf)) as spark:
        subject = SUBJECTS[arguments.query]
        query = (
            None
            if arguments.truth_alone
            else start(
                spark,
                arguments.checkpoint,
                state_format,
                arguments.every_ms,
                subject,
                other_rows=arguments.other_rows,
                with_added=arguments.with_added,
                snapshots_often=arguments.snapshots_often,
            )
        )
        _say(STARTED)
        for line in sys.stdin:
            word, _, path = line.strip().partition(" ")
            if word == "truth":
                if query is not None:
                    query.stop()
                JOBS[subject.name].write_truth(spark, at_rest(arguments), state_format, Path(path))
                _say(TRUTH_WRITTEN)


def start(
    spark: SparkSession,
    checkpoint: str,
    state_format: StateFormat,
    every_ms: int,
    subject: Subject = COUNTS,
    *,
    other_rows: bool = False,
    with_added: bool = False,
    snapshots_often: bool = False,
) -> StreamingQuery:
    """Start the query, or go on where a killed one stopped; a batch begins every `every_ms`. `other_rows`: twice as
    many in each batch as the query has elsewhere. `with_added`: with another state variable.
    """
    job = JOBS[subject.name]
    rows_per_batch = 2 * job.rows_per_batch if other_rows else job.rows_per_batch
    with settings(spark, job.conf(subject, state_format, snapshots_often=snapshots_often)):
        build = job.build_with_added if with_added and job.build_with_added else job.build
        writer = build(_rows(spark, rows_per_batch)).writeStream.format("noop").queryName("proof")
        writer = writer.outputMode(job.output_mode).option("checkpointLocation", checkpoint)
        return writer.trigger(processingTime=f"{every_ms} milliseconds").start()


def at_rest(arguments: argparse.Namespace) -> Path:
    """The folder of the checkpoint; of one at a URL a copy, which whoever asks for the truth makes."""
    if "://" not in arguments.checkpoint:
        return Path(arguments.checkpoint)
    copy: Path = arguments.folder / COPY
    _say(AT_REST)
    wait_until(copy.exists, what="a copy of the checkpoint", limit_s=COPY_LIMIT_S)
    return copy


def _rows(spark: SparkSession, rows_per_batch: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
    source = source.option("rowsPerBatch", rows_per_batch).option("advanceMillisPerBatch", 1000)
    return source.option("startTimestamp", int(START.timestamp() * 1000)).load()


def _counted(rows: DataFrame) -> DataFrame:
    slot = F.timestamp_seconds(F.floor(F.unix_timestamp("timestamp") / SLOT_S) * SLOT_S)
    word = F.concat(F.lit("w"), F.pmod(F.hash("value"), F.lit(WORDS)).cast("string"))
    keyed = rows.select(slot.alias("slot"), word.alias("word"), "value").withWatermark("slot", f"{WATERMARK_S} seconds")
    return keyed.groupBy("slot", "word").agg(F.count("*"), F.sum("value"), F.max("value"))


def _counted_numbers(rows: DataFrame) -> DataFrame:
    every = F.sequence("value", F.col("value") + many_keys.KEYS - 1)  # of two literals it would be a part of the plan
    numbers = F.when(F.col("value") == 0, every).otherwise(F.array(F.pmod("value", F.lit(many_keys.KEYS))))
    return rows.select(F.explode(numbers).alias("number")).groupBy("number").count()


JOBS = {
    COUNTS.name: Job(_counted, ROWS_PER_BATCH, "update", write_truth),
    MANY.name: Job(_counted_numbers, many_keys.ROWS_PER_BATCH, "update", write_truth),
    KINDS.name: Job(
        kinds_query.build, kinds_keys.ROWS_PER_BATCH, "append", kinds_truth.write_truth, extra_conf=join_conf
    ),
    SCATTERED.name: Job(
        kinds_query.build_scattered,
        kinds_keys.ROWS_PER_BATCH,
        "append",
        partial(kinds_truth.write_truth, kinds=kinds_keys.SCATTERED_STORES),
        extra_conf=lambda state_format: {**join_conf(state_format), STRICT: "false"},
    ),
    MOODS.name: Job(
        moods_query.build,
        moods_keys.ROWS_PER_BATCH,
        "append",
        moods_query.write_truth,
        moods_query.only_forced_snapshots,
        moods_query.build_with_mood,
    ),
}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="a folder or a URL")
    parser.add_argument("--folder", type=Path, required=True, help="for the session's own files")
    parser.add_argument("--format", required=True, help="a state format's fields as JSON")
    parser.add_argument("--conf", default="{}", help="settings of the session as JSON")
    parser.add_argument("--every-ms", type=int, required=True)
    parser.add_argument("--snapshots-often", action="store_true", help="about each version, not each tenth")
    parser.add_argument("--query", choices=tuple(SUBJECTS), required=True)
    parser.add_argument("--other-rows", action="store_true", help="go on with other rows than the query has elsewhere")
    parser.add_argument("--with-added", action="store_true", help="keep another state variable from now on")
    parser.add_argument("--truth-alone", action="store_true", help="do not start the query, whose state is of Spark 3")
    return parser.parse_args()


if __name__ == "__main__":
    main()
