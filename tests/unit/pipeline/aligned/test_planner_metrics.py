"""The planner's metrics: their names, and that each value is what its name says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.spark.planned_query import PATIENCE_MS, PlannedQuery, Start, started_queries
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_pipeline.aligned.lateness import Lateness
from understudy_pipeline.aligned.metrics_server import PlannerCollector
from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.run_counts import WINDOW_MS, Sample, Window
from understudy_pipeline.aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_pipeline.inputs.protocol import ClientQueue
from understudy_pipeline.inputs.records import Cursor, TopicPartition, record_size


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
    assert scraped(query)["understudy_source_input_away_seconds server=scripted"] == 0.5
    assert scraped(query)["understudy_source_input_away server=scripted"] == 1
    assert scraped(query)["understudy_source_waits_for_input server=scripted"] == 1, "b is empty"


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


def test_the_time_of_each_partition_and_the_stream_time_of_each_task_are_those_of_the_last_batch(start: Start) -> None:
    server = ScriptedServer({"a": 2, "b": 2})
    query = start(server)
    query.begin()
    assert (metrics_of(query)["partition-time"], metrics_of(query)["stream-time"]) == ({}, {})
    server.put("a", 0, 1_500, 1_000)
    server.put("b", 0, 2_500)
    query.until(3)
    server.put("a", 0, 9_000)
    query.wait_for_records(1)
    assert metrics_of(query)["partition-time"] == {"a-0": 1_500, "b-0": 2_500}
    assert metrics_of(query)["stream-time"] == {"0": 2_500}
    metrics = scraped(query)
    assert metrics["understudy_source_partition_time_seconds partition=0 topic=a"] == 1.5
    assert metrics["understudy_source_stream_time_seconds task=0"] == 2.5
    assert "understudy_source_stream_time_seconds task=1" not in metrics


@pytest.mark.parametrize(("rule", "letters"), [("aside", 2), ("skip", 0)])
def test_records_that_are_written_aside_are_counted_apart(start: Start, rule: str, letters: int) -> None:
    server = ScriptedServer({"a": 1})
    server.put("a", 0, 1, None, None, 4)
    query = start(server, options=AlignedOptions(inputs=(), topics=(), undecodable=rule))  # type: ignore[arg-type]
    query.until(4)
    assert metrics_of(query)["undecodable-total"] == 2
    assert metrics_of(query)["dead-letters-total"] == letters
    assert scraped(query)["understudy_source_dead_letters_total"] == letters


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


def test_what_a_clients_library_holds_is_reported_if_it_says_so(start: Start) -> None:
    server = ScriptedServer({"a": 1})
    server.put("a", 0, 1)
    query = start(server)
    query.until(1)
    assert "librdkafka-queue-bytes" not in metrics_of(query)
    assert "understudy_source_librdkafka_queue_bytes" not in scraped(query)
    server.client_queue = ClientQueue(70, 7)
    wait_until(lambda: "librdkafka-queue-bytes" in metrics_of(query), what="the queue")
    found, metrics = metrics_of(query), scraped(query)
    assert (found["librdkafka-queue-bytes"], found["librdkafka-queue-records"]) == (70, 7)
    assert metrics["understudy_source_librdkafka_queue_bytes"] == 70
    assert metrics["understudy_source_librdkafka_queue_records"] == 7


def test_the_time_to_plan_a_batch_does_not_count_the_wait_for_records(start: Start) -> None:
    server = ScriptedServer({"a": 1})
    query = start(server)
    assert "plan-latency-avg" not in metrics_of(query)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(query.next)
        query.clock.advance(5_000)
        server.put("a", 0, 1)
        waiting.result(PATIENCE_MS / 1000)
    assert metrics_of(query)["plan-latency-avg"] == metrics_of(query)["plan-latency-max"] == 0
    assert scraped(query)["understudy_source_plan_seconds_sum"] == 0
