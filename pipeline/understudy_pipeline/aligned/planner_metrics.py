"""The planner's metrics, for Spark's progress and for Prometheus (`metrics_server`). Names are Kafka's.

Averages, maxima and rates cover the last 30 s, as in Kafka. An unknown lag is left out, because it is not 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from understudy_pipeline.aligned.lags import Lag
from understudy_pipeline.aligned.lateness import Lateness
from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.aligned.read_ahead import ReadAhead
from understudy_pipeline.aligned.shared_read_ahead import Outage
from understudy_pipeline.inputs.records import TopicPartition

WINDOW_MS = 30_000
MAX_SAMPLES = 10_000
"""Most batches in the window. A planner that makes more in 30 s forgets the oldest."""


class Sample(NamedTuple):
    """One planned batch."""

    at_ms: float
    records: int
    enforced: int
    lateness: Lateness


class Window:
    """Batches of the last 30 s."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Add a planned batch."""
        self._samples.append(sample)

    def samples(self, now_ms: float) -> Sequence[Sample]:
        """Batches of the last 30 s. Older ones are removed."""
        while self._samples and now_ms - self._samples[0].at_ms > WINDOW_MS:
            self._samples.popleft()
        return tuple(self._samples)

    def enforced_rate(self, now_ms: float) -> float:
        """Enforced records per second: those taken after the wait for an empty input ran out."""
        return sum(sample.enforced for sample in self.samples(now_ms)) * 1000 / WINDOW_MS


@dataclass(frozen=True, slots=True)
class PlannerMetrics:
    """Metrics at one moment. Totals count from the beginning of the checkpoint. Averages, maxima and rates cover the
    last 30 s; they are None if no batch was planned in them.
    """

    input_buffer_bytes: int
    """KIP-770: bytes of records that are fetched and in no batch."""

    input_buffer_records: int
    enforced_processing_total: int
    enforced_processing_rate: float
    """Per second."""

    undecodable_total: int
    batches_total: int
    poll_records_avg: float | None
    """Records of a micro-batch."""

    poll_records_max: int | None
    record_lateness_avg_ms: float | None
    record_lateness_max_ms: int | None
    lags: Mapping[TopicPartition, Lag]
    """Only partitions whose lag is known."""

    paused: Sequence[TopicPartition]
    """Partitions that are not fetched now because memory is full."""

    partitions: int
    """0 until the partitions of every topic are known."""

    unread: Sequence[TopicPartition] = ()
    """Partitions that another topic lacks: they are not read until it grows, too."""

    outages: Mapping[str, Outage] = field(default_factory=dict)
    """Servers that do not answer."""

    def as_json(self) -> dict[str, object]:
        """JSON for `reportLatestOffset`. Spark shows it in the query's progress as `sources[].latestOffset`."""
        metrics: dict[str, object] = {
            "input-buffer-bytes-total": self.input_buffer_bytes,
            "input-buffer-records": self.input_buffer_records,
            "enforced-processing-total": self.enforced_processing_total,
            "enforced-processing-rate": self.enforced_processing_rate,
            "undecodable-total": self.undecodable_total,
            "batches-total": self.batches_total,
            "partitions": self.partitions,
            "unread-partitions": [str(tp) for tp in self.unread],
            "paused-partitions": [str(tp) for tp in self.paused],
            "current-lag": {str(tp): lag.records for tp, lag in self.lags.items()},
            "away": {
                server: {"since-ms": outage.since_ms, "error": outage.error} for server, outage in self.outages.items()
            },
        }
        return metrics | {name: value for name, value in self._windowed().items() if value is not None}

    def _windowed(self) -> Mapping[str, float | None]:
        return {
            "poll-records-avg": self.poll_records_avg,
            "poll-records-max": self.poll_records_max,
            "record-lateness-avg": self.record_lateness_avg_ms,
            "record-lateness-max": self.record_lateness_max_ms,
        }


def measure(
    ahead: ReadAhead, window: Window, offset: SourceOffset, *, outages: Mapping[str, Outage], now_ms: float
) -> PlannerMetrics:
    """Collect the metrics of a planner that stands at `offset`."""
    samples = window.samples(now_ms)
    lateness = sum((sample.lateness for sample in samples), start=Lateness())
    lags = {tp: ahead.lags.current(tp, now_ms) for tp in ahead.retained}
    return PlannerMetrics(
        input_buffer_bytes=sum(held.bytes for held in ahead.retained.values()),
        input_buffer_records=sum(len(held) for held in ahead.retained.values()),
        enforced_processing_total=offset.enforced,
        enforced_processing_rate=window.enforced_rate(now_ms),
        undecodable_total=offset.undecodable,
        batches_total=offset.batches,
        poll_records_avg=sum(sample.records for sample in samples) / len(samples) if samples else None,
        poll_records_max=max((sample.records for sample in samples), default=None),
        record_lateness_avg_ms=lateness.avg_ms,
        record_lateness_max_ms=lateness.max_ms if lateness.records else None,
        lags={tp: lag for tp, lag in lags.items() if lag is not None},
        paused=sorted(ahead.paused()),
        partitions=len(ahead.retained),
        unread=ahead.unread,
        outages=outages,
    )
