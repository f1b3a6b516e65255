"""A reference merge that takes one record at a time, as Kafka Streams does it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from understudy_aligned.batch_plan import Queue
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition, effective_times_ms, partition_times_ms

TOPICS = ("flights", "weather", "alerts")
"""Topics in the order of their rank."""


class Popped(NamedTuple):
    """What the loop took: records in order, and how many of them with an input given up on."""

    taken: Sequence[tuple[TopicPartition, int]]
    enforced: int


def tp(topic: str, partition: int = 0) -> TopicPartition:
    """A TopicPartition; the name is short because tests need many."""
    return TopicPartition(topic, partition)


def queue(partition: TopicPartition, times_ms: Iterable[int] = ()) -> Queue:
    return Queue(partition, TOPICS.index(partition.topic), np.fromiter(times_ms, dtype=np.int64))


def effective(timestamps_ms: Sequence[int]) -> list[int]:
    """Effective times of records that begin a batch."""
    reached_ms = partition_times_ms(pa.array(timestamps_ms, pa.int64()), time_ms=NO_TIME_MS)
    return [int(at) for at in effective_times_ms(np.array(timestamps_ms, dtype=np.int64), reached_ms)]


def pop_all(
    queues: Sequence[Queue],
    *,
    may_pass: Set[TopicPartition] = frozenset(),
    given_up: Set[TopicPartition] = frozenset(),
    limit: int | None = None,
) -> Popped:
    """`PartitionGroup`'s loop: before every record, is an input empty, and may it be passed over? Then the least head.

    `given_up` are those that count as enforced when they are passed over.
    """
    places = {each.partition: 0 for each in queues}
    heads: list[tuple[int, int, int, TopicPartition]] = []
    by_partition = {each.partition: each for each in queues}

    def push(partition: TopicPartition) -> None:
        each = by_partition[partition]
        if places[partition] < len(each.times_ms):
            heapq.heappush(heads, (int(each.times_ms[places[partition]]), each.rank, partition.partition, partition))

    for each in queues:
        push(each.partition)
    taken: list[tuple[TopicPartition, int]] = []
    enforced = 0
    while heads and (limit is None or len(taken) < limit):
        empty = {each.partition for each in queues if places[each.partition] == len(each.times_ms)}
        if empty - may_pass:
            break
        enforced += bool(empty & given_up)
        *_, partition = heapq.heappop(heads)
        taken.append((partition, places[partition]))
        places[partition] += 1
        push(partition)
    return Popped(taken, enforced)


def counted(queues: Sequence[Queue], taken: Iterable[tuple[TopicPartition, int]]) -> Mapping[TopicPartition, int]:
    """Records of each queue among those taken, 0 included."""
    counts = Counter(partition for partition, _ in taken)
    return {each.partition: counts[each.partition] for each in queues}
