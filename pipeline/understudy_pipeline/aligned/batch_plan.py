"""What the next batch takes: order within a task, fairness between tasks, patience with inputs that have nothing.

Pure: the same arguments give the same batch. Within a task a batch is a prefix of the merge sequence, so the records of
all batches one after another are that sequence, however they arrived and wherever batches end, for as long as no input
is given up on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from understudy_pipeline.aligned.cut import Queue, count_enforced, limit_counts, ready_counts
from understudy_pipeline.aligned.idle import NEVER_WAIT, IdleDecision, InputState, decide_idle
from understudy_pipeline.aligned.ring import share
from understudy_pipeline.inputs.records import TopicPartition


class Batch(NamedTuple):
    """Empty when `taken` is."""

    taken: Mapping[TopicPartition, int]
    """From the head of each queue; partitions of which nothing is taken are left out."""

    enforced: Mapping[int, int]
    """Of each task: records taken while one of its inputs was given up on."""

    ring: int
    """The task that has its turn first in the next batch."""

    deadlines: Mapping[TopicPartition, float]
    """For the next plan; of inputs that have nothing left behind this batch."""

    wake_ms: float | None
    """When another plan gives more, even if nothing arrives until then. None: it needs records, or news of a lag."""


def plan_batch(
    tasks: Mapping[int, Sequence[Queue]],
    lags: Mapping[TopicPartition, int | None],
    deadlines: Mapping[TopicPartition, float],
    *,
    finished: Set[TopicPartition],
    max_task_idle_ms: int,
    max_poll_records: int,
    ring: int,
    now_ms: float,
) -> Batch:
    """The next batch of what is fetched and not planned; a batch that is not used leaves no trace.

    `lags` are records behind the queues, missing or None where that is unknown. At -1 and behind `finished` inputs
    nothing counts as enforced: there nobody is given up on.
    """

    def decide(known: Mapping[TopicPartition, float], planned: Mapping[TopicPartition, int]) -> IdleDecision:
        observed = _input_states(tasks, planned, lags, finished)
        return decide_idle(known, observed, max_task_idle_ms=max_task_idle_ms, now_ms=now_ms)

    before = decide(deadlines, {})
    ready = {task: ready_counts(queues, before.may_pass) for task, queues in tasks.items()}
    available = {task: sum(counts.values()) for task, counts in ready.items()}
    shares = share(available, budget=max_poll_records, first=ring)
    taken = {task: limit_counts(queues, ready[task], shares.allowed[task]) for task, queues in tasks.items()}
    passed = frozenset() if max_task_idle_ms == NEVER_WAIT else before.may_pass - finished
    together = {partition: count for counts in taken.values() for partition, count in counts.items() if count}
    after = decide(before.deadlines, together)
    moments = [
        now_ms if shares.allowed[task] < available[task] else _idle_deadline_ms(queues, taken[task], after)
        for task, queues in tasks.items()
    ]
    return Batch(
        taken=together,
        enforced={task: count_enforced(queues, taken[task], passed) for task, queues in tasks.items()},
        ring=shares.next_first,
        deadlines=after.deadlines,
        wake_ms=min((moment for moment in moments if moment is not None), default=None),
    )


def _input_states(
    tasks: Mapping[int, Sequence[Queue]],
    planned: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    finished: Set[TopicPartition],
) -> Mapping[TopicPartition, InputState]:
    """Every input of every task, once the first `planned` records of its queue are gone."""
    return {
        partition: InputState(
            empty=planned.get(partition, 0) == len(times_ms),
            lag=lags.get(partition),
            finished=partition in finished,
        )
        for queues in tasks.values()
        for partition, _, times_ms in queues
    }


def _idle_deadline_ms(
    queues: Sequence[Queue], taken: Mapping[TopicPartition, int], after: IdleDecision
) -> float | None:
    """When the last input that a task waits for is given up on; None if that gives no record, or will not happen."""
    left = {queue.partition for queue in queues if taken[queue.partition] < len(queue.times_ms)}
    awaited = {queue.partition for queue in queues} - left - after.may_pass
    if not left or not awaited <= after.deadlines.keys():
        return None
    return max(after.deadlines[partition] for partition in awaited)
