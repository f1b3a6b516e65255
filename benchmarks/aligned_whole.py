"""Whole queries from `start` to the last record, by size of record and trigger: ours, by Python workers and by the
accelerator jar, beside Spark's own Kafka source.

    python -m benchmarks.aligned_whole [--records 400000] [--sizes 10,200,2048] [--rounds 3] [--pause 1.5]
        [--sources spark,workers,jar,alone] [--triggers availableNow,running] [--busy 20]

First rows by the jar are measured twice: with the process that waits since the query before ended, and without one
(`alone`). `--pause` is the time between two queries. With `--busy` so many processes spin beside, and only the starts
are counted that lead to a first batch.

By turns, on one broker and in one session with Java's default compilers, after a round that warms up. CPU and memory
are of the broker, the driver (the JVM, with its executors), the planner, and Python's workers, also of those that wait
for a query; memory is the most that one process held. Records stay on the disk while their size is measured: 8.5 GB for
4,000,000 of 2,048 B.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tools.build_jar import build
from tools.compiled import NoCompilerError

from benchmarks.aligned_costs import Cost, processes_of_spark, watched
from benchmarks.aligned_python import PythonWay
from benchmarks.aligned_speed import COLUMNS, OURS, PARTITIONS, SPARK, TOPICS
from benchmarks.aligned_world import World, fill, spark_kafka_jars, started, wait_for_batch, world

BATCH, FEW = 100_000, 100
TRIGGERS = ("availableNow", "running", "first rows", "small batches")
JAR, JAR_ALONE = "understudy, jar", "understudy, jar, no process waits"
SOURCES = {"spark": SPARK, "workers": OURS, "jar": JAR, "alone": JAR_ALONE}
_WARM_UP, _MEASURED = 10, 50
"""Small batches that are left out, and that are measured."""

_LOOK_S, _LIMIT_S = 0.05, 600
_REST_S = 1.5
"""Time for the processes of a query to end, and for the one to start that waits for the next query."""

Frame = Callable[[Sequence[str], int], DataFrame]
"""A function of the topics and the rows of a batch."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The query that is measured, and how often."""

    topics: Sequence[str]
    trigger: str
    records: int
    rounds: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class WholeRun:
    """One query: seconds from `start` to its end, or to the commit of its first batch, and what it cost. Of small
    batches: the seconds of one.
    """

    took_s: float
    costs: Mapping[str, Cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--sizes", default="10,200,2048", help="bytes of a record's value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--triggers", default=",".join(TRIGGERS))
    parser.add_argument("--pause", type=float, default=_REST_S, help="seconds between the end of a query and the next")
    parser.add_argument("--busy", type=int, default=0, help="processes that spin beside; counts starts only")
    options = parser.parse_args()
    wanted = [SOURCES[name] for name in options.sources.split(",")]
    ours = _accelerator()
    jars = [*sorted(spark_kafka_jars().glob("*.jar")), *ours]
    with world(conf={"spark.jars": ",".join(map(str, jars))}) as running:
        frames = {name: frame for name, frame in _frames(running, has_jar=bool(ours)).items() if name in wanted}
        if options.busy:
            _print_busy_starts(running, frames, busy=options.busy, starts=options.rounds)
            return
        for size in map(int, options.sizes.split(",")):
            topics = [f"{topic}-{size}" for topic in TOPICS]
            for topic in topics:
                running.broker.make_topic(PARTITIONS, name=topic)
            fill(running.broker.servers, topics, partitions=PARTITIONS, records=options.records, value=b"v" * size)
            for trigger in options.triggers.split(","):
                turns = Turns(topics, trigger, options.records, options.rounds, options.pause)
                _print(turns, size, _by_turns(running, frames, turns))
            for topic in topics:
                running.broker.delete_topic(topic)


def _frames(running: World, *, has_jar: bool) -> Mapping[str, Frame]:
    running.spark.dataSource.register(PythonWay)
    servers, spool = running.broker.servers, running.folder / "spool"
    by_workers = our_frame(running.spark, servers, spool, PythonWay.name())
    by_jar = our_frame(running.spark, servers, spool)
    return {
        SPARK: spark_frame(running.spark, servers),
        OURS: by_workers,
        **(dict.fromkeys((JAR, JAR_ALONE), by_jar) if has_jar else {}),
    }


def _accelerator() -> Sequence[Path]:
    """Return the accelerator jar, or say that there is no JDK to build it with."""
    try:
        return [build()]
    except NoCompilerError as missing:
        print(missing)
        return []


def _print_busy_starts(running: World, frames: Mapping[str, Frame], *, busy: int, starts: int) -> None:
    """Count the queries that commit a batch while other processes want the machine, too."""
    for topic in TOPICS:
        running.broker.make_topic(PARTITIONS, name=topic)
    fill(running.broker.servers, TOPICS, partitions=PARTITIONS, records=FEW * 10)
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    outcomes: dict[str, list[float | None]] = {name: [] for name in frames if name != JAR_ALONE}
    try:
        for _ in range(starts):
            for name, each in outcomes.items():
                each.append(_start(running, frames[name]))
    finally:
        for process in spinning:
            process.kill()
    print(f"queries that began beside {busy} processes that spin; seconds to the first batch")
    for name, each in outcomes.items():
        times = [took_s for took_s in each if took_s is not None]
        print(f"  {name:22} {len(times)} of {len(each)}; median {median(times or [0]):.1f}", flush=True)


def _start(running: World, frame: Frame) -> float | None:
    """Return the seconds until the first batch of a new query; None if the query ended before."""
    began_s, checkpoint = time.perf_counter(), running.checkpoint()
    query = started(frame(TOPICS, FEW), checkpoint, available_now=False)
    try:
        wait_for_batch(query, checkpoint, 0)
    except RuntimeError:
        return None
    finally:
        query.stop()
    return time.perf_counter() - began_s


def _by_turns(running: World, frames: Mapping[str, Frame], turns: Turns) -> Mapping[str, Sequence[WholeRun]]:
    if turns.trigger != "first rows":
        frames = {name: frame for name, frame in frames.items() if name != JAR_ALONE}
    runs: dict[str, list[WholeRun]] = {name: [] for name in frames}
    for number in range(turns.rounds + 1):
        for name, frame in frames.items():
            if name == JAR_ALONE:
                _end_planners()
            run = _run(running, frame, turns)
            time.sleep(turns.pause_s)
            if number:
                runs[name].append(run)
    return runs


def _run(running: World, frame: Frame, turns: Turns) -> WholeRun:
    trigger, costs = turns.trigger, dict[str, Cost]()
    checkpoint = running.checkpoint()
    batch = FEW if trigger in ("first rows", "small batches") else BATCH
    with watched(costs):
        began_s = time.perf_counter()
        query = started(frame(turns.topics, batch), checkpoint, available_now=trigger == "availableNow")
        if trigger == "first rows":
            wait_for_batch(query, checkpoint, 0)
        elif trigger == "small batches":
            wait_for_batch(query, checkpoint, _WARM_UP + _MEASURED)
        elif trigger == "running":
            _wait_for_rows(query, checkpoint, turns.records)
        else:
            query.awaitTermination()
        took_s = time.perf_counter() - began_s
    query.stop()
    if trigger == "small batches":
        later = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] > _WARM_UP]
        took_s = median(each["durationMs"]["triggerExecution"] for each in later) / 1000
    if trigger == "availableNow":
        came = sum(each["numInputRows"] for each in query.recentProgress)
        assert came == turns.records, f"{came} of {turns.records} records came"
    return WholeRun(took_s, costs)


def _end_planners() -> None:
    """End the process that waits for the next query."""
    for pid, kind in processes_of_spark():
        if kind == "planner":
            os.kill(pid, signal.SIGKILL)
    time.sleep(_REST_S)


def _wait_for_rows(query: StreamingQuery, checkpoint: Path, records: int) -> None:
    """Return when so many rows came. Spark is not asked before there are about enough batches: asking disturbs it."""
    wait_for_batch(query, checkpoint, max(0, records // BATCH - 1))
    end_s = time.monotonic() + _LIMIT_S
    while sum(each["numInputRows"] for each in query.recentProgress) < records:
        if time.monotonic() > end_s or not query.isActive:
            raise RuntimeError(f"{records} rows did not come: {query.exception()}")
        time.sleep(_LOOK_S)


def spark_frame(spark: SparkSession, servers: str) -> Frame:
    """Return a function that loads Spark's Kafka source."""

    def frame(topics: Sequence[str], batch: int) -> DataFrame:
        options = {"kafka.bootstrap.servers": servers, "subscribe": ",".join(topics)}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch)}
        return spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)

    return frame


def our_frame(spark: SparkSession, servers: str, spool: Path, name: str = "understudy") -> Frame:
    """Return a function that loads our source by a name of its format."""

    def frame(topics: Sequence[str], batch: int) -> DataFrame:
        options = {"kafka": servers, "topics": ",".join(topics), "max_poll_records": str(batch), "spool": str(spool)}
        return spark.readStream.format(name).options(**options).load().select(*COLUMNS)

    return frame


def _print(turns: Turns, size: int, runs: Mapping[str, Sequence[WholeRun]]) -> None:
    print(f"{turns.trigger}, {turns.records:,} records of {size} B; seconds: median and rounds; s of CPU and MiB")
    for name, each in runs.items():
        times = [run.took_s for run in each]
        used = [
            f"{kind} {median(run.costs[kind].cpu_s for run in each):.1f} s "
            f"({median(run.costs[kind].kernel_s for run in each):.1f} in the kernel) "
            f"{max(run.costs[kind].memory_mib for run in each):.0f} MiB"
            for kind in each[-1].costs
        ]
        print(
            f"  {name:22} {median(times):7.3f} ({', '.join(f'{took:.3f}' for took in times)}); {', '.join(used)}",
            flush=True,
        )
    pairs = [(OURS, SPARK), (JAR, SPARK), (JAR, OURS), (JAR_ALONE, SPARK)]
    for quicker, slower in (pair for pair in pairs if set(pair) <= set(runs)):
        ratios = [before.took_s / after.took_s for before, after in zip(runs[slower], runs[quicker], strict=True)]
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"  speed of {quicker} against {slower}: {median(ratios):.2f} ({rounds})", flush=True)


if __name__ == "__main__":
    main()
