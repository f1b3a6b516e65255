"""Throughput and latency of the aligned source beside Spark's own Kafka source: same broker, session, data, columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pyspark.sql import DataFrame

from benchmarks.aligned_at_once import AtOnce
from benchmarks.aligned_floor import ConstantRows
from benchmarks.aligned_ranges import RangesOnly, TimeIndex
from benchmarks.aligned_world import FIRST_TIME_MS, World, fill, started, wait_for_batch

TOPICS = ("weather", "flights")
PARTITIONS = 2
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
OURS, AT_ONCE, OFF, SPARK, RANGES, FLOOR, RATE = (
    "understudy",
    "understudy, not ahead",
    "understudy, spool off",
    "Spark's Kafka source",
    "ranges only",
    "constants in Python",
    "JVM rate",
)

LATENCY_ROWS = 100
_INDEX_REQUESTS = 20

Source = Callable[[World, int, int], DataFrame]
"""A function of a world, the rows of a batch, and the number of records in all."""


@dataclass(frozen=True, slots=True)
class Run:
    """One query from `start` to its end. `later_s` leaves out the first batch, in which workers and clients start; but
    meanwhile our planner reads ahead, so this rate flatters it when there are few batches."""

    records_s: float
    later_s: float
    """Records per second of the later batches."""

    durations_ms: Mapping[str, float]
    """Spark's own split of a batch, medians without the first."""


def fill_topics(world: World, records: int) -> None:
    """Make the topics and fill them."""
    for topic in TOPICS:
        world.broker.make_topic(PARTITIONS, name=topic)
    fill(world.broker.servers, TOPICS, partitions=PARTITIONS, records=records)
    world.spark.dataSource.register(RangesOnly)
    world.spark.dataSource.register(AtOnce)
    world.spark.dataSource.register(ConstantRows)


def throughput(world: World, *, records: int, batch: int, rounds: int) -> Mapping[str, Sequence[Run]]:
    """Measure interleaved rounds, so that other work of the machine affects all alike; a round before them warms up."""
    sources = {SPARK: _spark, OURS: _ours, AT_ONCE: _ours_at_once, OFF: _ours_unspooled, RANGES: _ranges_only}
    runs: dict[str, list[Run]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, source in sources.items():
            run = _run_to_end(world, source(world, batch, records), records=records)
            if number:
                runs[name].append(run)
    return runs


def latency(world: World, *, batches: int, warm_up: int, rounds: int) -> Mapping[str, Sequence[Mapping[str, float]]]:
    """Measure the rounds of each source: medians of Spark's split of a batch of LATENCY_ROWS rows that are there
    already.
    """
    records = 2 * (warm_up + batches) * LATENCY_ROWS
    sources = {
        SPARK: _spark,
        OURS: _ours,
        AT_ONCE: _ours_at_once,
        OFF: _ours_unspooled,
        RANGES: _ranges_only,
        FLOOR: _constants,
        RATE: _rate,
    }
    splits: dict[str, list[Mapping[str, float]]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            frame, checkpoint = source(world, LATENCY_ROWS, records), world.checkpoint()
            query = started(frame, checkpoint, available_now=False)
            wait_for_batch(query, checkpoint, warm_up + batches)
            query.stop()
            splits[name].append(_split(query.recentProgress, after=warm_up))
    return splits


def latest_offset_share(rounds: Sequence[Mapping[str, float]]) -> float:
    """Return which part of a batch `latestOffset` is: the median of rounds."""
    return median(each["latestOffset"] / each["triggerExecution"] for each in rounds)


def index_ms(world: World) -> float:
    """Median time of a plan's questions to the time index."""
    index = TimeIndex(world.broker.servers, [(topic, p) for topic in TOPICS for p in range(PARTITIONS)])
    return median(index.plan_s(FIRST_TIME_MS + number) for number in range(_INDEX_REQUESTS)) * 1000


def _ours(world: World, batch: int, _: int, *, spool: str | None = None, name: str = "understudy") -> DataFrame:
    options = {"kafka": world.broker.servers, "topics": ",".join(TOPICS), "max_poll_records": str(batch)}
    options["spool"] = spool or str(world.folder / "spool")
    return world.spark.readStream.format(name).options(**options).load().select(*COLUMNS)


def _ours_unspooled(world: World, batch: int, records: int) -> DataFrame:
    return _ours(world, batch, records, spool="off")


def _ours_at_once(world: World, batch: int, records: int) -> DataFrame:
    return _ours(world, batch, records, name="understudy-at-once")


def _spark(world: World, batch: int, _: int) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": world.broker.servers,
        "subscribe": ",".join(TOPICS),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    return world.spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)


def _ranges_only(world: World, batch: int, records: int) -> DataFrame:
    logs = len(TOPICS) * PARTITIONS
    options = {"kafka": world.broker.servers, "topics": ",".join(TOPICS), "partitions": str(PARTITIONS)}
    options |= {"step": str(batch // logs), "end": str(records // logs)}
    return world.spark.readStream.format("ranges-only").options(**options).load().select(*COLUMNS)


def _constants(world: World, batch: int, _: int) -> DataFrame:
    options = {"rows": str(batch), "partitions": str(PARTITIONS)}
    return world.spark.readStream.format("constant-rows").options(**options).load()


def _rate(world: World, batch: int, _: int) -> DataFrame:
    options = {"rowsPerBatch": str(batch), "numPartitions": str(PARTITIONS)}
    return world.spark.readStream.format("rate-micro-batch").options(**options).load()


def _run_to_end(world: World, frame: DataFrame, *, records: int) -> Run:
    began_s = time.perf_counter()
    query = started(frame, world.checkpoint(), available_now=True)
    query.awaitTermination()
    took_s = time.perf_counter() - began_s
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    came = sum(each["numInputRows"] for each in progress)
    assert came == records, f"{came} of {records} records came"
    later_batches = progress[1:]
    later_s = sum(each["durationMs"]["triggerExecution"] for each in later_batches) / 1000
    later = sum(each["numInputRows"] for each in later_batches) / later_s
    return Run(records / took_s, later, _split(later_batches, after=-1))


def _split(progress: Sequence[object], *, after: int) -> Mapping[str, float]:
    batches = [each for each in progress if each["numInputRows"] and each["batchId"] > after]  # type: ignore[index]
    names = ("triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    return {
        name: float(median(each["durationMs"].get(name, 0) for each in batches))  # type: ignore[index]
        for name in names
    }
