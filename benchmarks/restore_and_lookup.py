"""From the order to restore to the first answer, memory, and lookups per second, beside Spark's own reader.

    python -m benchmarks.restore_and_lookup [--keys 1000000 10000000] [--provider RocksDB HDFSBacked] [--seconds 5]
                                            [--report FILE]

Real Spark writes each checkpoint first. Everything compared is measured in the same run; while a node restores, another
process asks it for its health every few milliseconds, and the longest wait says whether a restore holds it up. Last,
pages of a scan and an older version are timed, and, for the provider whose snapshots have to be decompressed, lookups
while another partition is restored.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from benchmarks import first_pages, large_restores
from benchmarks.big_checkpoint import RAW_BYTES_PER_KEY, BigCheckpoint, session, write
from benchmarks.load import Load, get, post, run_load
from benchmarks.report import write_report
from benchmarks.servers import CONSTANT_APP, NODE, Server, fetch, pin_load, server
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo, StoreName
from understudy_shared.reads.bounds import NO_BOUND

SAMPLED_KEYS = 100_000
BATCH_KEYS = 100
BATCHES = 200
FEW_KEYS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--provider", nargs="+", default=["RocksDB", "HDFSBacked"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        directory = Path(folder)
        spark = session(directory)
        for provider in options.provider:
            few = write(spark, directory / f"{provider}-few", provider=provider, keys=FEW_KEYS)
            alone = resident_of(few, directory / f"data-{provider}-few")
            for keys in options.keys:
                started_s = time.monotonic()
                checkpoint = write(spark, directory / f"{provider}-{keys}", provider=provider, keys=keys)
                print(f"\n{provider}, {keys:,} keys (written by Spark in {time.monotonic() - started_s:.0f} s)")
                spark_s = spark_finds(spark, checkpoint)
                data = directory / f"data-{provider}-{keys}"
                found = measure(checkpoint, data, spark_s=spark_s, alone=alone, seconds=options.seconds)
                rounds |= {f"{provider}, {keys} keys{part}": [figures] for part, figures in found.items()}
        spark.stop()
    if options.report is not None:
        write_report(options.report, rounds)


def spark_finds(spark: SparkSession, checkpoint: BigCheckpoint) -> float:
    """Measure Spark's state reader looking for one key, best of three in a warm JVM."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.checkpointFormatVersion", "1" if checkpoint.provider == "HDFSBacked" else "2"
    )
    times = []
    for attempt in range(3):
        started_s = time.monotonic()
        state = spark.read.format("statestore").load(str(checkpoint.path))
        found = state.where(F.col("key.key") == checkpoint.key(attempt)).count()
        times.append(time.monotonic() - started_s)
        assert found == 1, f"Spark finds {found} rows for one key"
    return min(times)


def measure(
    checkpoint: BigCheckpoint, data: Path, *, spark_s: float, alone: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Measure and print all figures of one checkpoint; return those that have goals, by the suffix of their name.
    `alone` is the memory of a node that holds next to nothing.
    """
    restore_s = restore_in_process(checkpoint, data / "in-process")
    pin_load()
    picked = random.Random(0).sample(range(checkpoint.keys), min(SAMPLED_KEYS, checkpoint.keys))
    singles = [get(f"/v1/stores/op0/keys/{checkpoint.key(number)}") for number in picked]
    with (
        server(CONSTANT_APP, ready_path="/") as constant,
        server(NODE, str(checkpoint.path), str(data / "server"), ready_path="/livez") as node,
        _watched(node) as watched,
    ):
        while fetch(node.port, "/readyz")[0] != 200:
            time.sleep(0.01)
        watched.stop()
        at_rest = node.resident_bytes()
        limit = run_load(constant.port, [get("/")], seconds=seconds)
        cpu_s = node.cpu_s()
        lookups = run_load(node.port, singles, seconds=seconds)
        cpu_us = (node.cpu_s() - cpu_s) / (lookups.per_second * (seconds + 1)) * 1e6
        hot = run_load(node.port, singles[:1000], seconds=seconds)
        batches = run_load(node.port, list(_batches(checkpoint, picked)), connections=8, seconds=seconds)
        pages = first_pages.measure(checkpoint, node)
        _print_restore(checkpoint, restore_s=restore_s, spark_s=spark_s, longest_wait_ms=watched.longest_wait_ms)
        _print_memory(checkpoint, node, at_rest, alone)
        _print_lookups(limit, lookups, hot, batches, cpu_us=cpu_us)
        for row in first_pages.shown(pages, restore_s):
            _row(*row)
        resident = node.resident_bytes() / (checkpoint.keys * RAW_BYTES_PER_KEY)
        found = {
            "": {
                "spark_s": spark_s,
                "restore_s": restore_s,
                "resident_of_raw": resident,
                "longest_wait_ms": watched.longest_wait_ms,
                **pages,
            }
        }
        if checkpoint.provider == "HDFSBacked":
            quiet_ms, during_ms, took_ms = large_restores.measure(checkpoint, node)
            _print_large_restores(quiet_ms, during_ms, took_ms)
            found |= {", lookups, idle": {"p99_ms": quiet_ms}, ", lookups during a restore": {"p99_ms": during_ms}}
        return found


def resident_of(checkpoint: BigCheckpoint, data: Path) -> int:
    """Return the resident memory of a node that was asked for nothing yet."""
    with server(NODE, str(checkpoint.path), str(data), ready_path="/readyz") as node:
        return node.resident_bytes()


def restore_in_process(
    checkpoint: BigCheckpoint, data: Path, *, store: str = "op0", files: CheckpointFiles | None = None
) -> float:
    """Measure the seconds from the order to restore to the first answered lookup, imports and interpreter start left
    out. `files` are those of a copy elsewhere.
    """
    files = files or open_checkpoint_files(checkpoint.path)
    settings = NodeSettings(checkpoint=str(checkpoint.path), data_dir=data)
    started_s = time.perf_counter()
    node = Node(settings, files, host=HostInfo("bench", 0), clock=SystemClock())
    node.start()
    while (generation := node.generation) is None or not generation.ready:
        time.sleep(0.001)
    holding = generation.readers[StoreName(store)]
    answer = holding.look_up(holding.resolve((checkpoint.key(7),)), NO_BOUND)
    elapsed_s = time.perf_counter() - started_s
    assert getattr(answer, "status", None) == 200, f"key 7 is in the state, but: {answer}"
    node.stop()
    return elapsed_s


@dataclass(slots=True)
class _Watched:
    """A thread that asks for the node's health again and again, and records the longest wait."""

    longest_wait_ms: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self._stopped.set()

    def run(self, node: Server) -> None:
        while not self._stopped.is_set():
            started_s = time.perf_counter()
            fetch(node.port, "/livez")
            self.longest_wait_ms = max(self.longest_wait_ms, (time.perf_counter() - started_s) * 1000)
            time.sleep(0.002)


@contextmanager
def _watched(node: Server) -> Iterator[_Watched]:
    watched = _Watched()
    thread = threading.Thread(target=watched.run, args=(node,))
    thread.start()
    try:
        yield watched
    finally:
        watched.stop()
        thread.join()


def _batches(checkpoint: BigCheckpoint, picked: list[int]) -> Iterator[bytes]:
    for start in range(0, min(len(picked), BATCHES * BATCH_KEYS), BATCH_KEYS):
        keys = [[checkpoint.key(number)] for number in picked[start : start + BATCH_KEYS]]
        yield post("/v1/stores/op0/lookup", orjson.dumps({"keys": keys}))


def _print_restore(checkpoint: BigCheckpoint, *, restore_s: float, spark_s: float, longest_wait_ms: float) -> None:
    goal = 3 if checkpoint.provider == "HDFSBacked" else 20
    _row("order to restore -> first answer", f"{restore_s * 1000:,.0f} ms")
    _row("Spark's reader finds one key", f"{spark_s * 1000:,.0f} ms", f"{spark_s / restore_s:.1f} x ours (goal {goal})")
    _row("longest wait for health meanwhile", f"{longest_wait_ms:.1f} ms")


def _print_memory(checkpoint: BigCheckpoint, node: Server, at_rest: int, alone: int) -> None:
    now, files = node.resident_bytes(), node.file_bytes()
    raw = checkpoint.keys * RAW_BYTES_PER_KEY
    goal = "goal 1.5 at 10 M keys" if checkpoint.provider == "HDFSBacked" else "goal 0.3 at 10 M keys"
    _row("resident with 1,000 keys", f"{alone / 1e6:,.0f} MB")
    _row("resident after the restore", f"{at_rest / 1e6:,.0f} MB")
    _row("resident after reading", f"{now / 1e6:,.0f} MB", f"{files / 1e6:,.0f} MB of it files, which can be dropped")
    _row("  of the raw bytes", f"{now / raw:.2f} x", f"{raw / 1e6:,.0f} MB of keys and values ({goal})")
    _row("  without that of the process", f"{(now - alone) / raw:.2f} x")


def _print_lookups(limit: Load, lookups: Load, hot: Load, batches: Load, *, cpu_us: float) -> None:
    for load in (lookups, hot, batches):
        assert set(load.statuses) == {200}, f"unexpected statuses {load.statuses}"
    keys_per_second = batches.per_second * BATCH_KEYS
    _row("constant ASGI app, 64 connections", f"{limit.per_second:,.0f} /s")
    _row(
        "lookups, any key",
        f"{lookups.per_second:,.0f} /s",
        f"{lookups.per_second / limit.per_second:.2f} of the constant app (goal 0.6)",
    )
    _row("  server CPU, p50, p99", f"{cpu_us:.0f} us", f"{lookups.p50_ms:.2f} ms, {lookups.p99_ms:.2f} ms")
    _row("lookups, 1,000 hot keys", f"{hot.per_second:,.0f} /s", f"{hot.per_second / limit.per_second:.2f} of it")
    _row(
        f"keys in batches of {BATCH_KEYS}",
        f"{keys_per_second:,.0f} /s",
        f"{keys_per_second / lookups.per_second:.1f} x single lookups (goal 5)",
    )


def _print_large_restores(quiet_ms: float, during_ms: float, took_ms: float) -> None:
    _row("restores of one partition", f"{took_ms:,.0f} ms", "beside 64 connections that ask for the others")
    _row("  p99 of those, idle; meanwhile", f"{quiet_ms:.1f}, {during_ms:.1f} ms")
    _row("  ratio", f"{during_ms / quiet_ms:.1f} x", f"goal {large_restores.GOAL:g}")


def _row(what: str, figure: str, remark: str = "") -> None:
    print(f"  {what:36}{figure:>14}   {remark}".rstrip())


if __name__ == "__main__":
    main()
