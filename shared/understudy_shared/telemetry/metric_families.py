"""Families of metrics that nodes and routers have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from understudy_shared.base.extras import PACKAGE
from understudy_shared.telemetry.histogram import Histogram

MS_PER_S = 1000
"""Milliseconds per second: histograms count milliseconds, and metrics are in seconds."""

_PROCESS = ProcessCollector(registry=None)


def about_the_process() -> Iterator[Metric]:
    """Yield the release, and the system's figures of this process."""
    yield InfoMetricFamily("understudy_build", "The running release", {"version": version(PACKAGE)})
    yield from used_by_the_process()


def used_by_the_process() -> Iterator[Metric]:
    """Yield the system's figures of this process: CPU time, memory, open files, start time."""
    yield from _PROCESS.collect()


def histogram_family(name: str, text: str, histogram: Histogram, *, per: float = 1) -> Metric:
    """Make a family of one histogram without labels. `per`: how many units of the histogram make one of the metric."""
    family = HistogramMetricFamily(name, text, labels=())
    add_histogram(family, (), histogram, per=per)
    return family


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, *, per: float) -> None:
    """Add a histogram under these labels to its family."""
    counts = list(histogram.counts)
    names = [*(repr(bound / per) for bound in histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), histogram.sum / per)
