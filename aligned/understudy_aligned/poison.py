"""`undecodable=fail`: a record without a usable timestamp ends the query, but only after every record before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from understudy_aligned.batch_cut import Queue, limit_counts
from understudy_aligned.batch_plan import Batch
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.partition_buffer import Retained
from understudy_shared.base.errors import UnderstudyError


class UndecodableError(UnderstudyError):
    """A record has no usable timestamp, and `undecodable` is `fail`."""


class _Poison(NamedTuple):
    """A poison record at index `place` of its queue. `before` records of the batch precede it in its task's order."""

    before: int
    partition: TopicPartition
    place: int


def before_poison(
    batch: Batch, tasks: Mapping[int, Sequence[Queue]], retained: Mapping[TopicPartition, Retained]
) -> Batch:
    """Cut each task's part of the batch before its first poison record, in merge order.

    Raises UndecodableError if that leaves a task nothing: every record before the poison record is in a batch already.
    """
    taken, enforced = dict(batch.taken), dict(batch.enforced)
    for task, queues in tasks.items():
        counts = {queue.partition: taken.get(queue.partition, 0) for queue in queues}
        found = _first_poison(queues, counts, retained)
        if found is None:
            continue
        if found.before == 0:
            raise _undecodable_error(retained[found.partition], found.place)
        taken.update(limit_counts(queues, counts, found.before))
        enforced[task] = min(enforced[task], found.before)
    return batch._replace(taken={tp: count for tp, count in taken.items() if count}, enforced=enforced)


def _first_poison(
    queues: Sequence[Queue], counts: Mapping[TopicPartition, int], retained: Mapping[TopicPartition, Retained]
) -> _Poison | None:
    found = []
    for queue in queues:
        place = retained[queue.partition].first_refused(counts[queue.partition])
        if place is not None:
            found.append(_Poison(_records_before(queues, counts, queue, place), queue.partition, place))
    return min(found, default=None)


def _records_before(queues: Sequence[Queue], counts: Mapping[TopicPartition, int], poisoned: Queue, place: int) -> int:
    time_ms = poisoned.times_ms[place]
    return place + sum(
        min(
            counts[queue.partition],
            int(queue.times_ms.searchsorted(time_ms, "right" if queue.tie_breaker < poisoned.tie_breaker else "left")),
        )
        for queue in queues
        if queue.partition != poisoned.partition
    )


def _undecodable_error(held: Retained, place: int) -> UndecodableError:
    return UndecodableError(
        "a record has no usable timestamp",
        where=f"topic {held.partition.topic}, partition {held.partition.partition}, offset {held.offset(place)}",
        fix="Correct the option timestamp, or set undecodable to 'skip' (leave such records out), 'aside' (write them "
        "to undecodable_path) or 'keep' (deliver them with a null timestamp)",
    )
