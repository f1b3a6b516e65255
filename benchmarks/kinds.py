"""Lookups of two sessions, of ten rows of a join and of a list of ten, beside a constant application.

    python -m benchmarks.kinds [--keys 5000] [--rounds 3] [--seconds 4] [--report FILE]

Figures and turns are as in `benchmarks.lookups`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from benchmarks.big_checkpoint import PARTITIONS, STATE, session
from benchmarks.custom_state import ELEMENTS, LIST, write_custom
from benchmarks.lookups import LIMIT, START_LIMIT_S, Subject, in_turns, show, wait_for_keys
from benchmarks.servers import CLUSTER_NODE, CONSTANT_APP, ROUTER, fetch, pin_load, server
from understudy.demo.local_redis import local_redis

ROWS = 10
"""Rows of a key on the left side of the join: one of each batch."""
SAMPLED_KEYS = 1_000
_FIRST_S, _DAY_S = 1_700_000_000, 86_400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=6.0, help="seconds for each server before the first round")
    parser.add_argument("--report", type=Path, help="write every round to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder, ExitStack() as running:
        spark = session(Path(folder))
        write(spark, Path(folder), keys=options.keys)
        write_custom(spark, Path(folder) / "custom", keys=options.keys, listed_each=1)
        spark.stop()
        subjects = list(started(Path(folder), options.keys, running))
        rounds = in_turns(subjects, subjects, options)
    show(rounds, options.report)


def write(spark: SparkSession, folder: Path, *, keys: int) -> None:
    """Ten batches, each with every key once."""
    feed = folder / "input"
    feed.mkdir()
    for batch in range(ROWS):
        lines = (orjson.dumps({"word": f"{number:016x}", "number": batch}) for number in range(keys))
        (feed / f"{batch:03d}.json").write_bytes(b"\n".join(lines))
    for name, value in {
        "spark.sql.streaming.stateStore.providerClass": f"{STATE}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "false",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }.items():
        spark.conf.set(name, value)
    source = spark.readStream.format("json").schema("word string, number long").option("maxFilesPerTrigger", 1)
    writer = built(source.load(str(feed))).writeStream.format("noop").outputMode("append")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def built(source: DataFrame) -> DataFrame:
    """Beside each other: sessions, and a join whose left side waits for what never comes."""
    seconds = F.lit(_FIRST_S) + (F.col("number") % 2) * _DAY_S + F.col("number")
    timed = source.withColumn("event", F.timestamp_seconds(seconds)).withWatermark("event", "30 days")
    sessions = timed.groupBy("word", F.session_window("event", "1 hour")).agg(F.count("*").alias("n"))
    right = timed.where("number < 0").select(F.col("word").alias("other"), "event")
    joined = timed.select("word", "number").join(right, F.expr("word = other"))
    return joined.select(F.to_json(F.struct("word", "number"))).unionAll(
        sessions.select(F.to_json(F.struct("word", "session_window", "n")))
    )


def started(folder: Path, keys: int, running: ExitStack) -> Iterator[Subject]:
    """Start the constant application, and a node and a router for each checkpoint; yield each after it answered as it
    should.
    """
    yield Subject(LIMIT, running.enter_context(server(CONSTANT_APP, ready_path="/")), ["/"])
    words = [f"{number:016x}" for number in random.Random(0).sample(range(keys), min(SAMPLED_KEYS, keys))]
    for checkpoint, kinds in (
        ("checkpoint", (("session", "sessions", 2), ("join-side", "rows", ROWS))),
        ("custom", (("list", "values", ELEMENTS),)),
    ):
        bus = running.enter_context(local_redis())
        arguments = (str(folder / checkpoint), str(folder / f"data-{checkpoint}"), bus.url)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez"))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez"))
        wait_until_served(router.port)
        for kind, member, count in kinds:
            store = LIST if kind == "list" else store_of(router.port, kind)
            paths = [f"/v1/stores/{store}/keys/{word}" for word in words]
            wait_for_keys(router, paths)
            for each in (node, router):
                status, body = fetch(each.port, paths[0])
                found = len(orjson.loads(body).get(member, ()))
                if (status, found) != (200, count):
                    raise RuntimeError(f"{paths[0]} is answered with {status} and {found} {member}, not {count}")
            yield Subject(f"{count} {member}, node", node, paths)
            yield Subject(f"{count} {member}, router", router, paths, (node,))


def wait_until_served(port: int) -> None:
    """Return when the router knows stores."""
    limit_s = time.monotonic() + START_LIMIT_S
    while fetch(port, "/v1/stores")[0] != 200:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"no stores: {fetch(port, '/v1/stores')}")
        time.sleep(0.02)


def store_of(port: int, kind: str) -> str:
    """Return the store of a kind; of the join its left side."""
    stores = orjson.loads(fetch(port, "/v1/stores")[1])["stores"]
    names = [each["store"] for each in stores if each["kind"] == kind and not each["store"].endswith(".right")]
    name: str = names[0]
    return name


if __name__ == "__main__":
    main()
