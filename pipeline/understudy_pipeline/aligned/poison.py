"""`undecodable=fail`: a record whose time cannot be told ends the query, but nothing before it is held back for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from understudy_pipeline.aligned.batch_plan import Batch
from understudy_pipeline.aligned.cut import Queue, limit_counts
from understudy_pipeline.aligned.retained import Retained
from understudy_pipeline.inputs.records import TopicPartition
from understudy_shared.errors import UnderstudyError


class UndecodableError(UnderstudyError):
    """A record whose time cannot be told, with `undecodable=fail`."""


class _Poison(NamedTuple):
    """`before` records of the batch come before it, in the merge order of its task; it is at `place` of its queue."""

    before: int
    partition: TopicPartition
    place: int


def before_poison(
    batch: Batch, tasks: Mapping[int, Sequence[Queue]], retained: Mapping[TopicPartition, Retained]
) -> Batch:
    """The batch without the first poison record of each task and what follows it in the task's merge order.

    Raises UndecodableError for a task of which nothing is left then: all that came before is in batches already.
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
        place = retained[queue.partition].first_undecodable(counts[queue.partition])
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
        "the time of a record cannot be told",
        where=f"topic {held.partition.topic}, partition {held.partition.partition}, offset {held.offset(place)}",
        fix="See the option timestamp for where times come from. undecodable=skip leaves such records out, "
        "undecodable=aside writes them to undecodable_path, and both count them",
    )
