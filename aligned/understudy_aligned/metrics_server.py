"""Serves the planner's metrics to Prometheus over HTTP.

The planner's metrics for Prometheus (pure). docs/reference/metrics.md has the table, and a test compares the two.

Names follow Prometheus' rules: base units (seconds and bytes), and `_total` for counters only. Kafka's own names are in
Spark's progress (`planner_metrics`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.planner_metrics import PlannerMetrics
from understudy_shared.base.errors import SettingsError

_BIND_S = 5.0
"""Seconds of retrying: the planner of a query that was just stopped may still use the port."""

_AGAIN_S = 0.05


_PREFIX = "understudy_source_"


def families(metrics: PlannerMetrics) -> Iterator[Metric]:
    """Yield all families. A family without a value at the moment has no series."""
    yield from _inputs(metrics)
    yield from _order(metrics)
    yield from _batches(metrics)


def _inputs(metrics: PlannerMetrics) -> Iterator[Metric]:
    waits_ms = {server: each.waits_ms for server, each in metrics.outages.items() if each.waits_ms is not None}
    away_ms = {server: each.since_ms for server, each in metrics.outages.items()}
    for name, since_ms, state, duration in (
        (
            "waits_for_input",
            waits_ms,
            "1 while the query waits for this server, which is away; else 0",
            "How long the query has waited for this server, which is away; 0 while it does not",
        ),
        (
            "input_away",
            away_ms,
            "1 while this server does not answer, else 0",
            "How long this server has not answered; 0 while it does",
        ),
    ):
        yield _series(name, state, ["server"], [((each,), int(each in since_ms)) for each in metrics.servers])
        seconds = [((each,), since_ms.get(each, 0) / 1000) for each in metrics.servers]
        yield _series(f"{name}_seconds", duration, ["server"], seconds)
    lags = [(_place(tp), lag.records) for tp, lag in sorted(metrics.lags.items())]
    yield _series("current_lag_records", "Records that are not fetched yet; no series while unknown", _PLACE, lags)
    unknown = [(_place(tp), int(tp not in metrics.lags)) for tp in metrics.partitions]
    yield _series("current_lag_unknown", "1 while the lag is unknown, else 0", _PLACE, unknown)
    yield _gauge("partitions", "Partitions that are read", len(metrics.partitions))
    yield _gauge("unread_partitions", "Partitions that wait until another topic has them", len(metrics.unread))
    yield _gauge("paused_partitions", "Partitions that memory has no room for", len(metrics.paused))
    yield _gauge("buffer_bytes", "Bytes of records that are fetched and in no batch yet", metrics.input_buffer_bytes)
    yield _gauge(
        "buffer_limit_bytes", "Bound on the bytes of records that are in no batch yet", metrics.input_buffer_max_bytes
    )
    yield _gauge("buffer_records", "Records that are fetched and in no batch yet", metrics.input_buffer_records)
    if metrics.client_queue is not None:
        yield _gauge(
            "librdkafka_queue_bytes", "Bytes of values that librdkafka has read ahead", metrics.client_queue.bytes
        )
        yield _gauge("librdkafka_queue_records", "Records that librdkafka has read ahead", metrics.client_queue.records)
    yield _counter("data_losses", "How often the source went on although records were lost", metrics.losses)
    if (compacted := metrics.counts.compacted) is not None:
        yield _counter("compacted_records", "Records of planned batches that compaction removed", compacted)


def _order(metrics: PlannerMetrics) -> Iterator[Metric]:
    offset, counts = metrics.offset, metrics.counts
    times = [(_place(tp), time_ms / 1000) for tp, time_ms in metrics.partition_times_ms.items()]
    yield _series("partition_time_seconds", "Greatest timestamp of a partition in a batch, Unix time", _PLACE, times)
    reached = [((str(task),), time_ms / 1000) for task, time_ms in metrics.stream_times_ms.items()]
    yield _series("stream_time_seconds", "Greatest timestamp of a task in a batch, Unix time", ["task"], reached)
    held_back = [(_place(tp), int(tp in metrics.held_back.ahead_ms)) for tp in metrics.partitions]
    yield _series("held_back", "1 while the partition waits for the slowest input, else 0", _PLACE, held_back)
    ahead = [(_place(tp), ms / 1000) for tp, ms in metrics.held_back.ahead_ms.items() if ms is not None]
    yield _series(
        "held_back_seconds", "How far a partition that waits for the slowest input is ahead of it", _PLACE, ahead
    )
    yield _counter("enforced_processing", "Records taken although an input of their task was empty", offset.enforced)
    late = counts.lateness
    yield _summary("record_lateness_seconds", "How far records were behind stream time", late.records, late.total_ms)
    recent = metrics.lateness
    greatest = [((), recent.max_ms / 1000)] if recent.records else []
    yield _series(
        "record_lateness_max_seconds", "How far the latest record of the last 30 s was behind stream time", [], greatest
    )
    yield _counter("undecodable", "Records without a usable timestamp", offset.undecodable)
    yield _counter("dead_letters", "Records that were written aside", counts.dead_letters)


def _batches(metrics: PlannerMetrics) -> Iterator[Metric]:
    offset, counts = metrics.offset, metrics.counts
    put_off = int(metrics.put_off is not None)
    yield _gauge("waits_for_records", "1 while a batch is put off because it has too few records, else 0", put_off)
    yield _counter("batches", "Micro-batches", offset.batches)
    yield _counter("records", "Records in micro-batches", counts.records)
    most = [((), max(sample.records for sample in metrics.samples))] if metrics.samples else []
    yield _series("poll_records_max", "Records of the largest micro-batch of the last 30 s", [], most)
    yield _counter("empty_plans", "How often Spark asked for a batch in vain", counts.empty_plans)
    yield _summary("plan_seconds", "Time to plan a micro-batch", counts.batches, counts.plan_ms)
    yield _counter("spooled_ahead", "Micro-batches that were in the spool when Spark asked", counts.spooled_ahead)


_PLACE = ("topic", "partition")


def _place(tp: TopicPartition) -> tuple[str, str]:
    return tp.topic, str(tp.partition)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}{name}", text, value)


def _summary(name: str, text: str, count: int, total_ms: float) -> Metric:
    return SummaryMetricFamily(f"{_PREFIX}{name}", text, count_value=count, sum_value=total_ms / 1000)


def _series(name: str, text: str, labels: Iterable[str], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=list(labels))
    for each, value in values:
        family.add_metric(each, value)
    return family


def serve_metrics(snapshot: Callable[[], PlannerMetrics], port: int) -> tuple[int, Callable[[], None]]:
    """Start the server. Return its port and a function that stops it. Raises SettingsError if the port is in use."""
    registry = CollectorRegistry()
    registry.register(PlannerCollector(snapshot))
    server, thread = _bound(port, registry, time.monotonic() + _BIND_S)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(_BIND_S)

    return server.server_port, stop


def _bound(port: int, registry: CollectorRegistry, end_s: float) -> tuple[WSGIServer, Thread]:
    while True:
        try:
            return start_http_server(port, registry=registry)
        except OSError as refusal:
            if time.monotonic() >= end_s:
                raise SettingsError(
                    f"metrics cannot be served at port {port}: {refusal.strerror}",
                    where="option metrics_port",
                    fix="Choose another port, or 0 for any that is free",
                ) from refusal
        time.sleep(_AGAIN_S)


class PlannerCollector(Collector):
    """The collector that takes a snapshot of the planner for each scrape."""

    def __init__(self, snapshot: Callable[[], PlannerMetrics]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        return families(self._snapshot())
