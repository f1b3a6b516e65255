"""Exports of a whole store: rows a second beside a raw iteration of RocksDB and Spark's own reader, and what lookups
feel of them.

    python -m benchmarks.exports [--keys 1000000] [--rounds 3] [--seconds 4] [--report FILE]

Real Spark writes the checkpoint. `raw` iterates over the same tables with rocksdict and looks at nothing. `row by row`
is the node without its process for exports, `redis` an application that streams a copy of the rows in Redis by SCAN and
MGET. Lookups come at an equal rate, whether or not exports run beside them; a
lookup counts from when it was due. Node and process share one core, readers and load the other.

Beside exports both cores are busy, and what else the machine does has to wait for one of them. `idle` is the machine
at rest; `busy` has processes of the same priorities instead, which only count, and ask the node nothing. Q13 and Q14.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rocksdict import AccessType, Cache, Env, Options, Rdict

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.load import get, paced_load
from benchmarks.redis_scan import redis_export, rows_per_second
from benchmarks.report import write_report
from benchmarks.servers import LOAD_CORE, SERVER_CORE, Server, fetch, pin_load, server
from understudy_node.questions.export.bulk.worker import PRIORITY

NODE = """
import sys
from understudy_node.questions.export.bulk import process
from understudy_node.fleet.starting import serve
if sys.argv[4] == "row by row":
    process.MAX_WAITING = 0
serve({"port": int(sys.argv[1]), "checkpoint": sys.argv[2], "data_dir": sys.argv[3], "max_exports_in_flight": 4})
"""

COUNTER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
if sys.argv[2] == "idle":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(int(sys.argv[2]))
while True:
    sum(range(1000))
"""

FORMS = ("ndjson", "csv", "arrow")
PLAIN_FORMS = ("ndjson", "arrow")
LOOKUPS_PER_SECOND = 500
ASKED_KEYS = 1_000
READ_BYTES = 1 << 20
READERS_S = 60
"""Time for which readers read beside lookups, at most: they are ended with the load."""
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of lookups, beside each number of exports")
    parser.add_argument("--read", nargs=2, metavar=("PORT", "SECONDS"), help="read exports until the time is over")
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    if options.read is not None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # on one core with the load, they would make it late
        read_until(int(options.read[0]), time.monotonic() + float(options.read[1]))
        return
    pin_load()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder, ExitStack() as running:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark_rates = [spark_reads(spark, checkpoint) for _ in range(options.rounds)]
        spark.stop()
        node, plain = (
            running.enter_context(node_of(checkpoint, Path(folder) / way, way)) for way in ("process", "row by row")
        )
        peer = running.enter_context(redis_export(checkpoint))
        rounds = [
            {
                "redis_per_second": rows_per_second(peer, checkpoint.keys),
                **measured(node, plain, checkpoint, Path(folder) / "process", rate, options.seconds),
            }
            for rate in spark_rates
        ]
    show(rounds)
    if options.report is not None:
        write_report(options.report, {f"exports, {options.keys} keys": rounds})


def measured(  # noqa: PLR0917  # what is measured, and for how long
    node: Server, plain: Server, checkpoint: BigCheckpoint, data: Path, spark_rate: float, seconds: float
) -> Figures:
    """Measure one round."""
    figures = {"spark_per_second": spark_rate, "raw_per_second": iterated(data)}
    figures |= {f"{form}_per_second": exported(node, form, checkpoint.keys) for form in FORMS}
    figures |= {f"plain_{form}_per_second": exported(plain, form, checkpoint.keys) for form in PLAIN_FORMS}
    requests = asked(checkpoint)
    for exports in (0, 1, 4):
        with counting(exports):
            figures |= looked_up(node, requests, seconds, f"busy_{exports}")
        with exporting(node, exports):
            figures |= looked_up(node, requests, seconds, f"{exports}")
    return figures


@contextmanager
def node_of(checkpoint: BigCheckpoint, data: Path, way: str) -> Iterator[Server]:
    """Start a node that makes exports in one of two ways."""
    with server(NODE, str(checkpoint.path), str(data), way, ready_path="/readyz") as node:
        for form in PLAIN_FORMS:  # pyarrow is imported by the first of them that needs it
            exported(node, form, checkpoint.keys)
        yield node


def spark_reads(spark: SparkSession, checkpoint: BigCheckpoint) -> float:
    """Return the rows a second of Spark's reader, in a warm JVM."""
    best_s = float("inf")
    for _ in range(2):
        began_s = time.perf_counter()
        spark.read.format("statestore").load(str(checkpoint.path)).write.format("noop").mode("overwrite").save()
        best_s = min(best_s, time.perf_counter() - began_s)
    return checkpoint.keys / best_s


def iterated(data: Path) -> float:
    """Return the records a second of an iteration over all bases of a node, without looking at them."""
    databases = [opened(each.parent) for each in data.rglob("CURRENT")]
    records, began_s = 0, time.perf_counter()
    for database in databases:
        for _ in database.items():
            records += 1
    return records / (time.perf_counter() - began_s)


def opened(directory: Path) -> Rdict:
    """Open the tables of a base, in a process that has no other use for them."""
    options, families = Options.load_latest(str(directory), Env(), True, Cache(1 << 20))
    for each in (options, *families.values()):
        each.set_db_log_dir(str(directory))
        each.set_wal_dir(str(directory))
    return Rdict(str(directory), options, families, AccessType.read_only(False))


def exported(node: Server, form: str, keys: int) -> float:
    """Return the rows a second of one export. Raises RuntimeError when it has not all keys."""
    began_s = time.perf_counter()
    end = read(node.port, form)
    taken_s = time.perf_counter() - began_s
    if f'"rows":{keys},'.encode() not in end:
        raise RuntimeError(f"the export ends with {end!r}")
    return keys / taken_s


def read(port: int, form: str) -> bytes:
    """Read an export; return its last bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/v1/stores/op0/export?format={form}")
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {response.read()!r}")
        tail = b""
        while piece := response.read(READ_BYTES):
            tail = (tail + piece[-1000:])[-1000:]
        return tail
    finally:
        connection.close()


def read_until(port: int, until_s: float) -> None:
    """Read exports, one after another."""
    while time.monotonic() < until_s:
        read(port, "ndjson")


def asked(checkpoint: BigCheckpoint) -> list[bytes]:
    """Return lookups of keys of the whole store."""
    step = max(1, checkpoint.keys // ASKED_KEYS)
    return [get(f"/v1/stores/op0/keys/{checkpoint.key(at)}") for at in range(0, checkpoint.keys, step)]


def looked_up(node: Server, requests: list[bytes], seconds: float, beside: str) -> Figures:
    """Return the latencies of lookups."""
    load = paced_load(node.port, requests, per_second=LOOKUPS_PER_SECOND, seconds=seconds)
    return {f"p50_ms_{beside}": load.p50_ms, f"p99_ms_{beside}": load.p99_ms}


@contextmanager
def exporting(node: Server, exports: int) -> Iterator[None]:
    """Have so many exports read until the block ends."""
    command = [sys.executable, "-m", "benchmarks.exports", "--read", str(node.port), str(READERS_S)]
    with running_beside([command] * exports):
        wait_for_exports(node, exports)
        yield


@contextmanager
def counting(exports: int) -> Iterator[None]:
    """Have the cores as busy as by so many exports until the block ends."""
    kinds = [(SERVER_CORE, str(PRIORITY)), *[(LOAD_CORE, "idle")] * exports] if exports else []
    with running_beside([[sys.executable, "-c", COUNTER, str(core), kind] for core, kind in kinds]):
        yield


@contextmanager
def running_beside(commands: list[list[str]]) -> Iterator[None]:
    """Run commands until the block ends. Raises RuntimeError when one ended before."""
    processes = [subprocess.Popen(command) for command in commands]
    try:
        yield
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a process beside the lookups failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_exports(node: Server, exports: int) -> None:
    """Wait until so many exports are in flight: the readers import for seconds, and those of an earlier round leave."""
    until_s, wanted = time.monotonic() + READERS_S, f"understudy_exports_in_flight {float(exports)}\n".encode()
    while wanted not in fetch(node.port, "/metrics")[1]:
        if time.monotonic() >= until_s:
            raise RuntimeError(f"there are no {exports} exports in flight")
        time.sleep(0.1)


def show(rounds: list[Figures]) -> None:
    """Print medians, and the ratios round by round."""

    def median(name: str) -> float:
        return statistics.median(each[name] for each in rounds)

    def of(name: str, other: str) -> str:
        ratios = [each[name] / each[other] for each in rounds]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    print(f"{'':34}{'rows/s':>12}{'of raw':>20}{'of Spark':>24}")
    for name in ("raw", "spark", "redis", *FORMS, *(f"plain_{form}" for form in PLAIN_FORMS)):
        rate = f"{name}_per_second"
        print(f"{name:34}{median(rate):12,.0f}{of(rate, 'raw_per_second'):>20}{of(rate, 'spark_per_second'):>24}")
    print(f"\n{LOOKUPS_PER_SECOND} lookups a second beside exports")
    for exports in (0, 1, 4):
        name = f"p99_ms_{exports}"
        figures = f"p50 {median(f'p50_ms_{exports}'):.2f} ms, p99 {median(name):.2f} ms"
        beside = f"{of(name, f'p99_ms_busy_{exports}')} x busy, {of(name, 'p99_ms_0')} x idle"
        print(f"  {exports}: {figures}, {beside} (busy alone: p99 {median(f'p99_ms_busy_{exports}'):.2f} ms)")


if __name__ == "__main__":
    main()
