"""The aligned source by number of partitions: the same records in two topics, planned and read without Spark.

    python -m benchmarks.aligned_partitions [--records 2000000] [--partitions 10,100,300] [--rounds 3] [--bound 64m]
                                            [--against DIR]

CPU is that of a process for each run, which plans, spools and reads. *Steady* is the CPU of a record between a quarter
and three quarters of all, *all* over all. They should hardly depend on the number of partitions: the goal is 1.3 times
that of the least. *Once* is the rest for each partition: opening, first and last fetches, and what reading ahead took
before the first quarter was planned; it may be below 0. All are minima of the rounds. `first` is the time to the first
batch. Take several times more records than fit into the bound. `--against` measures the source tree of another commit
in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.support.kafka.broker import KafkaBroker, jars

from benchmarks.aligned_world import fill
from benchmarks.servers import tree_env
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream

GOAL = 1.3
VALUE = b"v" * 200
BATCH = 150
"""Records of a batch in the logs, about the same with any number of partitions."""

_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Run:
    """One reading of all records."""

    steady_us: float
    """Microseconds of CPU for a record, in the middle half."""

    all_us: float
    """The same over all records."""

    once_us: float
    """Microseconds of CPU for a partition beyond those."""

    first_s: float
    took_s: float
    batches: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", default="10,100,300", help="of each of the two topics")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bound", default="64m", help="input_buffer_max_bytes")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--read", nargs=3, metavar=("SERVERS", "TOPICS", "PARTITIONS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        servers, topics, count = options.read
        print(json.dumps(asdict(_read_all(servers, topics, int(count), options.records, options.bound))))
        return
    trees = {"here": Path.cwd()} | ({} if options.against is None else {"against": options.against})
    counts = [int(count) for count in options.partitions.split(",")]
    runs: dict[tuple[int, str], list[Run]] = {(count, tree): [] for tree in trees for count in counts}
    with _broker() as broker:
        topics = {count: (broker.make_topic(count), broker.make_topic(count)) for count in counts}
        for count, names in topics.items():
            fill(broker.servers, names, partitions=count, records=options.records, value=VALUE, batch=BATCH)
        for _ in range(options.rounds):
            for (count, tree), found in runs.items():
                of_run = ["--records", str(options.records), "--bound", options.bound]
                of_run += ["--read", broker.servers, ",".join(topics[count]), str(count)]
                found.append(_run(trees[tree], of_run))
    _report(runs)


def _run(tree: Path, arguments: Sequence[str]) -> Run:
    command = [sys.executable, "-m", "benchmarks.aligned_partitions", *arguments]
    env = {**os.environ, **tree_env(tree)}
    done = subprocess.run(command, env=env, check=True, capture_output=True, timeout=_LIMIT_S)
    return Run(**json.loads(done.stdout))


def _report(runs: Mapping[tuple[int, str], Sequence[Run]]) -> None:
    least = min(count for count, _ in runs)
    print("partitions; CPU us a record: steady, against the least; all, against it; once a partition; first, all, s")
    for (count, tree), found in runs.items():
        steady_us, of_least = (min(run.steady_us for run in each) for each in (found, runs[least, tree]))
        all_us, all_of_least = (min(run.all_us for run in each) for each in (found, runs[least, tree]))
        print(
            f"  {count:4} {tree:8} {steady_us:6.2f} ({', '.join(f'{run.steady_us:.2f}' for run in found)})"
            f" {steady_us / of_least:5.2f} x (goal {GOAL} x)"
            f"  {all_us:.2f} {all_us / all_of_least:5.2f} x {min(run.once_us for run in found):7.0f} us"
            f"  {median(run.first_s for run in found):.2f} {median(run.took_s for run in found):.2f} s"
            f"  {found[-1].batches} batches",
            flush=True,
        )


def _read_all(servers: str, topics: str, partitions: int, wanted: int, bound: str) -> Run:
    records = wanted // (2 * partitions) * 2 * partitions
    options = parse_options({"kafka": servers, "topics": topics, "input_buffer_max_bytes": bound})
    stream = AlignedStream(options)
    began_s, began_cpu_s, first_s, found, batches = time.monotonic(), time.process_time(), 0.0, 0, 0
    read, spent_s = [0], [0.0]
    offset = stream.initial_offset()
    while found < records:
        if time.monotonic() - began_s > _LIMIT_S:
            raise RuntimeError(f"{found} of {records} records came within {_LIMIT_S} s")
        end = stream.latest_offset(offset)
        if end == offset:
            continue
        first_s = first_s or time.monotonic() - began_s
        found += sum(rows.num_rows for task in stream.tasks(offset, end) for rows in read_task(task))
        offset, batches = end, batches + 1
        read.append(found)
        spent_s.append(time.process_time() - began_cpu_s)
    took_s = time.monotonic() - began_s
    stream.stop()
    steady_us, all_us = _steady_us(read, spent_s), 1e6 * spent_s[-1] / records
    return Run(steady_us, all_us, (all_us - steady_us) * records / (2 * partitions), first_s, took_s, batches)


def _steady_us(read: Sequence[int], spent_s: Sequence[float]) -> float:
    """Return microseconds for a record from a quarter of what was read to three quarters."""
    begin, end = (next(at for at, count in enumerate(read) if 4 * count >= part * read[-1]) for part in (1, 3))
    if begin == end:
        return 1e6 * spent_s[-1] / read[-1]
    return 1e6 * (spent_s[end] - spent_s[begin]) / (read[end] - read[begin])


@contextmanager
def _broker() -> Iterator[KafkaBroker]:
    found = jars()
    if isinstance(found, str):
        raise SystemExit(f"there is no broker to measure with: {found}")
    with tempfile.TemporaryDirectory(prefix="understudy-bench-", ignore_cleanup_errors=True) as folder:
        broker = KafkaBroker(Path(folder), found)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
