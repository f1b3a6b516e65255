"""How late records are when their turn comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import pop_all, queue, tp

from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition, partition_times_ms
from understudy_aligned.planner_metrics import Taken, record_lateness

A, B = tp("flights"), tp("weather")
LOG = st.lists(st.one_of(st.none(), st.integers(0, 30)), max_size=12)


def taken(timestamps_ms: Sequence[int | None], stream_time_ms: int = 100, *, max_jump_ms: int | None = None) -> Taken:
    found = pa.array(timestamps_ms, pa.int64())
    effective = partition_times_ms(found, time_ms=NO_TIME_MS, max_jump_ms=max_jump_ms)
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


def test_a_record_of_an_input_that_was_given_up_on_is_late_by_what_was_taken_before() -> None:
    found = record_lateness([taken([70, 90])])
    assert (found.avg_ms, found.max_ms) == (20, 30)


def test_times_as_far_apart_as_they_can_be_do_not_overflow() -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    found = record_lateness([taken([last, *[first] * 100_000], NO_TIME_MS)])
    assert found.max_ms == last - first
    assert found.total_ms == pytest.approx(100_000 * (last - first))
