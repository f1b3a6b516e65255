"""Where a prefix of the merge sequence ends: the fast way by look-ups agrees with one record at a time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import TOPICS, counted, pop_all, queue, tp

from understudy_aligned.batch_plan import Queue, count_enforced, limit_counts, ready_counts
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition, partition_times_ms

A, B, C = tp("flights"), tp("weather"), tp("alerts")
PARTITIONS = [tp(topic, number) for topic, number in product(TOPICS, range(2))]

TIMES = st.one_of(st.integers(0, 6), st.integers(-(10**14), 10**14), st.just(NO_TIME_MS))
"""Ties are the difficult part."""

LOGS = st.dictionaries(st.sampled_from(PARTITIONS), st.lists(TIMES, max_size=12).map(sorted), max_size=6)
SOME = st.frozensets(st.sampled_from(PARTITIONS))


def queues_of(logs: Mapping[TopicPartition, Sequence[int]]) -> list[Queue]:
    return [queue(partition, times) for partition, times in logs.items()]


@given(LOGS, SOME)
@example({A: [1, 2], B: [2, 2]}, frozenset())
@example({A: [], B: [1]}, frozenset({A}))
def test_the_prefix_ends_where_one_record_at_a_time_ends(
    logs: Mapping[TopicPartition, Sequence[int]], may_pass: frozenset[TopicPartition]
) -> None:
    queues = queues_of(logs)
    assert ready_counts(queues, may_pass) == counted(queues, pop_all(queues, may_pass=may_pass).taken)


@given(LOGS, SOME, st.integers(0, 40))
def test_the_first_records_are_those_taken_one_at_a_time(
    logs: Mapping[TopicPartition, Sequence[int]], may_pass: frozenset[TopicPartition], limit: int
) -> None:
    queues = queues_of(logs)
    counts = limit_counts(queues, ready_counts(queues, may_pass), limit)
    assert counts == counted(queues, pop_all(queues, may_pass=may_pass, limit=limit).taken)


@given(LOGS, SOME, SOME, st.integers(0, 40))
def test_statement_32_a_record_counts_as_enforced_once_if_an_input_was_given_up_on(
    logs: Mapping[TopicPartition, Sequence[int]],
    given_up: frozenset[TopicPartition],
    finished: frozenset[TopicPartition],
    limit: int,
) -> None:
    """The check is made for each record, so records before the first input ran out do not count."""
    queues = queues_of(logs)
    passed = given_up - finished
    popped = pop_all(queues, may_pass=given_up | finished, given_up=passed, limit=limit)
    assert count_enforced(queues, counted(queues, popped.taken), passed) == popped.enforced


def test_statement_32_two_inputs_given_up_on_count_a_record_once() -> None:
    queues = [queue(A, [1, 4, 5]), queue(B, [2]), queue(C, [])]
    taken = {A: 3, B: 1, C: 0}
    assert count_enforced(queues, taken, {B, C}) == 4
    assert count_enforced(queues, taken, {B}) == 2
    assert count_enforced(queues, taken, set()) == 0


def test_statement_34_of_one_time_the_topic_named_first_comes_first_then_the_lower_partition() -> None:
    """Kafka leaves ties open. The order in which queues are handed over says nothing."""
    parts = [queue(tp("flights", 1), [5]), queue(tp("weather", 0), [5]), queue(tp("flights", 0), [5])]
    everything = {each.partition: 1 for each in parts}
    firsts = [limit_counts(parts, everything, limit) for limit in (1, 2)]
    assert firsts == [
        {tp("flights", 1): 0, tp("weather", 0): 0, tp("flights", 0): 1},
        {tp("flights", 1): 1, tp("weather", 0): 0, tp("flights", 0): 1},
    ]


RAW = st.dictionaries(
    st.sampled_from(PARTITIONS), st.lists(st.integers(0, 9), min_size=1, max_size=10), min_size=1, max_size=4
)


def kafkas_order(logs: Mapping[TopicPartition, Sequence[int]]) -> list[tuple[TopicPartition, int]]:
    """The least head *timestamp* is next, record by record, late ones included."""
    heads = [(log[0], TOPICS.index(each.topic), each.partition, each, 0) for each, log in logs.items()]
    heapq.heapify(heads)
    order = []
    while heads:
        _, rank, number, each, index = heapq.heappop(heads)
        order.append((each, index))
        if index + 1 < len(logs[each]):
            heapq.heappush(heads, (logs[each][index + 1], rank, number, each, index + 1))
    return order


@given(RAW)
@example({A: [5, 3], B: [4, 5]})
@example({B: [5, 3], A: [5, 4]})
def test_statement_34_effective_times_give_the_order_of_least_head_timestamps(
    logs: Mapping[TopicPartition, Sequence[int]],
) -> None:
    """Also where records are out of order within their partition: one below its predecessor is next at once."""
    queues = [
        queue(each, partition_times_ms(pa.array(log, pa.int64()), time_ms=NO_TIME_MS).tolist())
        for each, log in logs.items()
    ]
    assert pop_all(queues, may_pass=set(logs)).taken == kafkas_order(logs)


@given(RAW)
def test_statement_34_stream_time_never_goes_back(logs: Mapping[TopicPartition, Sequence[int]]) -> None:
    """What Kafka makes by a maximum over what was processed is here the order's own time."""
    effective = {
        each: partition_times_ms(pa.array(log, pa.int64()), time_ms=NO_TIME_MS).tolist() for each, log in logs.items()
    }
    stream_time = NO_TIME_MS
    for each, index in kafkas_order(logs):
        stream_time = max(stream_time, logs[each][index])
        assert effective[each][index] == stream_time


def test_long_queues_are_cut_by_a_few_looks_at_them() -> None:
    """Not by a look at each record: the looks are counted."""
    looks = 0

    class Counted(np.ndarray):
        def searchsorted(self, *arguments: object) -> np.intp:  # type: ignore[override]
            nonlocal looks
            looks += 1
            return np.asarray(self).searchsorted(*arguments)  # type: ignore[call-overload, no-any-return]

    records = 200_000
    queues = [
        each._replace(times_ms=each.times_ms.view(Counted))
        for each in (queue(A, range(records)), queue(B, range(records)))
    ]
    ready = ready_counts(queues, set())
    first = limit_counts(queues, ready, 100_001)
    assert (ready, first) == ({A: records, B: records - 1}, {A: 50_001, B: 50_000})
    assert looks < 60
