"""How much of each queue comes first in merge order: by `(effective time, topic rank, partition, ordinal)`.

Effective times never go back within a queue, so nothing is sorted and no record is looked at: a place in merge order is
looked up in each of k queues, O(k log n). docs/decisions/0010-order.md says why this is Kafka Streams' own order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_pipeline.inputs.records import TopicPartition


class Queue(NamedTuple):
    """What is fetched of one partition and not planned. `rank` is its topic's place in the option `topics`."""

    partition: TopicPartition
    rank: int
    times_ms: NDArray[np.int64]
    """Effective times, ascending; may be empty."""

    @property
    def tie_breaker(self) -> tuple[int, int]:
        """Of two records of one time, that with the lesser one comes first. No two queues of a task share it."""
        return self.rank, self.partition.partition


class _MergePosition(NamedTuple):
    """In merge order: behind the last record of this time and tie."""

    time_ms: int
    tie_breaker: tuple[int, int]


def ready_counts(queues: Sequence[Queue], may_pass: Set[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Of each queue of a task: the records that come before a queue has run out that may not be passed over."""
    holding = [queue for queue in queues if queue.partition not in may_pass]
    if any(not len(queue.times_ms) for queue in holding):
        return {queue.partition: 0 for queue in queues}
    if not holding:
        return {queue.partition: len(queue.times_ms) for queue in queues}
    end = min(_last_position(queue) for queue in holding)
    return {queue.partition: _count_up_to(end, queue) for queue in queues}


def limit_counts(
    queues: Sequence[Queue], counts: Mapping[TopicPartition, int], limit: int
) -> Mapping[TopicPartition, int]:
    """Of the first `counts` records of each queue of a task: those that are among the first `limit` in merge order."""
    if sum(counts.values()) <= limit:
        return counts
    if limit == 0:
        return dict.fromkeys(counts, 0)
    heads = [queue._replace(times_ms=queue.times_ms[: min(counts[queue.partition], limit)]) for queue in queues]
    last_ms = _time_of_nth(limit, [head.times_ms for head in heads if len(head.times_ms)])
    taken = {head.partition: int(head.times_ms.searchsorted(last_ms, "left")) for head in heads}
    left = limit - sum(taken.values())
    for head in sorted(heads, key=lambda head: head.tie_breaker):
        more = min(left, int(head.times_ms.searchsorted(last_ms, "right")) - taken[head.partition])
        taken[head.partition] += more
        left -= more
    return taken


def count_enforced(queues: Sequence[Queue], counts: Mapping[TopicPartition, int], passed: Set[TopicPartition]) -> int:
    """Of a prefix, the first `counts` records of each queue of a task: those after one of `passed` has run out.

    Kafka's enforced processing: one for each record, however many inputs had nothing by then.
    """
    ending = [queue for queue in queues if queue.partition in passed]
    if not ending:
        return 0
    if any(not len(queue.times_ms) for queue in ending):
        return sum(counts.values())
    first = min(_last_position(queue) for queue in ending)
    return sum(max(0, counts[queue.partition] - _count_up_to(first, queue)) for queue in queues)


def _last_position(queue: Queue) -> _MergePosition:
    return _MergePosition(int(queue.times_ms[-1]), queue.tie_breaker)


def _count_up_to(place: _MergePosition, queue: Queue) -> int:
    side: Literal["left", "right"] = "right" if queue.tie_breaker <= place.tie_breaker else "left"
    return int(queue.times_ms.searchsorted(place.time_ms, side))


def _time_of_nth(number: int, heads: Sequence[NDArray[np.int64]]) -> int:
    """The time of the record of that number, from 1, over heads that are not empty and have that many."""
    low, high = min(int(times[0]) for times in heads), max(int(times[-1]) for times in heads)
    while low < high:
        middle = (low + high) // 2
        if sum(int(times.searchsorted(middle, "right")) for times in heads) >= number:
            high = middle
        else:
            low = middle + 1
    return low
