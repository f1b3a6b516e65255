"""The next batch, planned: merge order within a task, fair shares between tasks, waits for empty inputs.

Pure: equal arguments give equal batches. Within a task a batch is a prefix of the merge sequence. So all batches
together give the merge sequence, however records arrived and wherever batches end. This holds unless a wait for an
empty input ran out, or `max_drift_ms` is set.

*Merge order* is by `(effective time, topic rank, partition, ordinal)`. Effective times ascend within a queue. So
nothing is sorted and no record is visited: a position in merge order is found in each of k queues by binary search, O(k
log n). docs/decisions/0022-order-of-heads.md says why this is Kafka Streams' order.

*Drift* is bounded by `max_drift_ms`, Flink's watermark alignment (FLIP-182, FLIP-217). The *progress* of an input is
the time up to which its records are known: its partition time, or the effective time of its next record if that is
later. A batch takes no record that is more than `max_drift_ms` ahead of the slowest input, over all tasks. An empty
input does not count once the planner no longer waits for it. An input that has records always counts (FLIP-471).

A task *waits* for an empty input as `max.task.idle.ms` says (KIP-353, KIP-695), as in `PartitionGroup`. All inputs are
decided in one pass, so that waits for several empty inputs overlap.

*Shares*: the record budget of a batch is KIP-41's `max.poll.records`, made fair (round robin). Kafka's consumer drains
one partition after another and promises no fairness. Here tasks with records form a ring. Each gets an equal share, and
the next batch begins with the task at which the budget ran out.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition
from understudy_aligned.options import AlignedOptions


class Queue(NamedTuple):
    """Buffered records of one partition. `rank` is the position of its topic in the option `topics`."""

    partition: TopicPartition
    rank: int
    times_ms: NDArray[np.int64]
    """Effective times, ascending; may be empty."""

    reached_ms: int = NO_TIME_MS
    """The partition time before the first of these records."""

    @property
    def tie_breaker(self) -> tuple[int, int]:
        """The order of records with equal times, the least first. Unique among the queues of a task."""
        return self.rank, self.partition.partition


_Position = tuple[int, tuple[int, int]]
"""A position in merge order: just after the last record with this time and this tie-breaker."""


def ready_counts(queues: Sequence[Queue], may_pass: Set[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Count the records of each queue that can be emitted before a blocking queue runs empty.

    A queue blocks unless its partition is in `may_pass`: the next record of its input might come first.
    """
    blocking = [queue for queue in queues if queue.partition not in may_pass]
    if any(not len(queue.times_ms) for queue in blocking):
        return {queue.partition: 0 for queue in queues}
    if not blocking:
        return {queue.partition: len(queue.times_ms) for queue in queues}
    # The first blocking queue to run empty does so after its last record. No record after that position is known to be
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
    # Take every record before the time of the last one, from any queue.
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


def _last_position(queue: Queue) -> _Position:
    return int(queue.times_ms[-1]), queue.tie_breaker


def _count_up_to(position: _Position, queue: Queue) -> int:
    """Count the records of the queue before `position`.

    Records with exactly its time come before it if the queue's tie-breaker is not greater.
    """
    time_ms, tie_breaker = position
    side: Literal["left", "right"] = "right" if queue.tie_breaker <= tie_breaker else "left"
    return int(queue.times_ms.searchsorted(time_ms, side))


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


END_OF_TIME_MS = 2**62
"""A time that no record has. Sums with it do not overflow."""


class Slowest(NamedTuple):
    """The inputs that count and have made the least progress, and that progress: END_OF_TIME_MS if no input counts."""

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
    """Find the slowest inputs after a batch. Inputs in `may_pass` count only while they have records left."""
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
    """Find the inputs that wait after a batch for the slowest ones."""
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


NEVER_WAIT = -1
"""Value of `max_task_idle_ms`: never wait for an empty input, whatever its lag."""


class InputState(NamedTuple):
    """The state of one input (a partition) when a batch is planned."""

    empty: bool
    """Every fetched record is in a batch."""

    lag: int | None
    """Records on the server that are not fetched. None: unknown, or the answer is too old."""

    finished: bool = False
    """The query's end of this input is reached (AvailableNow): nothing more will be read, whatever the lag."""


class IdleDecision(NamedTuple):
    """Pass `deadlines` to the next call: the time on the caller's clock when the wait for each empty input ends.

    `may_pass` are the inputs that do not block their task once their queue runs empty. They may still have records.
    """

    deadlines: Mapping[TopicPartition, float]
    may_pass: frozenset[TopicPartition]


def decide_idle(
    deadlines: Mapping[TopicPartition, float],
    observed: Mapping[TopicPartition, InputState],
    *,
    max_task_idle_ms: int,
    topic_idle_ms: Mapping[str, int] = {},
    now_ms: float,
) -> IdleDecision:
    """Decide which inputs may run empty without blocking their task. A topic in `topic_idle_ms` has its own idle time.

    An input has a deadline while it is empty and caught up (lag 0), counted from the first such call. Data, a lag above
    0 or an unknown lag remove the deadline, and the task then waits without limit. Inputs that are not in `observed`
    lose their deadline.
    """
    kept: dict[TopicPartition, float] = {}
    may_pass = set[TopicPartition]()
    for partition, seen in observed.items():
        idle_ms = topic_idle_ms.get(partition.topic, max_task_idle_ms)
        assert idle_ms >= NEVER_WAIT, "other negative values are refused with the options"
        if seen.finished or idle_ms == NEVER_WAIT:
            may_pass.add(partition)
        elif seen.lag is not None and seen.lag <= 0:  # Kafka's consumer can report a lag below 0 for a moment: as 0
            # An input that still has records starts its wait when it runs empty: until then its deadline moves with
            # the clock. With an idle time of 0 that deadline has passed already.
            deadline_ms = deadlines.get(partition, now_ms + idle_ms) if seen.empty else now_ms + idle_ms
            if deadline_ms <= now_ms:
                may_pass.add(partition)
            if seen.empty:
                kept[partition] = deadline_ms
    return IdleDecision(kept, frozenset(may_pass))


class PutOff(NamedTuple):
    """A batch that waits for more records."""

    records: int
    min_records: int
    left_ms: float
    """The time until it runs, however few records it has."""


def put_off(
    records: int, *, min_records: int, max_delay_ms: int, last_ms: float | None, is_full: bool, now_ms: float
) -> PutOff | None:
    """Decide whether a batch waits for more records (`minOffsetsPerTrigger` in Spark's Kafka source). None: no wait.

    `last_ms` is the time of the last batch. The first batch of a run (None) waits for nothing, as in Spark, nor does a
    batch that cannot grow because memory is full.
    """
    if not 0 < records < min_records or last_ms is None or is_full or now_ms >= last_ms + max_delay_ms:
        return None
    return PutOff(records, min_records, last_ms + max_delay_ms - now_ms)


def is_filling(held: float, lags: Iterable[float | None], *, full: float) -> bool:
    """Whether further reading fills a batch: it is not full with what is `held`, but it would be with the `lags`."""
    return held < full <= held + sum(lag or 0 for lag in lags)


def is_waited_for(
    topics: Container[str],
    inputs: Mapping[TopicPartition, InputState],
    *,
    max_task_idle_ms: int,
    topic_idle_ms: Mapping[str, int] = {},
    slowest: Set[TopicPartition] | None = None,
) -> bool:
    """Whether the query waits for an unreachable server with these topics. `inputs` are all partitions of the query.

    Nothing is read before the partitions of every topic are known. From then on a task waits for a partition if all of
    its fetched records are in a batch and its lag is unknown, because its next record may be the next of all. With an
    idle time of -1 it does not wait, and with `max_drift_ms` only for the `slowest` inputs, which hold others back.
    """
    if not inputs:
        return True
    return any(
        place.topic in topics and seen.empty and seen.lag is None and not seen.finished
        for place, seen in inputs.items()
        if topic_idle_ms.get(place.topic, max_task_idle_ms) != NEVER_WAIT and (slowest is None or place in slowest)
    )


def has_more(inputs: Mapping[TopicPartition, InputState], *, away: Collection[Container[str]]) -> bool:
    """Whether another batch can come without new records being written. `away`: topics of servers that do not answer.

    It can if a server that answers has unread records of a partition, or its lag is unknown. It also can while records
    are held back, because that ends with `max_task_idle_ms`; but not while a server is away, which they may wait for.
    """
    is_held_back = not away and any(not seen.empty for seen in inputs.values())
    return is_held_back or any(
        not seen.finished and (seen.lag is None or seen.lag > 0)
        for place, seen in inputs.items()
        if not any(place.topic in topics for topics in away)
    )


UNBOUNDED = -1


class Shares(NamedTuple):
    """The number of records that each task may take, and the task that is served first in the next batch."""

    allowed: Mapping[int, int]
    next_first: int


def share(available: Mapping[int, int], *, budget: int, first: int) -> Shares:
    """Share `budget` records among tasks that have `available` records each. A budget of -1 is unbounded.

    The result uses the whole budget, or all available records. Tasks that want more get equal shares, give or take one
    record, and the extra record rotates. So no task waits for more batches than there are tasks. `first` may be a task
    that no longer exists.
    """
    if budget == UNBOUNDED or sum(available.values()) <= budget:
        return Shares(dict(available), first)
    ring = sorted(available, key=lambda task: (task < first, task))
    allowed, left, last = dict.fromkeys(available, 0), budget, ring[-1]
    while left:
        wanting = [task for task in ring if allowed[task] < available[task]]
        quantum = max(1, left // len(wanting))
        for task in wanting[:left]:
            given = min(quantum, available[task] - allowed[task])
            allowed[task] += given
            left -= given
            last = task
    return Shares(allowed, ring[(ring.index(last) + 1) % len(ring)])


class BatchTake(NamedTuple):
    """A batch: how much it takes of each queue. It is empty if `taken` is."""

    taken: Mapping[TopicPartition, int]
    """Records taken from the head of each queue. Partitions without records in the batch are left out."""

    enforced: Mapping[int, int]
    """For each task: records taken although one of its inputs was empty and may have an earlier one (enforced
    processing): the wait for it ran out, or `max_drift_ms` allows it."""

    ring: int
    """The task that is served first in the next batch."""

    deadlines: Mapping[TopicPartition, float]
    """For the next plan: the end of the wait for each input that this batch leaves empty."""

    may_pass: frozenset[TopicPartition] = frozenset()
    """Inputs that are finished or given up on, or will not be waited for once their records are taken."""

    held_back: HeldBack = NOT_HELD_BACK
    """With `max_drift_ms`: the inputs that wait for the slowest ones."""


def plan_batch(
    tasks: Mapping[int, Sequence[Queue]],
    lags: Mapping[TopicPartition, int | None],
    deadlines: Mapping[TopicPartition, float],
    options: AlignedOptions,
    *,
    finished: Set[TopicPartition],
    ring: int,
    now_ms: float,
) -> BatchTake:
    """Plan the next batch from the queues. It has no side effects: the caller may drop the batch.

    `lags` are the records on the servers after each queue; a lag that is missing or None is unknown. With an idle time
    of -1 no record counts as enforced. Records after the end of a `finished` input do count, because a later query may
    find more records of that input. With `max_drift_ms` an empty input does not block its task: it holds all tasks back
    when they are that far ahead.
    """
    max_task_idle_ms, topic_idle_ms = options.max_task_idle_ms, options.topic_idle_ms
    # Only these inputs can be passed over: the query waits for all others, however long that takes. With an idle time
    # of -1 decide about every input, because it is passed over whatever its lag.
    counting = {tp for tp, lag in lags.items() if lag is not None and lag <= 0} | finished
    is_never_waiting = NEVER_WAIT in (max_task_idle_ms, *topic_idle_ms.values())

    # Decided twice: on the queues as they are, and on what is left after the batch. The second decision starts the
    # idle time of an input with the batch that takes its last record.
    def decide(known: Mapping[TopicPartition, float], planned: Mapping[TopicPartition, int]) -> IdleDecision:
        observed = _input_states(tasks, planned, lags, finished, None if is_never_waiting else counting)
        return decide_idle(
            known, observed, max_task_idle_ms=max_task_idle_ms, topic_idle_ms=topic_idle_ms, now_ms=now_ms
        )

    before, held_back = decide(deadlines, {}), NOT_HELD_BACK
    passed: Set[TopicPartition] = before.may_pass
    if options.max_drift_ms is None:
        ready = {task: ready_counts(queues, before.may_pass) for task, queues in tasks.items()}
        taken, next_first = _share(tasks, ready, options.max_poll_records, ring)
    else:
        taken, next_first, held_back = _within_drift(
            tasks, before.may_pass, options.max_drift_ms, options.max_poll_records, ring
        )
        passed = taken.keys()
    passed = {tp for tp in passed if topic_idle_ms.get(tp.topic, max_task_idle_ms) != NEVER_WAIT}
    after = decide(before.deadlines, taken)
    return BatchTake(
        taken={partition: count for partition, count in taken.items() if count},
        enforced={task: count_enforced(queues, taken, passed) for task, queues in tasks.items()},
        ring=next_first,
        deadlines=after.deadlines,
        may_pass=after.may_pass,
        held_back=held_back,
    )


def _share(
    tasks: Mapping[int, Sequence[Queue]], ready: Mapping[int, Mapping[TopicPartition, int]], budget: int, ring: int
) -> tuple[Mapping[TopicPartition, int], int]:
    """Share the budget among tasks. Each takes the first ones of its `ready` records. Return how many are taken from
    every partition, and the task that is served first in the next batch.
    """
    shares = share({task: sum(counts.values()) for task, counts in ready.items()}, budget=budget, first=ring)
    taken: dict[TopicPartition, int] = {}
    for task, queues in tasks.items():
        taken.update(limit_counts(queues, ready[task], shares.allowed[task]))
    return taken, shares.next_first


def _within_drift(
    tasks: Mapping[int, Sequence[Queue]],
    may_pass: Set[TopicPartition],
    max_drift_ms: int,
    budget: int,
    ring: int,
) -> tuple[Mapping[TopicPartition, int], int, HeldBack]:
    """Share the records that leave no input more than `max_drift_ms` ahead of the slowest.

    Which input is the slowest depends on the shares. So start with a bound after every record, and lower it until the
    shares agree with it. At that bound the next record of the slowest input is within the bound, so the batch has
    records unless an empty input holds all others back.
    """
    every = [queue for queues in tasks.values() for queue in queues]
    bound_ms = END_OF_TIME_MS
    while True:
        ready = {task: counts_until(queues, bound_ms) for task, queues in tasks.items()}
        taken, next_first = _share(tasks, ready, budget, ring)
        slowest = find_slowest(every, taken, may_pass)
        if slowest.progress_ms + max_drift_ms >= bound_ms:
            return taken, next_first, find_held_back(every, taken, slowest, max_drift_ms=max_drift_ms)
        bound_ms = slowest.progress_ms + max_drift_ms


def _input_states(
    tasks: Mapping[int, Sequence[Queue]],
    planned: Mapping[TopicPartition, int],
    lags: Mapping[TopicPartition, int | None],
    finished: Set[TopicPartition],
    counting: Set[TopicPartition] | None,
) -> Mapping[TopicPartition, InputState]:
    """Return the state of every input, or of those that count, once `planned` records of its queue are taken."""
    return {
        partition: InputState(
            empty=planned.get(partition, 0) == len(times_ms),
            lag=lags.get(partition),
            finished=partition in finished,
        )
        for queues in tasks.values()
        for partition, _, times_ms, _ in queues
        if counting is None or partition in counting
    }
