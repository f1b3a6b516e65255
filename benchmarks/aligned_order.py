"""The benefit of waiting: two topics, one of which a script delays, under several values of max_task_idle_ms.

An order violation is a record with a time before one that came out earlier. Latency is from a record's time to the end
of the batch that it is in, of the topic that is on time: what its records pay for the other's lateness.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

from confluent_kafka import Producer
from pyspark.sql import DataFrame

from benchmarks.aligned_world import World

IDLE_MS = (-1, 0, 500, 2000)
EVERY_MS = 20
GAPS_MS = (100, 300, 100, 1200)
"""The late topic's records arrive in bundles, so long after one another, again and again."""

_WARM_UP = 15
_LIMIT_S = 60
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one value of max_task_idle_ms. `enforced` is the source's own last count."""

    idle_ms: int
    records: int
    violations: int
    enforced: int
    on_time_p50_ms: float
    on_time_p95_ms: float

    @property
    def violations_percent(self) -> float:
        return 100 * self.violations / self.records


@dataclass(slots=True)
class _Sink:
    """The sink that records the time of every record, when it came out, and how much time had passed before."""

    on_time: str
    newest_ms: int = 0
    records: int = 0
    violations: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def take(self, frame: DataFrame, _: int) -> None:
        """Take a batch of `foreachBatch`. Rows are put in merge order: between partitions of one batch Spark promises
        no order.
        """
        rows = frame.selectExpr("topic", "unix_millis(timestamp) AS at", "merge_order").collect()
        now_ms = time.time() * 1000
        for topic, at, _order in sorted(rows, key=lambda row: tuple(row.merge_order)):
            self.violations += at < self.newest_ms
            self.newest_ms = max(self.newest_ms, at)
            if topic == self.on_time:
                self.latencies_ms.append(now_ms - at)
        self.records += len(rows)


def order_against_latency(world: World, *, seconds: float, rounds: int) -> Sequence[Outcome]:
    """Measure each value by turns, with its own topics. Counts cover all rounds; times are their medians."""
    runs = [[_outcome(world, idle_ms, seconds=seconds) for idle_ms in IDLE_MS] for _ in range(rounds)]
    return [
        Outcome(
            each[0].idle_ms,
            sum(run.records for run in each),
            sum(run.violations for run in each),
            sum(run.enforced for run in each),
            median(run.on_time_p50_ms for run in each),
            median(run.on_time_p95_ms for run in each),
        )
        for each in zip(*runs, strict=True)
    ]


def _outcome(world: World, idle_ms: int, *, seconds: float) -> Outcome:
    late, on_time = world.broker.make_topic(), world.broker.make_topic()
    options = {"kafka": world.broker.servers, "topics": f"{late},{on_time}", "max_task_idle_ms": str(idle_ms)}
    frame = world.spark.readStream.format("understudy").options(**options, spool=str(world.folder / "spool")).load()
    sink, total = _Sink(on_time), [0]
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(world.checkpoint()))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        _warm_up(world, sink, late, on_time)
        before = _enforced(query.lastProgress)
        with _producing(world.broker.servers, late, on_time, total):
            time.sleep(seconds)
        _wait_for(sink, total[0])
        enforced = _enforced(query.lastProgress) - before
    finally:
        query.stop()
    latencies_ms = sorted(sink.latencies_ms)
    p95_ms = latencies_ms[int(len(latencies_ms) * 0.95)]
    return Outcome(idle_ms, sink.records, sink.violations, enforced, median(latencies_ms), p95_ms)


def _warm_up(world: World, sink: _Sink, late: str, on_time: str) -> None:
    """Run the first batches of a query, which are slow, and forget their figures."""
    producer = Producer({"bootstrap.servers": world.broker.servers})
    for number in range(_WARM_UP):
        for topic in (late, on_time):
            producer.produce(topic, b"warm", partition=0, timestamp=int(time.time() * 1000))
        producer.flush(10)
        _wait_for(sink, 2 * number + 1)  # the last one may have to wait for its successors
    _wait_for(sink, 2 * _WARM_UP)
    sink.records = sink.violations = 0
    sink.latencies_ms.clear()


@contextmanager
def _producing(servers: str, late: str, on_time: str, total: list[int]) -> Iterator[None]:
    """Produce records of both topics every EVERY_MS with the time at which they were made, until the end of the
    block.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_produce, args=(servers, late, on_time, total, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _produce(servers: str, late: str, on_time: str, total: list[int], stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    began_ms = next_ms = int(time.time() * 1000)
    gaps, held = cycle(GAPS_MS), list[int]()
    due_ms = began_ms  # the late topic's first record comes at once: since the warm-up it may have been given up on
    while not stop.is_set() or held:
        time.sleep(max(0, next_ms / 1000 - time.time()))
        if not stop.is_set():
            producer.produce(on_time, b"x", partition=0, timestamp=next_ms)
            held.append(next_ms)
            total[0] += 2
        if next_ms >= due_ms or stop.is_set():
            for at_ms in held:
                producer.produce(late, b"x", partition=0, timestamp=at_ms)
            held.clear()
            due_ms = next_ms + next(gaps)
        producer.poll(0)
        next_ms += EVERY_MS
    producer.flush(30)


def _wait_for(sink: _Sink, records: int) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while sink.records < records:
        if time.monotonic() > end_s:
            raise RuntimeError(f"{sink.records} of {records} records came")
        time.sleep(_LOOK_S)


def _enforced(progress: object) -> int:
    """Read the count from the source's metrics in Spark's progress."""
    reported = progress["sources"][0]["latestOffset"]  # type: ignore[index]
    return int(json.loads(reported)["enforced-processing-total"])
