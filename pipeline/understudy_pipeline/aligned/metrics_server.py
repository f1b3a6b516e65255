"""Serves the planner's metrics to Prometheus over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from understudy_pipeline.aligned.metric_families import families
from understudy_pipeline.aligned.planner_metrics import PlannerMetrics
from understudy_shared.base.errors import SettingsError

_BIND_S = 5.0
"""Seconds of retrying: the planner of a query that was just stopped may still use the port."""

_AGAIN_S = 0.05


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
