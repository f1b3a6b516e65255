"""`max_drift_ms`: no input runs ahead of the slowest by more, against a loop that takes one record at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import queue, tp

from understudy_aligned.batch_plan import NOT_HELD_BACK, Batch, HeldBack, Queue, plan_batch
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition
from understudy_aligned.options import AlignedOptions

A, B = tp("flights"), tp("weather")
A1, B1 = tp("flights", 1), tp("weather", 1)
PARTITIONS = [A, B, A1, B1]

Tasks = Mapping[int, Sequence[Queue]]
Times = Mapping[TopicPartition, Sequence[int]]

TIMES = st.fixed_dictionaries({each: st.lists(st.integers(0, 30), max_size=8).map(sorted) for each in PARTITIONS})
REACHED = st.fixed_dictionaries({each: st.sampled_from([NO_TIME_MS, 0, 5, 20]) for each in PARTITIONS})
LAGS = st.fixed_dictionaries({each: st.sampled_from([None, 0, 3]) for each in PARTITIONS})
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
) -> Batch:
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


@given(TIMES, REACHED, LAGS, DRIFTS)
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


@given(TIMES, REACHED, LAGS, DRIFTS, st.tuples(st.integers(1, 9), st.integers(0, 1)))
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
    tasks = tasks_of({A: [100, 105, 110, 111, 190], B: []}, {B: 100})
    batch = plan(tasks, {A: 0, B: 3}, drift_ms=10)
    assert batch.taken == {A: 3}
    assert batch.held_back == HeldBack({A: 11}, frozenset({B}))
    assert batch.enforced == {0: 3}, "a record of the empty input may belong before them"


def test_an_input_of_another_task_holds_back_too() -> None:
    """A watermark behind the source knows no tasks."""
    tasks = tasks_of({A: [300], B: [300], A1: [], B1: [120]}, {A1: 100, B1: 80})
    batch = plan(tasks, {}, drift_ms=50)
    assert batch.taken == {B1: 1}
    assert batch.held_back == HeldBack({A: 200, B: 200}, frozenset({A1}))


def test_an_input_that_is_given_up_on_holds_nothing_back() -> None:
    tasks = tasks_of({A: [100, 900], B: []}, {B: 100})
    assert plan(tasks, {B: 0}, drift_ms=10).taken == {A: 2}
    waits = plan(tasks, {B: 0}, drift_ms=10, idle_ms=50)
    assert (waits.taken, waits.held_back.ahead_ms, waits.deadlines) == ({A: 1}, {A: 800}, {B: 1050})
    assert plan(tasks, {B: 0}, drift_ms=10, idle_ms=50, known={B: 1000}).held_back == NOT_HELD_BACK


def test_an_input_that_is_held_back_has_no_idle_time_meanwhile() -> None:
    """FLIP-471: its time begins when it has nothing, not while it may not be read."""
    tasks = tasks_of({A: [900], B: []}, {B: 100})
    assert plan(tasks, {A: 0, B: 3}, drift_ms=10, idle_ms=50, known={A: 900}).deadlines == {}
