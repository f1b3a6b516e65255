"""The planner's metrics at one moment, and their JSON for Spark's progress (pure).

The JSON uses Kafka's names for metrics that Kafka has, too, and Kafka's unit, milliseconds. `metrics_server` has the
names for Prometheus. Averages, maxima and rates cover the last 30 s, as in Kafka. An unknown lag is left out: it is
not 0.

`record-lateness-avg` and `record-lateness-max` say how far a record's timestamp is behind its task's stream time: the
greatest timestamp that the task has processed (`PartitionGroup`). Within a batch effective times ascend, so stream time
at a record is the greater of its effective time and the stream time before the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_aligned.batch_plan import HeldBack, PutOff
from understudy_aligned.inputs.protocol import ClientQueue
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import FetchLag, ReadAhead
from understudy_aligned.shared_read_ahead import Outage, SharedReadAhead

WINDOW_MS = 30_000
MAX_SAMPLES = 10_000
"""Most batches in the window. A planner that makes more in 30 s forgets the oldest."""


class Taken(NamedTuple):
    """The records of one queue that are in a batch."""

    times_ms: NDArray[np.int64]
    """Effective times."""

    timestamps_ms: NDArray[np.int64]
    """Timestamps of the records. NO_TIME_MS marks a poison record, which does not count."""

    stream_time_ms: int
    """The stream time of its task before the batch."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of a set of records. Add the values of several batches with `+`."""

    records: int = 0
    total_ms: float = 0.0
    max_ms: int = 0

    @property
    def avg_ms(self) -> float | None:
        """None without records."""
        return self.total_ms / self.records if self.records else None

    def __add__(self, other: Lateness) -> Lateness:
        return Lateness(self.records + other.records, self.total_ms + other.total_ms, max(self.max_ms, other.max_ms))


def record_lateness(taken: Sequence[Taken]) -> Lateness:
    if not taken:
        return Lateness()
    timestamps_ms = np.concatenate([each.timestamps_ms for each in taken])
    before_ms = np.repeat([each.stream_time_ms for each in taken], [len(each.timestamps_ms) for each in taken])
    reached_ms = np.maximum(np.concatenate([each.times_ms for each in taken]), before_ms)
    # `max_timestamp_jump_ms` can put a record's timestamp ahead of its effective time. Such a record is not late.
    late_ms = np.maximum(reached_ms - timestamps_ms, 0)[timestamps_ms > NO_TIME_MS]
    return Lateness(len(late_ms), float(late_ms.sum(dtype=np.float64)), int(late_ms.max(initial=0)))


class Sample(NamedTuple):
    """One planned batch."""

    at_ms: float
    records: int
    enforced: int
    lateness: Lateness
    plan_ms: float = 0.0
    """The time to plan it, without waiting for records."""


@dataclass(slots=True)
class RunCounts:
    """Only the thread that plans changes them."""

    batches: int = 0
    records: int = 0
    plan_ms: float = 0.0
    lateness: Lateness = field(default_factory=Lateness)
    empty_plans: int = 0
    """The number of times that Spark asked for a batch and there were no records for one."""

    dead_letters: int = 0
    """Poison records in planned batches that are written aside (`undecodable=aside`)."""

    compacted: int | None = None
    """Records that compaction removed after a batch was planned and before executors read it. None: executors cannot
    report them.
    """

    spooled_ahead: int = 0
    """Batches whose spool file was written before Spark asked for them."""

    recent: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def add(self, sample: Sample, *, dead_letters: int) -> None:
        self.recent.append(sample)
        self.batches += 1
        self.records += sample.records
        self.plan_ms += sample.plan_ms
        self.lateness += sample.lateness
        self.dead_letters += dead_letters

    def samples(self, now_ms: float) -> Sequence[Sample]:
        """Return the batches of the last 30 s. Older ones are removed."""
        while self.recent and now_ms - self.recent[0].at_ms > WINDOW_MS:
            self.recent.popleft()
        return tuple(self.recent)


@dataclass(frozen=True, slots=True)
class PlannerMetrics:
    """The position of a planner, its counts, and what it holds."""

    offset: SourceOffset
    """Its counters began with the checkpoint."""

    counts: RunCounts
    """The counts since the planner's process started."""

    samples: Sequence[Sample]
    """The batches of the last 30 s: averages, maxima and rates are computed from them."""

    losses: int
    """The number of times that reading continued after lost records, since the planner's process started."""

    input_buffer_bytes: int
    """KIP-770: bytes of records that are fetched and in no batch."""

    input_buffer_max_bytes: int
    """The bound on `input_buffer_bytes`."""

    input_buffer_records: int
    client_queue: ClientQueue | None
    """The records that librdkafka holds for the planner. None without a Kafka input, or before its first report."""

    partitions: Sequence[TopicPartition]
    """The partitions that are read. Empty until the partitions of every topic are known."""

    lags: Mapping[TopicPartition, FetchLag]
    """Only partitions whose lag is known."""

    paused: Sequence[TopicPartition]
    """Partitions that are not fetched now because memory is full."""

    unread: Sequence[TopicPartition]
    """Partitions that are not read because another topic has too few: they wait until that topic grows, too."""

    held_back: HeldBack
    """The partitions that wait for the slowest ones (`max_drift_ms`)."""

    put_off: PutOff | None
    """The batch that waits for more records (`min_poll_records`)."""

    partition_times_ms: Mapping[TopicPartition, int]
    """The greatest timestamp of each partition in a batch. A partition without one is left out."""

    stream_times_ms: Mapping[int, int]
    """The greatest partition time in each task."""

    servers: Sequence[str]
    """The names of all servers."""

    starting: Sequence[str] = ()
    """Servers that have not answered since the planner started."""

    outages: Mapping[str, Outage] = field(default_factory=dict)
    """Servers that do not answer."""

    topics: Sequence[str] = ()
    """The topics that are read, in the order that breaks ties. A pattern may have found no topic yet."""

    waiting: Mapping[str, int] = field(default_factory=dict)
    """Partition counts of topics that match the pattern but are not read: their counts differ from the others'."""

    @property
    def lateness(self) -> Lateness:
        """The lateness in the last 30 s; without records if no batch was planned."""
        return sum((sample.lateness for sample in self.samples), start=Lateness())

    def as_json(self) -> dict[str, object]:
        """Make JSON for `reportLatestOffset`. Spark shows it in the query's progress as `sources[].latestOffset`."""
        metrics: dict[str, object] = {
            "input-buffer-bytes-total": self.input_buffer_bytes,
            "input-buffer-max-bytes": self.input_buffer_max_bytes,
            "input-buffer-records": self.input_buffer_records,
            "enforced-processing-total": self.offset.enforced,
            "enforced-processing-rate": sum(sample.enforced for sample in self.samples) * 1000 / WINDOW_MS,
            "undecodable-total": self.offset.undecodable,
            "dead-letters-total": self.counts.dead_letters,
            "data-losses-total": self.losses,
            "batches-total": self.offset.batches,
            "records-total": self.counts.records,
            "empty-plans-total": self.counts.empty_plans,
            "spooled-ahead-total": self.counts.spooled_ahead,
            "partitions": len(self.partitions),
            "topics": list(self.topics),
            "unread-partitions": _texts(self.unread),
            "unread-topics": {
                topic: f"it has {count} partitions, and not as many as the topics that are read"
                for topic, count in self.waiting.items()
            },
            "paused-partitions": _texts(self.paused),
            "held-back": {str(tp): ahead_ms for tp, ahead_ms in sorted(self.held_back.ahead_ms.items())},
            "held-back-by": _texts(sorted(self.held_back.slowest)),
            "waits-for-records": {} if self.put_off is None else _put_off(self.put_off),
            "current-lag": {str(tp): lag.records for tp, lag in self.lags.items()},
            "unknown-lag": _texts([tp for tp in self.partitions if tp not in self.lags]),
            "partition-time": {str(tp): time_ms for tp, time_ms in self.partition_times_ms.items()},
            "stream-time": {str(task): time_ms for task, time_ms in self.stream_times_ms.items()},
            "starting": list(self.starting),
            "away": {server: _outage(each.since_ms, each.error) for server, each in self.outages.items()},
            "waits-for": {
                server: _outage(each.waits_ms, each.error)
                for server, each in self.outages.items()
                if each.waits_ms is not None
            },
        }
        return metrics | {name: value for name, value in self._known().items() if value is not None}

    def _known(self) -> Mapping[str, float | None]:
        queue, records = self.client_queue, [sample.records for sample in self.samples]
        plans_ms, lateness = [sample.plan_ms for sample in self.samples], self.lateness
        return {
            "librdkafka-queue-bytes": None if queue is None else queue.bytes,
            "librdkafka-queue-records": None if queue is None else queue.records,
            "compacted-records-total": self.counts.compacted,
            "poll-records-avg": sum(records) / len(records) if records else None,
            "poll-records-max": max(records, default=None),
            "plan-latency-avg": sum(plans_ms) / len(plans_ms) if plans_ms else None,
            "plan-latency-max": max(plans_ms, default=None),
            "record-lateness-avg": lateness.avg_ms,
            "record-lateness-max": lateness.max_ms if lateness.records else None,
        }


def measure(
    shared: SharedReadAhead,
    counts: RunCounts,
    offset: SourceOffset,
    put_off: PutOff | None,
    *,
    options: AlignedOptions,
    now_ms: float,
) -> PlannerMetrics:
    """Collect the metrics of a planner that stands at `offset`. The caller holds `shared.changed`."""
    ahead = shared.ahead
    lags = {tp: ahead.lags.current(tp, now_ms) for tp in ahead.retained}
    partition_times_ms = {
        tp: cursor.time_ms for tp, cursor in sorted(offset.cursors.items()) if cursor.time_ms > NO_TIME_MS
    }
    return PlannerMetrics(
        offset=offset,
        counts=replace(counts),
        samples=counts.samples(now_ms),
        losses=shared.losses(),
        input_buffer_bytes=sum(held.bytes for held in ahead.retained.values()),
        input_buffer_max_bytes=options.input_buffer_max_bytes,
        input_buffer_records=sum(len(held) for held in ahead.retained.values()),
        client_queue=shared.client_queue(),
        partitions=sorted(ahead.retained),
        lags={tp: lag for tp, lag in lags.items() if lag is not None},
        paused=sorted(ahead.paused()),
        unread=[*ahead.unread, *options.partitions(ahead.waiting)],
        topics=list(ahead.ranks),
        waiting=ahead.waiting,
        held_back=ahead.held_back,
        put_off=put_off,
        partition_times_ms=partition_times_ms,
        stream_times_ms=_stream_times_ms(ahead, partition_times_ms),
        servers=shared.server_names(),
        starting=shared.starting(),
        outages=shared.outages(),
    )


def _stream_times_ms(ahead: ReadAhead, partition_times_ms: Mapping[TopicPartition, int]) -> Mapping[int, int]:
    times_ms = {
        task: [partition_times_ms[tp] for tp in partitions if tp in partition_times_ms]
        for task, partitions in ahead.tasks.items()
    }
    return {task: max(known) for task, known in times_ms.items() if known}


def _texts(partitions: Sequence[TopicPartition]) -> list[str]:
    return [str(tp) for tp in partitions]


def _put_off(batch: PutOff) -> Mapping[str, object]:
    return {"records": batch.records, "min-poll-records": batch.min_records, "left-ms": batch.left_ms}


def _outage(since_ms: float, error: str) -> Mapping[str, object]:
    return {"since-ms": since_ms, "error": error}
