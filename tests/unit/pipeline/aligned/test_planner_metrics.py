"""The planner's metrics: their names, and that each value is what its name says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.spark.planned_query import PlannedQuery, Start, started_queries
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_pipeline.aligned.lateness import Lateness
from understudy_pipeline.aligned.metrics_server import PlannerCollector
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.planner_metrics import WINDOW_MS, Sample, Window
from understudy_pipeline.inputs.records import record_size


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun


def metrics_of(query: PlannedQuery) -> Mapping[str, object]:
    """As it comes out of Spark's progress."""
    found = json.loads(json.dumps(query.planner.snapshot().as_json()))
    assert isinstance(found, dict)
    return found


def scraped(query: PlannedQuery) -> Mapping[str, float]:
    """The metrics by name, with labels."""
    registry = CollectorRegistry()
    registry.register(PlannerCollector(query.planner.snapshot))
    return {
        sample.name + "".join(f" {name}={sample.labels[name]}" for name in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_statement_54_the_bytes_that_kafka_documents_and_does_not_report_are_reported(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1, 2, 3, size=100)
    server.withhold("b", 0)
    server.put("b", 0, 1)
    query = start(server)
    assert metrics_of(query)["input-buffer-bytes-total"] == 0
    query.begin()
    query.wait_for_records(3)
    expected = 3 * record_size("a", None, bytes(100))
    assert metrics_of(query)["input-buffer-bytes-total"] == expected
    assert scraped(query)["understudy_source_input_buffer_bytes_total"] == expected
    server.release("b", 0, 1)
    query.next()
    assert metrics_of(query)["input-buffer-bytes-total"] == 0, "what is in a batch is not held"


def test_a_lag_that_is_unknown_is_left_out_and_is_not_0(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    query = start(server)
    query.begin()
    query.wait_for_lag(0, "b")
    assert metrics_of(query)["current-lag"] == {"a-0": 0, "b-0": 0}
    assert scraped(query)["understudy_source_current_lag partition=0 topic=b"] == 0
    server.go_away()
    query.wait_for_lag(None, "b")
    assert metrics_of(query)["current-lag"] == {}
    assert "understudy_source_current_lag partition=0 topic=b" not in scraped(query)


def test_paused_partitions_and_servers_that_are_away_are_named(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1, 2, size=100)
    server.withhold("b", 0)
    server.put("b", 0, 1)
    query = start(server, options=AlignedOptions(inputs=(), topics=(), input_buffer_max_bytes=1))
    query.begin()
    query.wait_for_records(1)
    assert metrics_of(query)["paused-partitions"] == ["a-0"]
    assert scraped(query)["understudy_source_paused_partitions"] == 1
    server.go_away()
    wait_until(lambda: bool(query.planner.snapshot().outages), what="the failure")
    query.clock.advance(500)
    assert metrics_of(query)["away"] == {"scripted": {"since-ms": 500, "error": "no answer (scripted)"}}
    assert scraped(query)["understudy_source_input_away_ms server=scripted"] == 500


def test_partitions_that_wait_for_another_topic_to_grow_are_named(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1)
    query = start(server)
    server.grow("b", 3)
    query.next()
    assert metrics_of(query)["unread-partitions"] == ["b-1", "b-2"]
    assert scraped(query)["understudy_source_unread_partitions"] == 2


def test_enforced_processing_and_lateness_are_counted(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    query = start(server, options=AlignedOptions(inputs=(), topics=(), max_task_idle_ms=0))
    server.put("a", 0, 100, 110)
    query.next()
    server.put("b", 0, 70, 90)
    query.next()
    assert query.offset.enforced == 4
    found = metrics_of(query)
    assert found["enforced-processing-total"] == 4
    assert found["enforced-processing-rate"] == 4 / 30
    assert found["record-lateness-max"] == 40, "at 70 stream time was 110"
    assert found["record-lateness-avg"] == (0 + 0 + 40 + 20) / 4
    assert (found["batches-total"], found["poll-records-avg"], found["poll-records-max"]) == (2, 2, 2)
    metrics = scraped(query)
    assert metrics["understudy_source_enforced_processing_total"] == 4
    assert metrics["understudy_source_record_lateness_max_ms"] == 40
    assert metrics["understudy_source_batches_total"] == 2
    query.clock.advance(WINDOW_MS + 1)
    found = metrics_of(query)
    assert found["enforced-processing-total"] == 4
    assert found["enforced-processing-rate"] == 0
    assert "record-lateness-avg" not in found
    assert "understudy_source_record_lateness_avg_ms" not in scraped(query)


def test_totals_go_on_from_the_checkpoint(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, 1)
    earlier = start(server)
    earlier.next()
    query = start(server)
    query.offset = earlier.offset
    query.begin()
    assert metrics_of(query)["enforced-processing-total"] == 1
    assert metrics_of(query)["batches-total"] == 1


def test_a_window_forgets_what_is_older_than_it() -> None:
    window = Window()
    for at_ms in (0.0, 10.0, 20.0):
        window.add(Sample(at_ms, records=1, enforced=3, lateness=Lateness()))
    assert [sample.at_ms for sample in window.samples(WINDOW_MS + 10)] == [10.0, 20.0]
    assert window.enforced_rate(WINDOW_MS + 20) == 3 / 30
    assert not window.samples(WINDOW_MS + 21)
