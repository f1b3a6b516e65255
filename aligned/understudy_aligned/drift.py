"""Bounds how far inputs drift apart: `max_drift_ms`, Flink's watermark alignment (FLIP-182, FLIP-217). Pure.

The *progress* of an input is the time up to which its records are known: its partition time, or the effective time of
its next record if that is later. A batch takes no record that is more than `max_drift_ms` ahead of the slowest input,
over all tasks. An input that is empty and given up on does not count. One that has records is never given up on
(FLIP-471).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from understudy_aligned.batch_cut import Queue
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition

END_OF_TIME_MS = 2**62
"""A time that no record has. Sums with it do not overflow."""


class Slowest(NamedTuple):
    """The inputs with the least progress of those that count, and that progress. END_OF_TIME_MS if no input counts."""

    progress_ms: int
    partitions: frozenset[TopicPartition]


class HeldBack(NamedTuple):
    """The inputs whose next record is too far ahead of the slowest input."""

    ahead_ms: Mapping[TopicPartition, int | None]
    """The distance of the next record of each. None: the slowest input has no time yet."""

    slowest: frozenset[TopicPartition]
    """The inputs that hold them back. Empty if no input is held back."""


NOT_HELD_BACK = HeldBack({}, frozenset())


def find_slowest(
    queues: Iterable[Queue], taken: Mapping[TopicPartition, int], may_pass: Set[TopicPartition]
) -> Slowest:
    """Find the slowest inputs behind a batch. Inputs in `may_pass` count only while they have records left."""
    progress_ms = {
        queue.partition: _progress_ms(queue, taken[queue.partition])
        for queue in queues
        if queue.partition not in may_pass or taken[queue.partition] < len(queue.times_ms)
    }
    least_ms = min(progress_ms.values(), default=END_OF_TIME_MS)
    return Slowest(least_ms, frozenset(tp for tp, time_ms in progress_ms.items() if time_ms == least_ms))


def find_held_back(
    queues: Iterable[Queue], taken: Mapping[TopicPartition, int], slowest: Slowest, *, max_drift_ms: int
) -> HeldBack:
    """Find the inputs that wait behind a batch for the slowest ones."""
    next_ms = {
        queue.partition: int(queue.times_ms[taken[queue.partition]])
        for queue in queues
        if taken[queue.partition] < len(queue.times_ms)
    }
    is_known = slowest.progress_ms > NO_TIME_MS
    ahead_ms = {
        tp: time_ms - slowest.progress_ms if is_known else None
        for tp, time_ms in next_ms.items()
        if time_ms > slowest.progress_ms + max_drift_ms
    }
    return HeldBack(ahead_ms, slowest.partitions) if ahead_ms else NOT_HELD_BACK


def counts_until(queues: Sequence[Queue], time_ms: int) -> Mapping[TopicPartition, int]:
    """Count the records of each queue up to this time, which are a prefix of the merge order."""
    return {queue.partition: int(queue.times_ms.searchsorted(time_ms, "right")) for queue in queues}


def _progress_ms(queue: Queue, taken: int) -> int:
    if not len(queue.times_ms):
        return queue.reached_ms
    # The next record, or the last one if there is no next: effective times ascend.
    return max(queue.reached_ms, int(queue.times_ms[min(taken, len(queue.times_ms) - 1)]))
