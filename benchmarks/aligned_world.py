"""The shared parts of the aligned source's benchmarks: a real broker, Spark with its own Kafka source, and records.

Spark's Kafka source comes through Maven, once, into the checkout's `.cache`; the broker has jars of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.kafka.broker import KafkaBroker, jars
from tests.support.repository import ROOT
from tests.support.spark.session import spark_session

POM = Path(__file__).parent / "spark_kafka_jars" / "pom.xml"
JARS = ROOT / ".cache" / "spark-kafka-jars"
VALUE = b"v" * 100
FIRST_TIME_MS = 1_700_000_000_000

_FETCH_LIMIT_S = 300
_FLUSH_S = 120
_FLUSH_RECORDS = 100_000
_BATCHES_LIMIT_S = 300
_LOOK_S, _ASK_S = 0.02, 2.0


@dataclass(frozen=True, slots=True)
class World:
    """A session and a broker, and a folder for checkpoints."""

    spark: SparkSession
    broker: KafkaBroker
    folder: Path

    def checkpoint(self) -> Path:
        """Make the folder of a new checkpoint."""
        return Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self.folder))


@contextmanager
def world(*, parent: Path | None = None, conf: Mapping[str, str] | None = None) -> Iterator[World]:
    """Make a world that lasts until the end of the block: one JVM for Spark with two cores, one for the broker.

    Its folder is in `parent`; `conf` goes over the settings of the session.
    """
    broker_jars = jars()
    if isinstance(broker_jars, str):
        raise SystemExit(f"there is no broker to measure with: {broker_jars}")
    # Python workers import this package by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    warnings.filterwarnings("ignore", category=FutureWarning)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-", dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "kafka").mkdir()
        broker = KafkaBroker(folder / "kafka", broker_jars)
        try:
            broker.start()
            extra = {**session_conf(folder / "spark"), **(conf or {})}
            with spark_session(folder / "spark", extra=extra) as spark:
                yield World(spark, broker, folder)
        finally:
            broker.kill()


def fill(
    servers: str, topics: Sequence[str], *, partitions: int, records: int, value: bytes = VALUE, batch: int = 10_000
) -> None:
    """Write so many records with keys of 8 B, evenly over all partitions, which go through the same times.

    A batch of the log has `batch` records, or as many as there are before the producer is flushed. It waits for no
    clock: with many partitions batches of a few records would go out, each a request's work for the broker.
    """
    settings = {"linger.ms": 60_000, "queue.buffering.max.messages": 1_000_000, "batch.num.messages": batch}
    producer = Producer({"bootstrap.servers": servers, **settings})
    each = len(topics) * partitions
    rounds = max(1, _FLUSH_RECORDS // each)
    rounds = rounds // batch * batch or rounds
    for number in range(records // each):
        key, time_ms = number.to_bytes(8, "big"), FIRST_TIME_MS + number
        for topic in topics:
            for partition in range(partitions):
                producer.produce(topic, value, key, partition=partition, timestamp=time_ms)
        if number % rounds == rounds - 1:
            producer.flush(_FLUSH_S)
    assert producer.flush(_FLUSH_S) == 0


def started(frame: DataFrame, checkpoint: Path, *, available_now: bool) -> StreamingQuery:
    """Start a query that writes into Spark's `noop` sink."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")).start()


def wait_for_batch(query: StreamingQuery, checkpoint: Path, batch: int) -> None:
    """Return when it is committed. Looks at the checkpoint: to ask Spark often would disturb what is measured."""
    end_s = ask_s = time.monotonic()
    end_s += _BATCHES_LIMIT_S
    while not (checkpoint / "commits" / str(batch)).exists():
        now_s = time.monotonic()
        if now_s > end_s or (now_s > ask_s and not query.isActive):
            raise RuntimeError(f"batch {batch} was not committed: {query.exception()}")
        ask_s = max(ask_s, now_s + _ASK_S) if now_s > ask_s else ask_s
        time.sleep(_LOOK_S)


def session_conf(folder: Path) -> dict[str, str]:
    """Return settings as in the tests, but with the whole of Java's compiler: Spark's own source gains most by it."""
    return {
        "spark.driver.extraJavaOptions": (
            f"-Duser.timezone=UTC -Djava.io.tmpdir={folder} -Dlog4j.configurationFile={folder / 'log4j2.properties'}"
        ),
        "spark.driver.memory": "3g",
        "spark.jars": ",".join(map(str, sorted(spark_kafka_jars().glob("*.jar")))),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }


def spark_kafka_jars() -> Path:
    """Return the folder of Spark's own Kafka source. Raises SystemExit where there is no Maven."""
    maven = shutil.which("mvn")
    if not JARS.exists():
        if maven is None:
            raise SystemExit("there is no Maven to fetch Spark's Kafka source with")
        fetching = JARS.with_name(f"{JARS.name}.fetching")
        with suppress(FileNotFoundError):
            shutil.rmtree(fetching)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fetching}"]
        subprocess.run([maven, "-q", "-B", "-f", str(POM), *goal], timeout=_FETCH_LIMIT_S, check=True)
        fetching.rename(JARS)
    return JARS
