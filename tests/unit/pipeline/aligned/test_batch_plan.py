"""One plan: which inputs are waited for, what is taken, and when it is worth while to plan again.

Numbers are those of docs/kips.md. A poll of Kafka's consumer, and a turn of a Kafka Streams thread, is one micro-batch
here: a batch is planned at once from what was fetched, by threads that go on fetching meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import pytest
from tests.support.spark.record_at_a_time_merge import queue, tp

from understudy_aligned.batch_plan import Batch, Queue, plan_batch
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions

Tasks = dict[int, Sequence[Queue]]

A, B, C = tp("flights"), tp("weather"), tp("alerts")
A1, B1 = tp("flights", 1), tp("weather", 1)
CAUGHT_UP = dict.fromkeys((A, B, C, A1, B1), 0)


def one(**times_ms: Iterable[int]) -> Tasks:
    """A single task, by topic."""
    return {0: [queue(tp(topic), times) for topic, times in times_ms.items()]}


def plan(
    tasks: Mapping[int, Sequence[Queue]],
    lags: Mapping[TopicPartition, int | None] = CAUGHT_UP,
    known: Mapping[TopicPartition, float] | None = None,
    *,
    finished: Set[TopicPartition] = frozenset(),
    idle_ms: int = 0,
    own_idle_ms: Mapping[str, int] | None = None,
    records: int = -1,
    ring: int = 0,
    now_ms: float = 1000,
) -> Batch:
    """Every input is caught up, and none is waited for."""
    return plan_batch(
        tasks,
        lags,
        known or {},
        AlignedOptions((), (), max_task_idle_ms=idle_ms, topic_idle_ms=own_idle_ms or {}, max_poll_records=records),
        finished=finished,
        ring=ring,
        now_ms=now_ms,
    )


def left(tasks: Mapping[int, Sequence[Queue]], batch: Batch) -> Tasks:
    """What the next plan begins with when nothing arrives."""
    return {
        task: [each._replace(times_ms=each.times_ms[batch.taken.get(each.partition, 0) :]) for each in queues]
        for task, queues in tasks.items()
    }


def test_statement_24_never_waiting_takes_everything_of_inputs_of_which_nothing_is_known() -> None:
    tasks = one(flights=[1, 9], weather=[])
    assert plan(tasks, lags={}, idle_ms=-1)[:4] == ({A: 2}, {0: 0}, 0, {})


def test_statement_25_with_all_inputs_buffered_a_batch_goes_up_to_the_first_that_runs_out() -> None:
    batch = plan(one(flights=[1, 4, 6], weather=[2, 5]), lags={}, known={A: 7, B: 7}, idle_ms=50)
    assert batch.taken == {A: 2, B: 2}


@pytest.mark.parametrize("lag", [None, 1], ids=["statement 26: unknown", "statement 27: above 0"])
@pytest.mark.parametrize("idle_ms", [0, 50])
def test_statement_26_27_known_to_exist_or_unknown_is_awaited_without_limit(idle_ms: int, lag: int | None) -> None:
    tasks, lags = one(flights=[1, 9], weather=[]), {A: 0, B: lag}
    assert plan(tasks, lags, {B: 7}, idle_ms=idle_ms, now_ms=1e12)[:4] == ({}, {0: 0}, 0, {})


def test_statement_28_the_idle_time_counts_from_when_nothing_is_left_behind_a_batch() -> None:
    """Not from the next look, which may come any time later: the batch is being processed first."""
    tasks = one(flights=[1, 9], weather=[5])
    first = plan(tasks, idle_ms=50, now_ms=1000)
    assert (first.taken, first.deadlines) == ({A: 1, B: 1}, {B: 1050})
    rest = left(tasks, first)
    early = plan(rest, known=first.deadlines, idle_ms=50, now_ms=1049)
    assert early[:4] == ({}, {0: 0}, 0, {B: 1050})
    assert plan(rest, known=early.deadlines, idle_ms=50, now_ms=1050).taken == {A: 1}


def test_statement_28_at_0_what_is_caught_up_is_passed_over_in_the_very_batch_that_empties_it() -> None:
    batch = plan(one(flights=[1, 9], weather=[5]))
    assert batch.taken == {A: 2, B: 1}


def test_statement_29_an_input_stays_given_up_on_until_it_has_something() -> None:
    late = plan(one(flights=[9], weather=[]), known={B: 900}, idle_ms=50)
    assert (late.taken, late.deadlines) == ({A: 1}, {A: 1050, B: 900})
    fresh = plan(one(flights=[12], weather=[11]), known=late.deadlines, idle_ms=50, now_ms=1100)
    assert (fresh.taken, fresh.deadlines) == ({B: 1}, {B: 1150})


def test_statement_30_the_idle_times_of_all_inputs_of_all_tasks_begin_together() -> None:
    """In Kafka those behind the first that blocks begin later, so that k of them cost up to k times as long."""
    tasks = {0: [queue(A, [1]), queue(B), queue(C)], 1: [queue(A1), queue(B1, [3])]}
    first = plan(tasks, idle_ms=50)
    assert first.deadlines == {B: 1050, C: 1050, A1: 1050}
    assert plan(tasks, known=first.deadlines, idle_ms=50, now_ms=1050).taken == {A: 1, B1: 1}


def test_statement_31_where_everything_is_empty_there_is_nothing_to_do_and_nothing_to_count() -> None:
    assert plan(one(flights=[], weather=[]))[:4] == ({}, {0: 0}, 0, {A: 1000, B: 1000})
    assert plan({0: []})[:4] == ({}, {0: 0}, 0, {})


def test_statement_32_enforced_records_are_counted_for_each_task() -> None:
    tasks = {
        0: [queue(A, [1, 4, 9]), queue(B, [3]), queue(C)],
        1: [queue(A1, [1, 4, 9]), queue(B1, [3])],
    }
    assert plan(tasks).enforced == {0: 4, 1: 2}


def test_statement_32_records_that_are_left_for_another_batch_are_not_counted() -> None:
    tasks = one(flights=[1, 4, 9], weather=[3])
    assert [plan(tasks, records=records).enforced[0] for records in (1, 2, 3, 4)] == [0, 0, 1, 2]


def test_statement_32_nobody_is_given_up_on_at_minus_1_and_what_is_behind_the_end_of_a_query_is_enforced() -> None:
    tasks = one(flights=[1, 9], weather=[])
    assert plan(tasks, idle_ms=-1).enforced == {0: 0}
    finished = plan(tasks, {}, finished={B}, idle_ms=50)
    assert (finished.taken, finished.enforced) == ({A: 2}, {0: 2})


def test_statement_34_a_batch_is_the_least_head_times_of_its_task() -> None:
    batch = plan(one(flights=[1, 4, 7], weather=[2, 4, 8]), lags={}, records=4)
    assert batch.taken == {A: 2, B: 2}


def test_statement_35_a_deadline_of_a_partition_that_is_gone_is_dropped() -> None:
    assert plan(one(flights=[1]), known={B: 7}, idle_ms=50).deadlines == {A: 1050}


def test_statement_36_a_plan_that_nobody_uses_leaves_no_trace() -> None:
    """A Kafka task that has a commit pending processes nothing. Spark asks for a batch only when the one before is
    committed, and one that is planned again, from the same records at the same time, is the same.
    """
    tasks, known = {0: [queue(A, [1, 9]), queue(B, [5])], 1: [queue(A1, [2]), queue(B1)]}, {B1: 1020.0}
    first = plan(tasks, known=known, idle_ms=50, records=1)
    assert plan(tasks, known=known, idle_ms=50, records=1) == first
    assert known == {B1: 1020.0}
    assert [list(each.times_ms) for each in tasks[0]] == [[1, 9], [5]]


def test_statement_37_a_plan_does_not_wait_itself_and_plans_other_tasks() -> None:
    """Idling does not stop polling: here it blocks no other task."""
    tasks = {0: [queue(A, [1]), queue(B)], 1: [queue(A1, [2]), queue(B1, [1])]}
    batch = plan(tasks, idle_ms=50)
    assert batch.taken == {B1: 1}


def test_statement_38_a_lag_below_0_is_0_and_never_unknown() -> None:
    tasks = one(flights=[1], weather=[])
    assert plan(tasks, {B: -1}).taken == {A: 1}
    assert plan(tasks, {B: None}).taken == {}


def test_statement_46_the_bound_counts_over_all_partitions_of_all_tasks() -> None:
    tasks = {0: [queue(A, range(9)), queue(B, range(9))], 1: [queue(A1, range(9)), queue(B1, range(9))]}
    assert sum(plan(tasks, records=7).taken.values()) == 7
    assert sum(plan(tasks, records=500).taken.values()) == 36


def test_statement_47_what_is_left_over_comes_with_the_next_batches_and_nothing_is_fetched_for_it() -> None:
    tasks = one(flights=[1, 2, 6], weather=[3, 4])
    batches = []
    for _ in range(3):
        batch = plan(tasks, records=2)
        tasks = left(tasks, batch)
        batches.append(batch.taken)
    assert batches == [{A: 2}, {B: 2}, {A: 1}]


def test_statement_49_tasks_take_turns_from_one_batch_to_the_next() -> None:
    """Kafka drains what it fetched in the order in which it came, one partition after another."""
    tasks: Tasks = {0: [queue(A, range(9))], 1: [queue(A1, range(9))]}
    turns, ring = [], 0
    for _ in range(4):
        batch = plan(tasks, records=1, ring=ring)
        tasks, ring = left(tasks, batch), batch.ring
        turns.append(batch.taken)
    assert turns == [{A: 1}, {A1: 1}, {A: 1}, {A1: 1}]


def test_statement_50_the_records_of_a_task_that_waits_are_set_aside_and_lose_neither_place_nor_turn() -> None:
    """Kafka sets aside what was fetched of a paused partition. A pause here stops fetching, never planning, so what is
    set aside is a task that waits: its share goes to the others meanwhile.
    """
    tasks: Tasks = {0: [queue(A, [1, 2]), queue(B)], 1: [queue(A1, range(9)), queue(B1, range(9))]}
    waits = plan(tasks, {B: 3}, records=4)
    assert waits.taken == {A1: 2, B1: 2}
    tasks = left(tasks, waits) | {0: [queue(A, [1, 2]), queue(B, [1])]}
    assert plan(tasks, {B: 2}, records=2, ring=waits.ring).taken == {A: 1, A1: 1}
