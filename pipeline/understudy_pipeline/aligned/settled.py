"""Says whether the next batch is known before Spark asks for it (pure).

A batch is *settled* when nothing that can still happen changes it: neither records that arrive, nor lags, nor the time,
nor the end of an input. So it may be prepared while Spark runs the batch before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy_pipeline.aligned.cut import Queue, limit_counts, ready_counts
from understudy_pipeline.aligned.drift import counts_until, find_slowest
from understudy_pipeline.aligned.ring import UNBOUNDED, share
from understudy_pipeline.inputs.records import TopicPartition


def settled_counts(
    tasks: Mapping[int, Sequence[Queue]], *, max_poll_records: int, ring: int, max_drift_ms: int | None = None
) -> Mapping[TopicPartition, int] | None:
    """Count the records of each queue that the next batch takes, whenever `plan_batch` plans it. None: that may change.

    A settled batch passes over no input, so it waits for no input and counts nothing as enforced.
    """
    if max_poll_records == UNBOUNDED or not tasks:
        return None
    if any(not len(queue.times_ms) for queues in tasks.values() for queue in queues):
        return None
    # Every queue blocks here. More records, or a queue that may be passed over, only add to the end of what is ready.
    ready = {task: ready_counts(queues, frozenset()) for task, queues in tasks.items()}
    available = {task: sum(counts.values()) for task, counts in ready.items()}
    shares = share(available, budget=max_poll_records, first=ring)
    # A task that gives all it has would give more if it had more, and another task less.
    if any(shares.allowed[task] >= available[task] for task in tasks):
        return None
    taken: dict[TopicPartition, int] = {}
    for task, queues in tasks.items():
        taken.update(limit_counts(queues, ready[task], shares.allowed[task]))
    if max_drift_ms is not None and not _is_within_drift(tasks, shares.allowed, taken, max_drift_ms):
        return None
    return {partition: count for partition, count in taken.items() if count}


def _is_within_drift(
    tasks: Mapping[int, Sequence[Queue]],
    allowed: Mapping[int, int],
    taken: Mapping[TopicPartition, int],
    max_drift_ms: int,
) -> bool:
    """Whether each task has more records than its share that are not too far ahead of the slowest input.

    The bound can only move on: records that arrive bring an input further, and one that is passed over does not count.
    """
    every = [queue for queues in tasks.values() for queue in queues]
    latest_ms = find_slowest(every, taken, frozenset()).progress_ms + max_drift_ms
    return all(sum(counts_until(queues, latest_ms).values()) > allowed[task] for task, queues in tasks.items())
