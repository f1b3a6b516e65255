"""The metrics of the aligned source: documents name each of them and no other, and their names follow the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.repository import ROOT

from understudy_aligned.batch_plan import HeldBack, PutOff
from understudy_aligned.inputs.protocol import ClientQueue
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.metrics_server import PlannerCollector
from understudy_aligned.offset import SourceOffset
from understudy_aligned.planner_metrics import Lateness, PlannerMetrics, RunCounts, Sample
from understudy_aligned.read_ahead import FetchLag
from understudy_aligned.shared_read_ahead import Outage

DOCS = ROOT / "docs"
REFERENCE, SOURCE = ((DOCS / name).read_text() for name in ("reference/metrics.md", "aligned-source.md"))
KNOWN, UNKNOWN = TopicPartition("weather", 0), TopicPartition("flights", 0)

EVERYTHING = PlannerMetrics(
    offset=SourceOffset({}, batches=4, enforced=5, undecodable=6),
    counts=RunCounts(7, 8, 10, Lateness(1, 2, 3), empty_plans=9, dead_letters=11, compacted=27, spooled_ahead=12),
    samples=[Sample(0, 17, 14, Lateness(4, 5, 6), plan_ms=16)],
    losses=13,
    input_buffer_bytes=1,
    input_buffer_max_bytes=2,
    input_buffer_records=3,
    client_queue=ClientQueue(28, 29),
    partitions=[UNKNOWN, KNOWN],
    lags={KNOWN: FetchLag(19, 0)},
    paused=[KNOWN],
    unread=[TopicPartition("weather", 1)],
    held_back=HeldBack({KNOWN: 23}, frozenset({UNKNOWN})),
    put_off=PutOff(24, 25, 26),
    partition_times_ms={KNOWN: 20},
    stream_times_ms={0: 20},
    servers=["broker:9092", "redis://host"],
    outages={"broker:9092": Outage(21, "no answer", 22)},
)
"""A planner with a value for every metric."""


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    registry = CollectorRegistry()
    registry.register(PlannerCollector(lambda: EVERYTHING))
    return list(text_string_to_metric_families(generate_latest(registry).decode()))


def name_of(family: Metric) -> str:
    """As it is in a query; a counter's family is without its suffix here."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def rows(text: str, head: str) -> Iterator[list[str]]:
    """The cells of a table that begins with these cells."""
    _, _, behind = text.partition(f"| {head} |")
    for line in behind.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_operations_names_each_metric_with_its_labels_and_no_other(families: list[Metric]) -> None:
    section = REFERENCE.partition("\n## The aligned source\n")[2].partition("\n\nWorth an alert")[0]
    documented = {
        name: sorted(filter(None, labels.split(",")))
        for name, labels in re.findall(r"(?m)^- `(\w+)(?:\{([\w,]+)\})?`: ", section)
    }
    assert documented == {name_of(each): sorted(each.samples[0].labels) for each in families}


def test_the_page_of_the_source_names_what_the_progress_has_and_no_more() -> None:
    documented = [name for cell, _ in rows(SOURCE, "in the progress | is") for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(documented) == sorted([*EVERYTHING.as_json(), "metrics-port"])


def test_times_are_seconds_there_and_milliseconds_in_the_progress(families: list[Metric]) -> None:
    values = {sample.name: sample.value for each in families for sample in each.samples}
    progress = EVERYTHING.as_json()
    assert values["understudy_source_plan_seconds_sum"] == 0.01
    assert values["understudy_source_record_lateness_max_seconds"] == 0.006
    assert values["understudy_source_stream_time_seconds"] == 0.02
    assert progress["record-lateness-max"] == 6
    assert progress["plan-latency-max"] == 16
    assert progress["waits-for"] == {"broker:9092": {"since-ms": 22, "error": "no answer"}}
