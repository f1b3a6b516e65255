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

from understudy_aligned.inputs.records import Cursor, TopicPartition, record_size
from understudy_aligned.metrics_server import PlannerCollector
from understudy_aligned.offset import SourceOffset
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner_metrics import WINDOW_MS
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS


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
    assert scraped(query)["understudy_source_buffer_bytes"] == expected
    server.release("b", 0, 1)
    query.next()
    assert metrics_of(query)["input-buffer-bytes-total"] == 0, "what is in a batch is not held"
    assert metrics_of(query)["input-buffer-max-bytes"] == 512 << 20
    assert scraped(query)["understudy_source_buffer_limit_bytes"] == 512 << 20


def test_a_lag_that_is_unknown_is_left_out_and_has_a_series_of_its_own_that_an_alert_can_watch(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    query = start(server)
    query.begin()
    query.wait_for_lag(0, "b")
    assert metrics_of(query)["current-lag"] == {"a-0": 0, "b-0": 0}
    assert metrics_of(query)["unknown-lag"] == []
    assert scraped(query)["understudy_source_current_lag_records partition=0 topic=b"] == 0
    assert scraped(query)["understudy_source_current_lag_unknown partition=0 topic=b"] == 0
    server.go_away()
    query.wait_for_lag(None, "b")
    assert metrics_of(query)["current-lag"] == {}
    assert metrics_of(query)["unknown-lag"] == ["a-0", "b-0"]
    assert "understudy_source_current_lag_records partition=0 topic=b" not in scraped(query)
    assert scraped(query)["understudy_source_current_lag_unknown partition=0 topic=b"] == 1


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
    assert metrics["understudy_source_record_lateness_max_seconds"] == 0.04
    assert metrics["understudy_source_record_lateness_seconds_sum"] == 0.06
    assert metrics["understudy_source_record_lateness_seconds_count"] == 4
    assert metrics["understudy_source_records_total"] == found["records-total"] == 4
    assert metrics["understudy_source_plan_seconds_count"] == 2
    assert metrics["understudy_source_batches_total"] == 2
    query.clock.advance(WINDOW_MS + 1)
    found = metrics_of(query)
    assert found["enforced-processing-total"] == 4
    assert found["enforced-processing-rate"] == 0
    assert "record-lateness-avg" not in found
    assert "understudy_source_record_lateness_max_seconds" not in scraped(query)
    assert scraped(query)["understudy_source_record_lateness_seconds_count"] == 4


def test_losses_behind_which_the_source_went_on_are_counted(start: Start) -> None:
    server = ScriptedServer({"a": 1}, goes_on_after_losses=True)
    server.put("a", 0, 1, 2, 3, 4)
    query = start(server, options=AlignedOptions(inputs=(), topics=(), fail_on_data_loss=False))
    query.until(4)
    assert metrics_of(query)["data-losses-total"] == 0
    server.put("a", 0, 5, 6)
    query.wait_for_records(2)
    server.lose("a", 0, 5)
    query.offset = SourceOffset(query.offset.fingerprint, {TopicPartition("a", 0): Cursor("1", 2, 2)})
    query.until(1)
    assert metrics_of(query)["data-losses-total"] == 1
    assert scraped(query)["understudy_source_data_losses_total"] == 1
    server.make_anew("a", "second")
    query.clock.advance(COUNT_INTERVAL_MS)
    wait_until(lambda: query.planner._shared.ahead.topic_ids == {"a": "second"}, what="its id")
    server.make_anew("a", "third")
    query.clock.advance(COUNT_INTERVAL_MS)
    wait_until(lambda: metrics_of(query)["data-losses-total"] == 2, what="the loss of a whole topic")
