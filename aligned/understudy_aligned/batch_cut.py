"""Cuts a batch out of a task's queues in merge order: by `(effective time, topic rank, partition, ordinal)`.

Effective times ascend within a queue. So nothing is sorted and no record is visited: a position in merge order is found
in each of k queues by binary search, O(k log n). docs/decisions/0022-order-of-heads.md says why this is Kafka Streams'
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition


class Queue(NamedTuple):
    """Buffered records of one partition. `rank` is the position of its topic in the option `topics`."""

    partition: TopicPartition
    rank: int
    times_ms: NDArray[np.int64]
    """Effective times, ascending; may be empty."""

    reached_ms: int = NO_TIME_MS
    """The partition time before the first of them."""

    @property
    def tie_breaker(self) -> tuple[int, int]:
        """The order of records with equal times, the least first. Unique among the queues of a task."""
        return self.rank, self.partition.partition


class _MergePosition(NamedTuple):
    """The position in merge order just behind the last record with this time and this tie-breaker."""

    time_ms: int
    tie_breaker: tuple[int, int]


def ready_counts(queues: Sequence[Queue], may_pass: Set[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Count the records of each queue that can be emitted before a blocking queue runs empty.

    A queue blocks unless its partition is in `may_pass`: the next record of its input might come first.
    """
    blocking = [queue for queue in queues if queue.partition not in may_pass]
    if any(not len(queue.times_ms) for queue in blocking):
        return {queue.partition: 0 for queue in queues}
    if not blocking:
        return {queue.partition: len(queue.times_ms) for queue in queues}
    # The first blocking queue to run empty does so behind its last record. Nothing behind that position is known to be
    # in order: the queue's next record may still come before it.
    end = min(_last_position(queue) for queue in blocking)
    return {queue.partition: _count_up_to(end, queue) for queue in queues}


def limit_counts(
    queues: Sequence[Queue], counts: Mapping[TopicPartition, int], limit: int
) -> Mapping[TopicPartition, int]:
    """Reduce `counts`, a prefix of the merge order, to its first `limit` records."""
    if sum(counts.values()) <= limit:
        return counts
    if limit == 0:
        return dict.fromkeys(counts, 0)
    # No queue gives more than `limit` records, so the search needs to see no more of each.
    heads = [queue._replace(times_ms=queue.times_ms[: min(counts[queue.partition], limit)]) for queue in queues]
    last_ms = _time_of_nth(limit, [head.times_ms for head in heads if len(head.times_ms)])
    # Every record before the time of the last one is in, wherever it is.
    taken = {head.partition: int(head.times_ms.searchsorted(last_ms, "left")) for head in heads}
    # The records at exactly that time fill the rest, in the order of the tie-breaker.
    left = limit - sum(taken.values())
    for head in sorted(heads, key=lambda head: head.tie_breaker):
        more = min(left, int(head.times_ms.searchsorted(last_ms, "right")) - taken[head.partition])
        taken[head.partition] += more
        left -= more
    return taken


def count_enforced(queues: Sequence[Queue], counts: Mapping[TopicPartition, int], passed: Set[TopicPartition]) -> int:
    """Count the records of a task after one of the `passed` queues has run empty: Kafka's enforced processing.

    `queues` are the task's, `counts` the batch's records of each queue. A record counts once, however many queues were
    empty by then.
    """
    ending = [queue for queue in queues if queue.partition in passed]
    if not ending:
        return 0
    if any(not len(queue.times_ms) for queue in ending):
        return sum(counts[queue.partition] for queue in queues)
    # Records up to the first of these ends were taken while every passed queue still had one.
    first = min(_last_position(queue) for queue in ending)
    return sum(max(0, counts[queue.partition] - _count_up_to(first, queue)) for queue in queues)


def _last_position(queue: Queue) -> _MergePosition:
    return _MergePosition(int(queue.times_ms[-1]), queue.tie_breaker)


def _count_up_to(position: _MergePosition, queue: Queue) -> int:
    """Count the records of the queue before `position`.

    Records with exactly its time come before it if the queue's tie-breaker is not greater.
    """
    side: Literal["left", "right"] = "right" if queue.tie_breaker <= position.tie_breaker else "left"
    return int(queue.times_ms.searchsorted(position.time_ms, side))


def _time_of_nth(number: int, heads: Sequence[NDArray[np.int64]]) -> int:
    """Return the time of record `number` (from 1) in merge order. No head is empty, and together they have that many.

    A binary search over times, not over records: the result is the least time up to which there are enough records.
    """
    low, high = min(int(times[0]) for times in heads), max(int(times[-1]) for times in heads)
    while low < high:
        middle = (low + high) // 2
        if sum(int(times.searchsorted(middle, "right")) for times in heads) >= number:
            high = middle
        else:
            low = middle + 1
    return low
