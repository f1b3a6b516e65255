"""Restoring the state of a `transformWithState`, beside Spark's own reader, and the memory that it takes.

    python -m benchmarks.custom_state [--keys 1000000] [--report FILE]

Real Spark writes the checkpoint: a value for each key, and a list of ten elements for each thousandth. Spark runs the
processor in Python, a key at a time, so that writing takes minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.big_checkpoint import BigCheckpoint, keyed, session, write
from benchmarks.report import write_report
from benchmarks.restore_and_lookup import restore_in_process
from benchmarks.servers import NODE, server

ELEMENTS = 10
VALUE, LIST = "total", "recent"
"""The state variables."""

FEW_KEYS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        few = write_custom(spark, Path(folder) / "few", keys=FEW_KEYS)
        started_s = time.monotonic()
        checkpoint = write_custom(spark, Path(folder) / "many", keys=options.keys)
        print(f"{options.keys:,} keys, written by Spark in {time.monotonic() - started_s:.0f} s", flush=True)
        spark_s = spark_finds(spark, checkpoint)
        spark.stop()
        restore_s = min(restore_in_process(checkpoint, Path(folder) / f"data-{run}", store=VALUE) for run in range(3))
        before, after = (resident_of(each, Path(folder) / f"data-{each.path.name}") for each in (few, checkpoint))
    print(f"  order to restore -> first answer    {restore_s * 1000:10,.0f} ms")
    print(f"  Spark's reader finds one key        {spark_s * 1000:10,.0f} ms   {spark_s / restore_s:.1f} x ours")
    print(f"  resident, {FEW_KEYS:,} keys and all       {before / 1e6:10,.0f} MB, {after / 1e6:,.0f} MB")
    if options.report is not None:
        figures = {"spark_s": spark_s, "restore_s": restore_s, "resident_bytes": float(after)}
        write_report(options.report, {f"transformWithState, {options.keys} keys": [figures]})


def write_custom(spark: SparkSession, path: Path, *, keys: int, listed_each: int = 1000) -> BigCheckpoint:
    """Write the checkpoint: one key of `listed_each` has a list."""

    def query_of(source: DataFrame, total: int) -> DataFrame:
        return _remembered(keyed(source, total), listed_each)

    return write(spark, path, provider="RocksDB", keys=keys, query_of=query_of)


def _remembered(source: DataFrame, listed_each: int) -> DataFrame:
    class Memory(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "count long, sum long")
            self.recent = handle.getListState("recent", "number long, word string")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            numbers = [row["value"] for row in rows]
            self.total.update((len(numbers), sum(numbers)))
            if numbers[0] % listed_each == 0:
                self.recent.put([(number, f"element {number}") for number in range(ELEMENTS)])
            return iter(())

        def close(self) -> None:
            pass

    return source.groupBy("key").transformWithState(Memory(), "nothing string", "update", "None")


def spark_finds(spark: SparkSession, checkpoint: BigCheckpoint) -> float:
    """Measure the seconds that Spark's state reader takes to find the value of one key, best of three in a warm JVM."""
    times = []
    for attempt in range(3):
        started_s = time.monotonic()
        state = spark.read.format("statestore").option("stateVarName", VALUE).load(str(checkpoint.path))
        found = state.where(F.col("key.key") == checkpoint.key(attempt)).count()
        times.append(time.monotonic() - started_s)
        assert found == 1, f"Spark finds {found} rows for one key"
    return min(times)


def resident_of(checkpoint: BigCheckpoint, data: Path) -> int:
    """Return the resident memory of a node that holds all of a checkpoint and was asked for nothing."""
    with server(NODE, str(checkpoint.path), str(data), ready_path="/readyz") as node:
        return node.resident_bytes()


if __name__ == "__main__":
    main()
