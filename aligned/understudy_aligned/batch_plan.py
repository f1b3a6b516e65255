"""Plans the next batch: merge order within a task, fair shares between tasks, waits for empty inputs.

Pure: equal arguments give equal batches. Within a task a batch is a prefix of the merge sequence. So all batches
together give the merge sequence, however records arrived and wherever batches end, as long as no wait for an empty
input ran out, and `max_drift_ms` is not set.

Shares the record budget of a batch among tasks: KIP-41's `max.poll.records`, made fair (round robin).

Kafka's consumer drains one partition after another and promises no fairness. Here tasks with records form a ring. Each
gets an equal share, and the next batch begins with the task at which the budget ran out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from understudy_aligned.batch_cut import Queue, count_enforced, limit_counts, ready_counts
from understudy_aligned.drift import (
    END_OF_TIME_MS,
    NOT_HELD_BACK,
    HeldBack,
    counts_until,
    find_held_back,
    find_slowest,
)
from understudy_aligned.idle import NEVER_WAIT, IdleDecision, InputState, decide_idle
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions

UNBOUNDED = -1


class Shares(NamedTuple):
    """The number of records that each task may take, and the task that is served first in the next batch."""

    allowed: Mapping[int, int]
    next_first: int


def share(available: Mapping[int, int], *, budget: int, first: int) -> Shares:
    """Share `budget` records among tasks that have `available` records each. A budget of -1 is unbounded.

    The result uses the whole budget, or all available records. Tasks that want more get equal shares, give or take one
    record, and the extra record rotates. So no task waits for more batches than there are tasks. `first` may be a task
    that no longer exists.
    """
    if budget == UNBOUNDED or sum(available.values()) <= budget:
        return Shares(dict(available), first)
    ring = _ring(available, first)
    allowed, left, last = dict.fromkeys(available, 0), budget, ring[-1]
    while left:
        wanting = [task for task in ring if allowed[task] < available[task]]
        quantum = max(1, left // len(wanting))
        for task in wanting[:left]:
            given = min(quantum, available[task] - allowed[task])
            allowed[task] += given
            left -= given
            last = task
    return Shares(allowed, ring[(ring.index(last) + 1) % len(ring)])


def _ring(tasks: Mapping[int, int], first: int) -> Sequence[int]:
    return sorted(tasks, key=lambda task: (task < first, task))


class Batch(NamedTuple):
    """A batch: how much it takes of each queue. It is empty if `taken` is."""

    taken: Mapping[TopicPartition, int]
    """Records taken from the head of each queue. Partitions without records in the batch are left out."""

    enforced: Mapping[int, int]
    """For each task: records taken although one of its inputs was empty and may have an earlier one (enforced
    processing): the wait for it ran out, or `max_drift_ms` allows it."""

    ring: int
    """The task that is served first in the next batch."""

    deadlines: Mapping[TopicPartition, float]
    """For the next plan: when the wait for each input ends that this batch leaves empty."""

    may_pass: frozenset[TopicPartition] = frozenset()
    """Inputs that are finished or given up on, or will not be waited for once their records are taken."""

    held_back: HeldBack = NOT_HELD_BACK
    """With `max_drift_ms`: the inputs that wait for the slowest ones."""


def plan_batch(
    tasks: Mapping[int, Sequence[Queue]],
    lags: Mapping[TopicPartition, int | None],
    deadlines: Mapping[TopicPartition, float],
    options: AlignedOptions,
    *,
    finished: Set[TopicPartition],
    ring: int,
    now_ms: float,
) -> Batch:
    """Plan the next batch from the queues. It has no side effects: the caller may drop the batch.

    `lags` are the records on the servers behind each queue; a lag that is missing or None is unknown. An
    idle time of -1 makes nothing count as enforced. What follows the end of a `finished` input does: a later query may
    find more there. With `max_drift_ms` an empty input does not block its task: it holds all tasks back when they are
    that far ahead.
    """
    max_task_idle_ms, topic_idle_ms = options.max_task_idle_ms, options.topic_idle_ms
    # Others wait for records, however long that takes. Where nothing is waited for, every input counts.
    counting = {tp for tp, lag in lags.items() if lag is not None and lag <= 0} | finished
    is_never_waiting = NEVER_WAIT in (max_task_idle_ms, *topic_idle_ms.values())

    # Decided twice: on the queues as they are, and on what is left behind the batch. The second decision starts the
    # idle time of an input with the batch that takes its last record.
    def decide(known: Mapping[TopicPartition, float], planned: Mapping[TopicPartition, int]) -> IdleDecision:
        observed = _input_states(tasks, planned, lags, finished, None if is_never_waiting else counting)
        return decide_idle(
            known, observed, max_task_idle_ms=max_task_idle_ms, topic_idle_ms=topic_idle_ms, now_ms=now_ms
        )

    before, held_back = decide(deadlines, {}), NOT_HELD_BACK
    passed: Set[TopicPartition] = before.may_pass
    if options.max_drift_ms is None:
        ready = {task: ready_counts(queues, before.may_pass) for task, queues in tasks.items()}
        shared = _share(tasks, ready, options.max_poll_records, ring)
    else:
        shared, held_back = _within_drift(tasks, before.may_pass, options.max_drift_ms, options.max_poll_records, ring)
        passed = shared.taken.keys()
    passed = {tp for tp in passed if topic_idle_ms.get(tp.topic, max_task_idle_ms) != NEVER_WAIT}
    after = decide(before.deadlines, shared.taken)
    return Batch(
        taken={partition: count for partition, count in shared.taken.items() if count},
        enforced={task: count_enforced(queues, shared.taken, passed) for task, queues in tasks.items()},
        ring=shared.next_first,
        deadlines=after.deadlines,
        may_pass=after.may_pass,
        held_back=held_back,
    )


class _Shared(NamedTuple):
    taken: Mapping[TopicPartition, int]
    """By every partition."""
    next_first: int


def _share(
    tasks: Mapping[int, Sequence[Queue]], ready: Mapping[int, Mapping[TopicPartition, int]], budget: int, ring: int
) -> _Shared:
    """Share the budget among tasks. Each takes the first records of what is `ready`."""
    shares = share({task: sum(counts.values()) for task, counts in ready.items()}, budget=budget, first=ring)
    taken: dict[TopicPartition, int] = {}
    for task, queues in tasks.items():
        taken.update(limit_counts(queues, ready[task], shares.allowed[task]))
    return _Shared(taken, shares.next_first)


def _within_drift(
    tasks: Mapping[int, Sequence[Queue]],
    may_pass: Set[TopicPartition],
    max_drift_ms: int,
    budget: int,
    ring: int,
) -> tuple[_Shared, HeldBack]:
    """Share what leaves no input more than `max_drift_ms` ahead of the slowest.

    Which input is the slowest depends on the shares. So the bound begins behind every record, and moves back until the
    shares agree with it. There the next record of the slowest input is within the bound: a batch that is not empty
    exists unless an empty input holds all back.
    """
    every = [queue for queues in tasks.values() for queue in queues]
    bound_ms = END_OF_TIME_MS
    while True:
        ready = {task: counts_until(queues, bound_ms) for task, queues in tasks.items()}
        shared = _share(tasks, ready, budget, ring)
        slowest = find_slowest(every, shared.taken, may_pass)
        if slowest.progress_ms + max_drift_ms >= bound_ms:
            return shared, find_held_back(every, shared.taken, slowest, max_drift_ms=max_drift_ms)
        bound_ms = slowest.progress_ms + max_drift_ms


def _input_states(
    tasks: Mapping[int, Sequence[Queue]],
    planned: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    finished: Set[TopicPartition],
    counting: Set[TopicPartition] | None,
) -> Mapping[TopicPartition, InputState]:
    """Return the state of every input, or of those that count, once `planned` records of its queue are taken."""
    return {
        partition: InputState(
            empty=planned.get(partition, 0) == len(times_ms),
            lag=lags.get(partition),
            finished=partition in finished,
        )
        for queues in tasks.values()
        for partition, _, times_ms, _ in queues
        if counting is None or partition in counting
    }
