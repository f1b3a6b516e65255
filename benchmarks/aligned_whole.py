"""Whole queries from `start` to the last record, by size of record and trigger: ours, by Python workers and by the
accelerator jar, beside Spark's own Kafka source.

    python -m benchmarks.aligned_whole [--records 400000] [--sizes 10,200,2048] [--rounds 3]
        [--triggers availableNow,running] [--busy 20]

First rows by the jar are measured twice: with the process that waits since the query before ended, and without one.
With `--busy` so many processes spin beside, and only the starts are counted that lead to a first batch.

By turns, on one broker and in one session with Java's default compilers, after a round that warms up. CPU is of the
processes of Spark: the JVM's (driver and executors), and Python's (planner and workers). Memory is the greatest of one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tools.build_jar import NoCompilerError, build

from benchmarks.aligned_python import PythonWay
from benchmarks.aligned_speed import COLUMNS, OURS, PARTITIONS, SPARK, TOPICS
from benchmarks.aligned_world import World, fill, spark_kafka_jars, started, wait_for_batch, world

BATCH, FEW = 100_000, 100
TRIGGERS = ("availableNow", "running", "first rows", "small batches")
JAR, JAR_ALONE = "understudy, jar", "understudy, jar, no process waits"
PLANNER = "understudy_pipeline.accelerator.planner"
_WARM_UP, _MEASURED = 10, 50
"""Small batches that are left out, and that are measured."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_LOOK_S, _LIMIT_S = 0.05, 600
_REST_S = 1.5
"""Time for the processes of a query to end, and for the one to start that waits for the next query."""

Frame = Callable[[Sequence[str], int], DataFrame]
"""A function of the topics and the rows of a batch."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of processes of one kind: seconds of CPU, and MiB of the largest."""

    cpu_s: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class WholeRun:
    """One query: seconds from `start` to its end, or to the commit of its first batch, and what it cost. Of small
    batches: the seconds of one.
    """

    took_s: float
    java: Cost
    python: Cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--sizes", default="10,200,2048", help="bytes of a record's value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triggers", default=",".join(TRIGGERS))
    parser.add_argument("--busy", type=int, default=0, help="processes that spin beside; counts starts only")
    options = parser.parse_args()
    ours = _accelerator()
    jars = [*sorted(spark_kafka_jars().glob("*.jar")), *ours]
    with world(conf={"spark.jars": ",".join(map(str, jars))}) as running:
        running.spark.dataSource.register(PythonWay)
        servers, spool = running.broker.servers, running.folder / "spool"
        frames = {
            SPARK: spark_frame(running.spark, servers),
            OURS: our_frame(running.spark, servers, spool, PythonWay.name()),
        }
        frames |= {JAR: our_frame(running.spark, servers, spool)} if ours else {}
        if options.busy:
            _print_busy_starts(running, frames, busy=options.busy, starts=options.rounds)
            return
        for size in map(int, options.sizes.split(",")):
            topics = [f"{topic}-{size}" for topic in TOPICS]
            for topic in topics:
                running.broker.make_topic(PARTITIONS, name=topic)
            fill(running.broker.servers, topics, partitions=PARTITIONS, records=options.records, value=b"v" * size)
            for trigger in options.triggers.split(","):
                runs = _by_turns(running, frames, topics, trigger, records=options.records, rounds=options.rounds)
                _print(trigger, size, options.records, runs)


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
    outcomes: dict[str, list[float | None]] = {name: [] for name in frames}
    try:
        for _ in range(starts):
            for name, frame in frames.items():
                outcomes[name].append(_start(running, frame))
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


def _by_turns(
    running: World, frames: Mapping[str, Frame], topics: Sequence[str], trigger: str, *, records: int, rounds: int
) -> Mapping[str, Sequence[WholeRun]]:
    if trigger == "first rows" and JAR in frames:
        frames = {**frames, JAR_ALONE: frames[JAR]}
    runs: dict[str, list[WholeRun]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            if name == JAR_ALONE:
                _end_planners()
            run = _run(running, frame, topics, trigger, records)
            time.sleep(_REST_S)
            if number:
                runs[name].append(run)
    return runs


def _run(running: World, frame: Frame, topics: Sequence[str], trigger: str, records: int) -> WholeRun:
    java, python = _costs()
    checkpoint = running.checkpoint()
    began_s = time.perf_counter()
    batch = FEW if trigger in ("first rows", "small batches") else BATCH
    query = started(frame(topics, batch), checkpoint, available_now=trigger == "availableNow")
    if trigger == "first rows":
        wait_for_batch(query, checkpoint, 0)
    elif trigger == "small batches":
        wait_for_batch(query, checkpoint, _WARM_UP + _MEASURED)
    elif trigger == "running":
        _wait_for_rows(query, checkpoint, records)
    else:
        query.awaitTermination()
    took_s = time.perf_counter() - began_s
    java_after, python_after = _costs()
    query.stop()
    if trigger == "small batches":
        later = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] > _WARM_UP]
        took_s = median(each["durationMs"]["triggerExecution"] for each in later) / 1000
    if trigger == "availableNow":
        came = sum(each["numInputRows"] for each in query.recentProgress)
        assert came == records, f"{came} of {records} records came"
    return WholeRun(took_s, _between(java, java_after), _between(python, python_after))


def _end_planners() -> None:
    """End the process that waits for the next query."""
    for pid, _ in _below(os.getpid()):
        if PLANNER in _command(pid):
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


def _costs() -> tuple[Cost, Cost]:
    """Return what Java and Python below this process used until now; ended Python processes count with their parent."""
    java, python, largest = 0.0, 0.0, 0.0
    java_mib = 0.0
    for pid, name in _below(os.getpid()):
        own_s, ended_s, mib = _used(pid)
        if name == "java":
            java += own_s
            python += ended_s
            java_mib = max(java_mib, mib)
        else:
            python += own_s + ended_s
            largest = max(largest, mib)
    return Cost(java, java_mib), Cost(python, largest)


def _below(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes that come from Spark's JVM, itself first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    waiting = [child for child in parents.get(pid, []) if _name(child) == "java" and "SparkSubmit" in _command(child)]
    while waiting:
        here = waiting.pop()
        yield here, _name(here)
        waiting += parents.get(here, [])


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _used(pid: int) -> tuple[float, float, float]:
    """Return seconds of CPU of a process and of its ended children, and the MiB that it holds."""
    stat = _stat(pid)
    if not stat:
        return 0.0, 0.0, 0.0
    own, ended = int(stat[11]) + int(stat[12]), int(stat[13]) + int(stat[14])
    return own * _TICK_S, ended * _TICK_S, int(stat[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _between(before: Cost, after: Cost) -> Cost:
    return Cost(max(0.0, after.cpu_s - before.cpu_s), after.memory_mib)


def _print(trigger: str, size: int, records: int, runs: Mapping[str, Sequence[WholeRun]]) -> None:
    print(f"{trigger}, {records:,} records of {size} B; seconds: median and rounds; s of CPU and MiB of JVM, of Python")
    for name, each in runs.items():
        times = [run.took_s for run in each]
        last = each[-1]
        print(
            f"  {name:22} {median(times):7.3f} ({', '.join(f'{took:.3f}' for took in times)}); "
            f"{last.java.cpu_s:.1f} s {last.java.memory_mib:.0f} MiB, "
            f"{last.python.cpu_s:.1f} s {last.python.memory_mib:.0f} MiB",
            flush=True,
        )
    pairs = [(OURS, SPARK), (JAR, SPARK), (JAR, OURS), (JAR_ALONE, SPARK)]
    for quicker, slower in ((one, other) for one, other in pairs if one in runs):
        ratios = [before.took_s / after.took_s for before, after in zip(runs[slower], runs[quicker], strict=True)]
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"  speed of {quicker} against {slower}: {median(ratios):.2f} ({rounds})", flush=True)


if __name__ == "__main__":
    main()
