"""Plans the next batch: merge order within a task, fair shares between tasks, waits for empty inputs.

Pure: equal arguments give equal batches. Within a task a batch is a prefix of the merge sequence. So all batches
together give the merge sequence, however records arrived and wherever batches end, as long as no wait for an empty
input ran out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from understudy_pipeline.aligned.cut import Queue, count_enforced, limit_counts, ready_counts
from understudy_pipeline.aligned.idle import NEVER_WAIT, IdleDecision, InputState, decide_idle
from understudy_pipeline.aligned.ring import share
from understudy_pipeline.inputs.records import TopicPartition


class Batch(NamedTuple):
    """A batch: how much it takes of each queue. It is empty if `taken` is."""

    taken: Mapping[TopicPartition, int]
    """Records taken from the head of each queue. Partitions without records in the batch are left out."""

    enforced: Mapping[int, int]
    """For each task: records taken after the wait for one of its empty inputs ran out (enforced processing)."""

    ring: int
    """The task that is served first in the next batch."""

    deadlines: Mapping[TopicPartition, float]
    """For the next plan: when the wait for each input ends that this batch leaves empty."""


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
    """Plan the next batch from the queues. It has no side effects: the caller may drop the batch.

    `lags` are the records on the servers behind each queue; a lag that is missing or None is unknown. With
    `max_task_idle_ms` -1 nothing counts as enforced. What follows the end of a `finished` input does: a later query may
    find more there.
    """

    # Decided twice: on the queues as they are, and on what is left behind the batch. The second decision starts the
    # idle time of an input with the batch that takes its last record.
    def decide(known: Mapping[TopicPartition, float], planned: Mapping[TopicPartition, int]) -> IdleDecision:
        observed = _input_states(tasks, planned, lags, finished)
        return decide_idle(known, observed, max_task_idle_ms=max_task_idle_ms, now_ms=now_ms)

    before = decide(deadlines, {})
    ready = {task: ready_counts(queues, before.may_pass) for task, queues in tasks.items()}
    available = {task: sum(counts.values()) for task, counts in ready.items()}
    shares = share(available, budget=max_poll_records, first=ring)
    taken = {task: limit_counts(queues, ready[task], shares.allowed[task]) for task, queues in tasks.items()}
    passed = frozenset() if max_task_idle_ms == NEVER_WAIT else before.may_pass
    together = {partition: count for counts in taken.values() for partition, count in counts.items() if count}
    after = decide(before.deadlines, together)
    return Batch(
        taken=together,
        enforced={task: count_enforced(queues, taken[task], passed) for task, queues in tasks.items()},
        ring=shares.next_first,
        deadlines=after.deadlines,
    )


def _input_states(
    tasks: Mapping[int, Sequence[Queue]],
    planned: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    finished: Set[TopicPartition],
) -> Mapping[TopicPartition, InputState]:
    """Return the state of every input once the first `planned` records of its queue are taken."""
    return {
        partition: InputState(
            empty=planned.get(partition, 0) == len(times_ms),
            lag=lags.get(partition),
            finished=partition in finished,
        )
        for queues in tasks.values()
        for partition, _, times_ms in queues
    }
