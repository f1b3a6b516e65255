"""SQL over a whole store and for one key, beside Spark SQL over its state reader.

    python -m benchmarks.sql [--keys 1000000] [--rounds 3] [--points 200] [--report FILE]

Real Spark writes the checkpoint. `Spark` is the same aggregation over `statestore`, in a warm JVM, on both cores.
`exports` and `pages` are a `SqlSession` whose rows come in these ways; the node has one core, the session both. Points
are statements with the key as a constant, one after another, beside a lookup by the client.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.report import write_report
from benchmarks.servers import Server, server
from understudy import Client
from understudy.sql.session import SqlSession

NODE = """
import sys
from understudy_node.fleet.starting import serve
serve({"port": int(sys.argv[1]), "checkpoint": sys.argv[2], "data_dir": sys.argv[3]})
"""
STORE = "op0"
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark_rounds = [spark_aggregates(spark, checkpoint) for _ in range(options.rounds + 1)][1:]
        spark.stop()
        with server(NODE, str(checkpoint.path), str(Path(folder) / "data"), ready_path="/readyz") as node:
            measured(node, checkpoint, 10)  # what is imported and started by the first of each
            rounds = [{"spark_s": each, **measured(node, checkpoint, options.points)} for each in spark_rounds]
    show(rounds, options.keys)
    if options.report is not None:
        write_report(options.report, {f"sql, {options.keys} keys": rounds})


def spark_aggregates(spark: SparkSession, checkpoint: BigCheckpoint) -> float:
    """Return the seconds of the aggregation by Spark."""
    began_s = time.perf_counter()
    spark.read.format("statestore").load(str(checkpoint.path)).createOrReplaceTempView("state")
    statement = "select substr(key._1, 16, 1) g, count(*) c, sum(value.max) n from state group by 1"
    key = spark.table("state").schema["key"].dataType.fieldNames()[0]  # type: ignore[attr-defined]
    found = spark.sql(statement.replace("_1", f"`{key}`")).collect()
    taken_s = time.perf_counter() - began_s
    check(sum(row["c"] for row in found), checkpoint.keys)
    return taken_s


def measured(node: Server, checkpoint: BigCheckpoint, points: int) -> Figures:
    """Measure one round."""
    url = f"http://127.0.0.1:{node.port}"
    keys = [checkpoint.key(at) for at in range(0, checkpoint.keys, max(1, checkpoint.keys // points))][:points]
    with Client(url) as client, SqlSession(client) as by_exports, SqlSession(client) as by_pages:
        (name,) = [each.name for each in by_exports.refresh()[STORE].columns if each.path[0] == "key"]
        by_pages._unexported.add(STORE)  # noqa: SLF001  # as of a role without the action
        point = f"select * from {STORE} where {name} = "
        return {
            "exports_s": aggregated(by_exports, name, checkpoint),
            "pages_s": aggregated(by_pages, name, checkpoint),
            "lookup_ms": median_ms(lambda key: client.store(STORE).get(key), keys),
            "point_ms": median_ms(lambda key: asked(by_exports, f"{point}'{key}'"), keys),
        }


def aggregated(session: SqlSession, key: str, checkpoint: BigCheckpoint) -> float:
    """Return the seconds of the aggregation by a session."""
    began_s = time.perf_counter()
    with session.run(f'select substr({key}, 16, 1) g, count(*) c, sum("max") n from {STORE} group by 1') as answer:
        table = answer.table()
    taken_s = time.perf_counter() - began_s
    check(sum(table["c"].to_pylist()), checkpoint.keys)
    return taken_s


def asked(session: SqlSession, statement: str) -> None:
    """Run a statement with one row."""
    with session.run(statement) as answer:
        check(answer.table().num_rows, 1)


def median_ms(ask: Callable[[str], object], keys: list[str]) -> float:
    """Return the median time of a call for each key."""
    taken = []
    for key in keys:
        began_s = time.perf_counter()
        ask(key)
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken) * 1000


def check(found: int, expected: int) -> None:
    """Raise RuntimeError for a result that is not whole."""
    if found != expected:
        raise RuntimeError(f"the result has {found} rows, and not {expected}")


def show(rounds: list[Figures], keys: int) -> None:
    """Print medians side by side."""
    found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print(f"aggregation of {keys:,} rows, medians of {len(rounds)} rounds")
    for name in ("spark_s", "exports_s", "pages_s"):
        rate = keys / found[name] / 1e6
        print(f"  {name.removesuffix('_s'):12} {found[name]:7.2f} s  {rate:5.2f} million rows/s")
    print("one key")
    for name in ("lookup_ms", "point_ms"):
        print(f"  {name.removesuffix('_ms'):12} {found[name]:7.2f} ms")


if __name__ == "__main__":
    main()
