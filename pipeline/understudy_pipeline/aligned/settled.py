"""Says whether the next batch is known before Spark asks for it (pure).

A batch is *settled* when nothing that can still happen changes it: neither records that arrive, nor lags, nor the time,
nor the end of an input. So it may be prepared while Spark runs the batch before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy_pipeline.aligned.cut import Queue, limit_counts, ready_counts
from understudy_pipeline.aligned.ring import UNBOUNDED, share
from understudy_pipeline.inputs.records import TopicPartition


def settled_counts(
    tasks: Mapping[int, Sequence[Queue]], *, max_poll_records: int, ring: int
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
    taken = {task: limit_counts(queues, ready[task], shares.allowed[task]) for task, queues in tasks.items()}
    return {partition: count for counts in taken.values() for partition, count in counts.items() if count}
