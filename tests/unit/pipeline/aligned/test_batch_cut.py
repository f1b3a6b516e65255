"""Where a prefix of the merge sequence ends, also with `max_drift_ms`: look-ups agree with one record at a time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from itertools import product

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import TOPICS, counted, pop_all, queue, tp

from understudy_aligned.batch_plan import (
    NOT_HELD_BACK,
    BatchTake,
    HeldBack,
    Queue,
    count_enforced,
    limit_counts,
    plan_batch,
    ready_counts,
)
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition, partition_times_ms
from understudy_aligned.options import AlignedOptions

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


DRIFT_A, DRIFT_B = tp("flights"), tp("weather")
A1, B1 = tp("flights", 1), tp("weather", 1)
DRIFT_PARTITIONS = [DRIFT_A, DRIFT_B, A1, B1]

Tasks = Mapping[int, Sequence[Queue]]
Times = Mapping[TopicPartition, Sequence[int]]

DRIFT_TIMES = st.fixed_dictionaries(
    {each: st.lists(st.integers(0, 30), max_size=8).map(sorted) for each in DRIFT_PARTITIONS}
)
REACHED = st.fixed_dictionaries({each: st.sampled_from([NO_TIME_MS, 0, 5, 20]) for each in DRIFT_PARTITIONS})
LAGS = st.fixed_dictionaries({each: st.sampled_from([None, 0, 3]) for each in DRIFT_PARTITIONS})
DRIFTS = st.sampled_from([0, 3, 10, 100])


def tasks_of(times_ms: Times, reached_ms: Mapping[TopicPartition, int]) -> Tasks:
    def of(each: TopicPartition) -> Queue:
        return queue(each, times_ms[each])._replace(reached_ms=reached_ms.get(each, NO_TIME_MS))

    partitions = sorted(times_ms, key=lambda each: each.partition)
    return {task: [of(each) for each in partitions if each.partition == task] for task in {p[1] for p in partitions}}


def plan(
    tasks: Tasks,
    lags: Mapping[TopicPartition, int | None],
    *,
    drift_ms: int,
    records: int = -1,
    idle_ms: int = 0,
    known: Mapping[TopicPartition, float] | None = None,
    ring: int = 0,
) -> BatchTake:
    return plan_batch(
        tasks,
        lags,
        known or {},
        AlignedOptions((), (), max_task_idle_ms=idle_ms, max_drift_ms=drift_ms, max_poll_records=records),
        finished=frozenset(),
        ring=ring,
        now_ms=1000,
    )


def progress(each: Queue, taken: int) -> int:
    """How far an input is known: what it had, what is taken of it, and its next record."""
    return max([each.reached_ms, *(int(at) for at in each.times_ms[: taken + 1])])


def slowest_ms(queues: Sequence[Queue], taken: Mapping[TopicPartition, int], idle: Set[TopicPartition]) -> int | None:
    return min(
        (
            progress(each, taken[each.partition])
            for each in queues
            if taken[each.partition] < len(each.times_ms) or each.partition not in idle
        ),
        default=None,
    )


def record_by_record(queues: Sequence[Queue], idle: Set[TopicPartition], drift_ms: int) -> dict[TopicPartition, int]:
    """Take the least head of all while it is not too far ahead of the slowest input that counts."""
    taken = {each.partition: 0 for each in queues}
    while True:
        heads = [each for each in queues if taken[each.partition] < len(each.times_ms)]
        if not heads:
            return taken
        least = min(heads, key=lambda each: int(each.times_ms[taken[each.partition]]))
        slowest = slowest_ms(queues, taken, idle)
        assert slowest is not None, "one with records counts"
        if least.times_ms[taken[least.partition]] > slowest + drift_ms:
            return taken
        taken[least.partition] += 1


def idle_inputs(lags: Mapping[TopicPartition, int | None]) -> set[TopicPartition]:
    """Those that are given up on at once, with an idle time of 0."""
    return {each for each, lag in lags.items() if lag == 0}


@given(DRIFT_TIMES, REACHED, LAGS, DRIFTS)
def test_a_batch_without_another_bound_is_what_a_loop_takes_record_by_record(
    times_ms: Times,
    reached_ms: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    drift_ms: int,
) -> None:
    tasks = tasks_of(times_ms, reached_ms)
    every = [each for queues in tasks.values() for each in queues]
    expected = record_by_record(every, idle_inputs(lags), drift_ms)
    batch = plan(tasks, lags, drift_ms=drift_ms)
    assert batch.taken == {each: count for each, count in expected.items() if count}
    assert bool(batch.held_back.ahead_ms) == any(expected[each.partition] < len(each.times_ms) for each in every)


@given(DRIFT_TIMES, REACHED, LAGS, DRIFTS, st.tuples(st.integers(1, 9), st.integers(0, 1)))
def test_a_batch_of_bounded_size_keeps_the_drift_and_is_not_empty_where_a_larger_one_is_not(
    times_ms: Times,
    reached_ms: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    drift_ms: int,
    budget: tuple[int, int],
) -> None:
    """Also the inputs that the bound left behind count: they are the slowest then."""
    tasks = tasks_of(times_ms, reached_ms)
    every = [each for queues in tasks.values() for each in queues]
    records, ring = budget
    batch = plan(tasks, lags, drift_ms=drift_ms, records=records, ring=ring)
    taken = {each.partition: batch.taken.get(each.partition, 0) for each in every}
    slowest = slowest_ms(every, taken, idle_inputs(lags))
    for each in every:
        if slowest is not None and taken[each.partition]:
            assert each.times_ms[taken[each.partition] - 1] <= slowest + drift_ms
    assert sum(taken.values()) <= records
    assert bool(batch.taken) == any(record_by_record(every, idle_inputs(lags), drift_ms).values())


def test_other_inputs_go_on_without_an_empty_one_up_to_the_drift() -> None:
    tasks = tasks_of({DRIFT_A: [100, 105, 110, 111, 190], DRIFT_B: []}, {DRIFT_B: 100})
    batch = plan(tasks, {DRIFT_A: 0, DRIFT_B: 3}, drift_ms=10)
    assert batch.taken == {DRIFT_A: 3}
    assert batch.held_back == HeldBack({DRIFT_A: 11}, frozenset({DRIFT_B}))
    assert batch.enforced == {0: 3}, "a record of the empty input may belong before them"


def test_an_input_that_is_given_up_on_holds_nothing_back() -> None:
    tasks = tasks_of({DRIFT_A: [100, 900], DRIFT_B: []}, {DRIFT_B: 100})
    assert plan(tasks, {DRIFT_B: 0}, drift_ms=10).taken == {DRIFT_A: 2}
    waits = plan(tasks, {DRIFT_B: 0}, drift_ms=10, idle_ms=50)
    assert (waits.taken, waits.held_back.ahead_ms, waits.deadlines) == ({DRIFT_A: 1}, {DRIFT_A: 800}, {DRIFT_B: 1050})
    assert plan(tasks, {DRIFT_B: 0}, drift_ms=10, idle_ms=50, known={DRIFT_B: 1000}).held_back == NOT_HELD_BACK


def test_an_input_that_is_held_back_has_no_idle_time_meanwhile() -> None:
    """FLIP-471: its time begins when it has nothing, not while it may not be read."""
    tasks = tasks_of({DRIFT_A: [900], DRIFT_B: []}, {DRIFT_B: 100})
    assert plan(tasks, {DRIFT_A: 0, DRIFT_B: 3}, drift_ms=10, idle_ms=50, known={DRIFT_A: 900}).deadlines == {}
