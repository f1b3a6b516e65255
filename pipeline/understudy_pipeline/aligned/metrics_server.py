"""Serves the planner's metrics to Prometheus over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy_pipeline.aligned.planner_metrics import PlannerMetrics
from understudy_shared.errors import SettingsError

_BIND_S = 5.0
"""How long to retry: the planner of a query that was just stopped may still use the port."""

_AGAIN_S = 0.05


def serve_metrics(snapshot: Callable[[], PlannerMetrics], port: int) -> tuple[int, Callable[[], None]]:
    """Start the server. Returns its port and a function that stops it. Raises SettingsError if the port is in use."""
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
    """Takes a snapshot of the planner for each scrape."""

    def __init__(self, snapshot: Callable[[], PlannerMetrics]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Names are Kafka's. Kafka's `-total` metrics that can go down are gauges here too."""
        metrics = self._snapshot()
        yield _gauge(
            "input_buffer_bytes_total", "Bytes of records that are in no batch yet", metrics.input_buffer_bytes
        )
        yield _gauge("input_buffer_records", "Records that are in no batch yet", metrics.input_buffer_records)
        yield _counter(
            "enforced_processing", "Records taken while an input was given up on", metrics.enforced_processing_total
        )
        yield _gauge("enforced_processing_rate", "The same per second", metrics.enforced_processing_rate)
        yield _counter("undecodable", "Records without a usable timestamp", metrics.undecodable_total)
        yield _counter("batches", "Micro-batches", metrics.batches_total)
        yield _gauge("partitions", "Partitions that are read", metrics.partitions)
        yield _gauge("unread_partitions", "Partitions that wait until another topic has them", len(metrics.unread))
        yield _gauge("paused_partitions", "Partitions that memory has no room for", len(metrics.paused))
        for name, value, text in (
            ("poll_records_avg", metrics.poll_records_avg, "Records of a micro-batch"),
            ("poll_records_max", metrics.poll_records_max, "Records of the largest micro-batch"),
            ("record_lateness_avg_ms", metrics.record_lateness_avg_ms, "Time of records behind stream time"),
            ("record_lateness_max_ms", metrics.record_lateness_max_ms, "Time of the latest record behind stream time"),
        ):
            if value is not None:
                yield _gauge(name, text, value)
        yield from self._labelled(metrics)

    def _labelled(self, metrics: PlannerMetrics) -> Iterator[Metric]:
        lags = GaugeMetricFamily(
            f"{_PREFIX}current_lag", "Records that are not fetched yet, if known", labels=("topic", "partition")
        )
        for tp, lag in sorted(metrics.lags.items()):
            lags.add_metric((tp.topic, str(tp.partition)), lag.records)
        yield lags
        away = GaugeMetricFamily(f"{_PREFIX}input_away_ms", "How long a server did not answer", labels=("server",))
        for server, each in sorted(metrics.outages.items()):
            away.add_metric((server,), each.since_ms)
        yield away


_PREFIX = "understudy_source_"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}{name}", text, value)
