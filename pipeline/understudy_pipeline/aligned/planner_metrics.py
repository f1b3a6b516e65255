"""What the planner tells of itself, for Spark's progress and for Prometheus. Names are Kafka's, with our prefix.

What Kafka measures in windows of 30 s (averages, maxima, rates) is of the last 30 s here too. An unknown lag is left
out: it is not 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy_pipeline.aligned.ahead import ReadAhead
from understudy_pipeline.aligned.desk import Away
from understudy_pipeline.aligned.lags import Lag
from understudy_pipeline.aligned.lateness import Lateness
from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.aligned.records import TopicPartition

WINDOW_MS = 30_000
MAX_SAMPLES = 10_000
"""A planner that makes more batches than that in 30 s forgets the oldest."""


class Sample(NamedTuple):
    """A batch that was planned at that time."""

    at_ms: float
    records: int
    enforced: int
    lateness: Lateness


class Window:
    """Batches of the last 30 s."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: Sample) -> None:
        """A batch was planned."""
        self._samples.append(sample)

    def samples(self, now_ms: float) -> Sequence[Sample]:
        """Those that are not too old; others are forgotten."""
        while self._samples and now_ms - self._samples[0].at_ms > WINDOW_MS:
            self._samples.popleft()
        return tuple(self._samples)

    def enforced_rate(self, now_ms: float) -> float:
        """Records per second that were taken while an input was given up on."""
        return sum(sample.enforced for sample in self.samples(now_ms)) * 1000 / WINDOW_MS


@dataclass(frozen=True, slots=True)
class PlannerMetrics:
    """At one moment. Totals are since the checkpoint began; averages, maxima and rates of the last 30 s, None without
    a batch in them."""

    input_buffer_bytes: int
    """KIP-770: of records that are fetched and in no batch."""

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
    """Of partitions whose lag is known."""

    paused: Sequence[TopicPartition]
    """Memory has no room for them now."""

    partitions: int
    """0 until those of every topic are known."""

    away: Mapping[str, Away] = field(default_factory=dict)
    """Servers that do not answer."""

    def as_json(self) -> dict[str, object]:
        """For `reportLatestOffset`: it comes out in the query's progress, `sources[].latestOffset`."""
        told: dict[str, object] = {
            "input-buffer-bytes-total": self.input_buffer_bytes,
            "input-buffer-records": self.input_buffer_records,
            "enforced-processing-total": self.enforced_processing_total,
            "enforced-processing-rate": self.enforced_processing_rate,
            "undecodable-total": self.undecodable_total,
            "batches-total": self.batches_total,
            "partitions": self.partitions,
            "paused-partitions": [str(tp) for tp in self.paused],
            "current-lag": {str(tp): lag.records for tp, lag in self.lags.items()},
            "away": {server: {"since-ms": away.since_ms, "error": away.error} for server, away in self.away.items()},
        }
        return told | {name: value for name, value in self._windowed().items() if value is not None}

    def _windowed(self) -> Mapping[str, float | None]:
        return {
            "poll-records-avg": self.poll_records_avg,
            "poll-records-max": self.poll_records_max,
            "record-lateness-avg": self.record_lateness_avg_ms,
            "record-lateness-max": self.record_lateness_max_ms,
        }


def measure(
    ahead: ReadAhead, window: Window, offset: SourceOffset, *, away: Mapping[str, Away], now_ms: float
) -> PlannerMetrics:
    """Of a planner that stands at `offset`."""
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
        away=away,
    )


class PlannerCollector(Collector):
    """Reads a snapshot when it is scraped."""

    def __init__(self, snapshot: Callable[[], PlannerMetrics]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Kafka's names; those that Kafka ends in `-total` and does not count up are gauges here too."""
        told = self._snapshot()
        yield _gauge("input_buffer_bytes_total", "Bytes of records that are in no batch yet", told.input_buffer_bytes)
        yield _gauge("input_buffer_records", "Records that are in no batch yet", told.input_buffer_records)
        yield _counter(
            "enforced_processing", "Records taken while an input was given up on", told.enforced_processing_total
        )
        yield _gauge("enforced_processing_rate", "The same per second", told.enforced_processing_rate)
        yield _counter("undecodable", "Records whose time could not be told", told.undecodable_total)
        yield _counter("batches", "Micro-batches", told.batches_total)
        yield _gauge("partitions", "Partitions that are read", told.partitions)
        yield _gauge("paused_partitions", "Partitions that memory has no room for", len(told.paused))
        for name, value, text in (
            ("poll_records_avg", told.poll_records_avg, "Records of a micro-batch"),
            ("poll_records_max", told.poll_records_max, "Records of the largest micro-batch"),
            ("record_lateness_avg_ms", told.record_lateness_avg_ms, "Time of records behind stream time"),
            ("record_lateness_max_ms", told.record_lateness_max_ms, "Time of the latest record behind stream time"),
        ):
            if value is not None:
                yield _gauge(name, text, value)
        yield from self._labelled(told)

    def _labelled(self, told: PlannerMetrics) -> Iterator[Metric]:
        lags = GaugeMetricFamily(
            f"{_PREFIX}current_lag", "Records that are not fetched yet, if known", labels=("topic", "partition")
        )
        for tp, lag in sorted(told.lags.items()):
            lags.add_metric((tp.topic, str(tp.partition)), lag.records)
        yield lags
        away = GaugeMetricFamily(f"{_PREFIX}input_away_ms", "How long a server did not answer", labels=("server",))
        for server, each in sorted(told.away.items()):
            away.add_metric((server,), each.since_ms)
        yield away


_PREFIX = "understudy_source_"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}{name}", text, value)
