"""The planner's metrics: their names, and that each value is what its name says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.spark.planned_query import PlannedQuery, Start
from tests.support.spark.queries import wait_until
from tests.support.spark.record_at_a_time_merge import pop_all, queue, tp
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition, partition_times_ms, record_size
from understudy_aligned.metrics_server import PlannerCollector
from understudy_aligned.offset import SourceOffset
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner_metrics import WINDOW_MS, Taken, record_lateness
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS


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


A, B = tp("flights"), tp("weather")
LOG = st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=12)


def taken(timestamps_ms: Sequence[int | None], stream_time_ms: int) -> Taken:
    found = pa.array(timestamps_ms, pa.int64())
    effective = partition_times_ms(found, time_ms=NO_TIME_MS)
    own = found.fill_null(NO_TIME_MS).to_numpy()
    return Taken(effective, own, stream_time_ms)


@given(st.fixed_dictionaries({A: LOG, B: LOG}), st.one_of(st.just(NO_TIME_MS), st.integers(0, 30)), st.integers(0, 24))
def test_statement_34_lateness_is_that_of_one_record_at_a_time(
    logs: Mapping[TopicPartition, Sequence[int | None]], stream_time_ms: int, limit: int
) -> None:
    """As `PartitionGroup.nextRecord`: stream time rises with a record, or the record is late by what it is behind."""
    queues = {each: taken(log, stream_time_ms) for each, log in logs.items()}
    order = pop_all([queue(each, queues[each].times_ms.tolist()) for each in logs], may_pass=set(logs), limit=limit)
    late, reached = [], stream_time_ms
    for each, index in order.taken:
        timestamp_ms = logs[each][index]
        if timestamp_ms is not None:
            reached = max(reached, timestamp_ms)
            late.append(reached - timestamp_ms)
    counts = [sum(partition == each for partition, _ in order.taken) for each in logs]
    of_queues = [(queues[each], count) for each, count in zip(logs, counts, strict=True)]
    found = record_lateness([Taken(e.times_ms[:n], e.timestamps_ms[:n], e.stream_time_ms) for e, n in of_queues])
    assert (found.records, found.total_ms, found.max_ms) == (len(late), sum(late), max(late, default=0))
    assert found.avg_ms == (pytest.approx(np.mean(late)) if late else None)


def test_times_as_far_apart_as_they_can_be_do_not_overflow() -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    found = record_lateness([taken([last, *[first] * 100_000], NO_TIME_MS)])
    assert found.max_ms == last - first
    assert found.total_ms == pytest.approx(100_000 * (last - first))
