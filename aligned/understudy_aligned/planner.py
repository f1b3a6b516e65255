"""The planner: reads ahead on all inputs and plans the next micro-batch without I/O.

A batch depends only on its start offset and on the logs. After planning a batch the planner stands at its end. If Spark
asks for the batch after another offset, the planner drops what it fetched and seeks there.

A batch is *settled* when nothing that can still happen changes it: neither records that arrive, nor lags, nor the time,
nor the end of an input. So it may be prepared while Spark runs the batch before it.

With `undecodable=fail` a record without a usable timestamp ends the query, but only after every record before it; with
`partition-time` so does one before its partition's first timestamp.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import pyarrow as pa

from understudy_aligned.batch_plan import (
    UNBOUNDED,
    BatchTake,
    PutOff,
    Queue,
    counts_until,
    find_slowest,
    limit_counts,
    plan_batch,
    put_off,
    ready_counts,
    share,
)
from understudy_aligned.inputs.protocol import InputError, Range
from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_aligned.offset import SourceOffset, fingerprint, topics_at, with_topics
from understudy_aligned.open_inputs import OpenInputs, check_even, current_ends, first_positions
from understudy_aligned.options import AlignedOptions
from understudy_aligned.partition_buffer import Retained
from understudy_aligned.planner_metrics import (
    Lateness,
    PlannerMetrics,
    RunCounts,
    Sample,
    Taken,
    measure,
    record_lateness,
)
from understudy_aligned.read_ahead import FetchLag, ReadAhead
from understudy_aligned.rows import UndecodableError
from understudy_aligned.shared_read_ahead import Prefetch, SharedReadAhead
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch of at least one record: everything from its start offset up to `end`."""

    end: SourceOffset
    ranges: Sequence[tuple[Range, Sequence[pa.RecordBatch]]]
    """The range and the records of each partition that is in the batch."""

    sizes: Sequence[int]
    """The bytes of each range."""


@dataclass(frozen=True, slots=True)
class SettledBatch:
    """The batch after the last one, which nothing can change any more. It is not planned yet."""

    ranges: Sequence[tuple[Range, Sequence[pa.RecordBatch]]]
    end: SourceOffset
    """Its end, without the counters that only a plan knows."""


def take_batch(
    ahead: ReadAhead, start: SourceOffset, batch: BatchTake, *, fingerprint: Mapping[str, object]
) -> tuple[PlannedBatch, Lateness, Mapping[TopicPartition, int]]:
    """Move the records of a batch out of the buffers. Return it, how late its records are, and its poison records."""
    before_ms: dict[TopicPartition, int] = {}
    for of_task in ahead.tasks.values():
        stream_time_ms = max(ahead.retained[tp].cursor.time_ms for tp in of_task)
        before_ms.update(dict.fromkeys(of_task, stream_time_ms))
    begun = ahead.take_beginnings()
    segments = {segment.span.partition: segment for segment in ahead.take(batch.taken)}
    lateness = record_lateness(
        [Taken(each.times_ms, each.timestamps_ms, before_ms[tp]) for tp, each in segments.items()]
    )
    poison = {tp: int((segment.timestamps_ms == NO_TIME_MS).sum()) for tp, segment in segments.items()}
    end = replace(
        start,
        fingerprint=fingerprint,
        cursors={**start.cursors, **begun, **{tp: segment.span.end for tp, segment in segments.items()}},
        begins=None if start.batches else {**start.cursors, **begun},
        topic_ids={**start.topic_ids, **ahead.topic_ids},
        stream_time_ms=max(start.stream_time_ms, _stream_time_ms(ahead, batch)),
        ring=batch.ring,
        batches=start.batches + 1,
        records=sum(batch.taken.values()),
        records_of=dict(batch.taken),
        bytes=sum(segment.bytes for segment in segments.values()),
        enforced=start.enforced + sum(batch.enforced.values()),
        undecodable=start.undecodable + sum(poison.values()),
    )
    ranges = [(segment.span, segment.rows) for segment in segments.values()]
    return PlannedBatch(end, ranges, [segment.bytes for segment in segments.values()]), lateness, poison


def settled_batch(
    ahead: ReadAhead, start: SourceOffset, taken: Mapping[TopicPartition, int], *, fingerprint: Mapping[str, object]
) -> SettledBatch:
    """Peek at a settled batch that is followed by records in every partition. They stay in the buffers."""
    segments = {tp: ahead.retained[tp].head(count) for tp, count in taken.items()}
    cursors = {tp: segments[tp].span.end if tp in segments else held.cursor for tp, held in ahead.retained.items()}
    end = replace(
        start,
        fingerprint=fingerprint,
        cursors={**start.cursors, **cursors},
        begins=None,
        topic_ids={**start.topic_ids, **ahead.topic_ids},
        stream_time_ms=max(start.stream_time_ms, min(cursor.time_ms for cursor in cursors.values())),
        batches=start.batches + 1,
    )
    return SettledBatch([(segment.span, segment.rows) for segment in segments.values()], end)


def _stream_time_ms(ahead: ReadAhead, batch: BatchTake) -> int:
    """Return the least partition time of the inputs that count after the batch. Without one, return the greatest.

    An empty input does not count if the planner no longer waits for it, or if it ended and never had a record.
    """
    counting = [
        held.cursor.time_ms
        for tp, held in ahead.retained.items()
        if len(held) or tp not in batch.may_pass or (tp in ahead.finished and held.cursor.time_ms > NO_TIME_MS)
    ]
    return min(counting) if counting else max(held.cursor.time_ms for held in ahead.retained.values())


def before_poison(
    batch: BatchTake, tasks: Mapping[int, Sequence[Queue]], retained: Mapping[TopicPartition, Retained]
) -> BatchTake:
    """Cut each task's part of the batch before its first poison record, in merge order.

    Raises UndecodableError if that leaves a task no record: all those before the poison record are in earlier batches.
    """
    taken, enforced = dict(batch.taken), dict(batch.enforced)
    for task, queues in tasks.items():
        counts = {queue.partition: taken.get(queue.partition, 0) for queue in queues}
        found = _first_poison(queues, counts, retained)
        if found is None:
            continue
        before, partition, place = found
        if before == 0:
            raise _undecodable_error(retained[partition], place)
        taken.update(limit_counts(queues, counts, before))
        enforced[task] = min(enforced[task], before)
    return batch._replace(taken={tp: count for tp, count in taken.items() if count}, enforced=enforced)


def _first_poison(
    queues: Sequence[Queue], counts: Mapping[TopicPartition, int], retained: Mapping[TopicPartition, Retained]
) -> tuple[int, TopicPartition, int] | None:
    """Return how many records of the batch precede the first poison record of a task, its partition, and its index."""
    found = []
    for queue in queues:
        place = retained[queue.partition].first_refused(counts[queue.partition])
        if place is not None:
            found.append((_records_before(queues, counts, queue, place), queue.partition, place))
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


log = logging.getLogger(__name__)

WAIT_MS = 30
"""Time for which `plan` waits for records. Without a trigger interval Spark asks again at once."""

FILL_WAIT_MS = 1_000
"""Longest wait of `plan_patiently` for records that fill the batch, while servers have them."""

FILL_PAUSE_MS = 250
"""Time without a new record after which `plan_patiently` stops waiting for a full batch."""

START_WAIT_MS = 60_000
"""Time for which `plan_patiently` waits for inputs that have not answered since the start."""

ENDS_TIMEOUT_MS = 60_000
"""With AvailableNow: time without a new record, while ends are not reached, after which the query fails."""

_STOP_S = 3.0
"""Time for which `stop` waits for all threads together."""


def settled_counts(
    tasks: Mapping[int, Sequence[Queue]], *, max_poll_records: int, ring: int, max_drift_ms: int | None = None
) -> Mapping[TopicPartition, int] | None:
    """Count the records of each queue that the next batch takes, whenever `plan_batch` plans it. None: not settled.

    A settled batch passes over no input, so it waits for no input, and no record counts as enforced.
    """
    if max_poll_records == UNBOUNDED or not tasks:
        return None
    if any(not len(queue.times_ms) for queues in tasks.values() for queue in queues):
        return None
    # Every queue blocks here. New records, or a queue that may be passed over, only add records after the ready ones.
    ready = {task: ready_counts(queues, frozenset()) for task, queues in tasks.items()}
    available = {task: sum(counts.values()) for task, counts in ready.items()}
    shares = share(available, budget=max_poll_records, first=ring)
    # If a task gives all its ready records, new ones would make its share larger, and another task's smaller.
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

    The bound can only grow: new records advance an input, and an input that is passed over does not count.
    """
    every = [queue for queues in tasks.values() for queue in queues]
    latest_ms = find_slowest(every, taken, frozenset()).progress_ms + max_drift_ms
    return all(sum(counts_until(queues, latest_ms).values()) > allowed[task] for task, queues in tasks.items())


class Planner:
    """Plans the batches of one run of a query. The first `plan` starts its threads, `stop` ends them."""

    def __init__(self, options: AlignedOptions, clock: Clock, inputs: OpenInputs | None = None) -> None:
        self._options = options
        self._inputs = inputs or OpenInputs(options.inputs)
        self._clock = clock
        self._shared = SharedReadAhead(options, clock)
        self._fingerprint = fingerprint(options)
        self._prefetches: list[Prefetch] = []
        self._offset = SourceOffset(self._fingerprint)
        self.counts = RunCounts()
        self._has_ends = False
        self._last_batch_ms: float | None = None
        self._put_off: PutOff | None = None

    def initial(self, *, timeout_ms: int) -> SourceOffset:
        """Return the offset at which a new checkpoint begins.

        Unless everything is read this asks the servers, and raises InputError when one does not answer in time. Topics
        that are merged with each other are counted. Raises SettingsError if their counts do not fit `merge`.
        """
        cursors, counts = first_positions(self._options, self._inputs, timeout_ms=timeout_ms)
        check_even(self._options, counts)
        found = sorted({tp.topic for tp in cursors})
        return SourceOffset(with_topics(self._fingerprint, self._options, found), cursors=cursors)

    def finish_at_current_ends(self, *, timeout_ms: int) -> None:
        """Read up to the current ends only (the trigger AvailableNow).

        This asks every server, and raises like `initial`. From then on `plan` returns None only when everything up to
        these ends is in a batch, or with `available_now=ordered` everything whose place in the order is certain.
        """
        ends = current_ends(self._options, self._inputs, timeout_ms=timeout_ms)
        with self._shared.changed:
            self._shared.ahead.set_ends(ends)
            self._has_ends = True

    def plan(self, start: SourceOffset, *, wait_ms: float = WAIT_MS) -> PlannedBatch | None:
        """Plan the batch after `start`; return None if no record can be taken within `wait_ms`. Does no I/O.

        Raises the error that stopped an input (DataLostError, UnknownTopicError, ...). For a poison record that ends
        the query, raises UndecodableError once all records before it in its task are in a batch.
        """
        with self._shared.changed:
            self._seek_if_moved(start)
            if self._has_ends:
                return self._plan_until_ends(start)
            return self._shared.changed.wait_for(lambda: self._plan(start), wait_ms / 1000)

    def plan_patiently(self, start: SourceOffset, *, wait_ms: float, limit_ms: float) -> PlannedBatch | None:
        """Plan like `plan`, but return None only when there is nothing to be read, or after `limit_ms`.

        To Spark, None means that all records are processed (`processAllAvailable`). While an input has not answered
        since the start, the limit is START_WAIT_MS.
        """
        began_ms = self._clock.monotonic_ms()
        with self._shared.changed:
            self._wait_for_a_full_batch(start)
            while True:
                batch = self.plan(start, wait_ms=wait_ms)
                if batch is not None or not self._shared.has_more():
                    return batch
                limit = max(limit_ms, START_WAIT_MS) if self._shared.starting() else limit_ms
                if self._clock.monotonic_ms() - began_ms >= limit:
                    return None

    def plan_to_current_ends(self, start: SourceOffset, *, timeout_ms: int) -> SourceOffset | None:
        """Plan one batch from `start` to the current ends of all inputs (the trigger Once), however large, and return
        its end.

        No records are buffered: they may not fit into memory, and executors read them from the inputs. None if there
        are no records. Raises like `initial` and `plan`.
        """
        self.finish_at_current_ends(timeout_ms=timeout_ms)
        end, records, size = start, Counter[TopicPartition](), 0
        begins: Mapping[TopicPartition, Cursor] | None = None
        while (batch := self.plan(end)) is not None:
            end = batch.end
            begins = end.begins if begins is None else begins
            records, size = records + Counter(end.records_of), size + end.bytes
        if end is start:
            return None
        batches = start.batches + 1
        return replace(end, begins=begins, batches=batches, records=records.total(), records_of=records, bytes=size)

    def settled(self) -> SettledBatch | None:
        """Return the batch after the last one if it is settled, else None. It still has to be planned."""
        with self._shared.changed:
            taken = self._settled_counts()
            if taken is None:
                return None
            ahead = self._shared.ahead
            order = with_topics(self._fingerprint, self._options, ahead.ranks)
            return settled_batch(ahead, self._offset, taken, fingerprint=order)

    def wait_until_settled(self, *, limit_ms: float, stopping: threading.Event) -> bool:
        """Wait at most `limit_ms` until the batch after the last one is settled, or `stopping` is set (then `wake`)."""
        with self._shared.changed:
            return self._shared.changed.wait_for(
                lambda: stopping.is_set() or self._settled_counts() is not None, limit_ms / 1000
            )

    def wake(self) -> None:
        """Wake every waiting thread, so that it checks its condition again."""
        with self._shared.changed:
            self._shared.changed.notify_all()

    def hold_prefetch(self) -> AbstractContextManager[object]:
        """Return a context manager that stops the prefetch threads, as they compete for the interpreter."""
        return self._shared.changed

    def current_lag(self, topic: str, partition: int) -> FetchLag | None:
        """Return how many records of the partition are not fetched yet (KIP-695). None if unknown. Does no I/O.

        Raises UnderstudyError for a partition that this source does not read.
        """
        wanted = TopicPartition(topic, partition)
        with self._shared.changed:
            ahead = self._shared.ahead
            if topic not in ahead.ranks or (ahead.tasks and wanted not in ahead.retained):
                raise UnderstudyError(
                    f"{wanted} is not a partition of this source",
                    where="current_lag",
                    fix=f"The topics are {', '.join(ahead.ranks)}; each has partitions from 0",
                )
            return ahead.lags.current(wanted, self._clock.monotonic_ms())

    def snapshot(self) -> PlannerMetrics:
        with self._shared.changed:
            self._shared.update_waits()
            now_ms = self._clock.monotonic_ms()
            return measure(self._shared, self.counts, self._offset, self._put_off, options=self._options, now_ms=now_ms)

    def stop(self) -> None:
        """End the threads and close the inputs. Waits a few seconds at most. May be called again."""
        self._inputs.close()
        for prefetch in self._prefetches:
            prefetch.stop()
        with self._shared.changed:
            self._shared.changed.notify_all()
        deadline_s = time.monotonic() + _STOP_S
        left = [each for each in self._prefetches if not each.join(max(0.0, deadline_s - time.monotonic()))]
        if left:
            log.warning("%d inputs hang and were not closed", len(left), extra={"action": "stop"})

    def _seek_if_moved(self, start: SourceOffset) -> None:
        if not self._shared.ahead.is_positioned_at(start.cursors):
            self._shared.ahead.seek_to(start.cursors, start.topic_ids, topics_at(self._options, start))
            self._shared.changed.notify_all()
        self._offset = start
        if not self._prefetches:
            self._prefetches = [
                Prefetch(
                    self._shared,
                    index,
                    self._inputs.take(index),
                    self._clock,
                    request_timeout_ms=self._options.request_timeout_ms,
                )
                for index in range(len(self._options.inputs))
            ]
            for prefetch in self._prefetches:
                prefetch.start()

    def _held(self) -> Set[TopicPartition]:
        """Return the inputs that have ended but still block their task, as their next record may come in a later query.

        That is so with `available_now=ordered` only.
        """
        return self._shared.ahead.finished if self._options.available_now == "ordered" else frozenset()

    def _wait_for_a_full_batch(self, start: SourceOffset) -> None:
        """Wait a moment while a backlog fills the batch: a batch costs as much as many records, in Spark and for each
        partition.

        The first batch of a run does not wait. The wait is not a decision of the plan: Spark might have asked later.
        """
        ahead = self._shared.ahead
        if self._last_batch_ms is None or not ahead.is_positioned_at(start.cursors):
            return
        began_ms = self._clock.monotonic_ms()

        def is_ready() -> bool:
            now_ms = self._clock.monotonic_ms()
            return (
                self._shared.failure is not None
                or now_ms - max(began_ms, self._shared.last_arrival_ms) >= FILL_PAUSE_MS
                or not ahead.is_filling(now_ms)
            )

        self._shared.changed.wait_for(is_ready, FILL_WAIT_MS / 1000)

    def _plan_until_ends(self, start: SourceOffset) -> PlannedBatch | None:
        began_ms = self._clock.monotonic_ms()
        while True:
            batch = self._shared.changed.wait_for(lambda: self._plan(start), WAIT_MS / 1000)
            if batch is not None or self._shared.ahead.is_complete(in_order=self._options.available_now == "ordered"):
                return batch
            waited_ms = self._clock.monotonic_ms() - max(began_ms, self._shared.last_arrival_ms)
            if waited_ms > ENDS_TIMEOUT_MS:
                raise self._ends_not_reached(waited_ms)

    def _ends_not_reached(self, waited_ms: float) -> InputError:
        ahead, away = self._shared.ahead, self._shared.outages()
        left = sorted(ahead.retained.keys() - ahead.finished)
        return InputError(
            f"no record arrived for {waited_ms / 1000:.0f} s, and the ends of the inputs are not reached",
            where=", ".join(away) or ", ".join(map(str, left)),
            fix="; ".join(each.error for each in away.values()) or "Start the query again",
        )

    def _plan(self, start: SourceOffset) -> PlannedBatch | None:
        if self._shared.failure is not None:
            raise self._shared.failure
        self._shared.update_waits()
        ahead, now_ms = self._shared.ahead, self._clock.monotonic_ms()
        changed = ahead.tasks_to_plan(now_ms)
        # The other tasks have no record for a batch, unless the drift is bounded: then all tasks depend on each other.
        is_part = self._options.max_drift_ms is None and len(changed) < len(ahead.tasks)
        if is_part and not (changed and self._batch(start, self._queues(changed), now_ms).taken):
            ahead.found_nothing(now_ms)
            self._put_off = None
            return None
        queues = self._queues(ahead.tasks)
        batch = self._batch(start, queues, now_ms)
        ahead.held_back = batch.held_back
        # A query that ends by itself takes the records that exist, however few.
        least = 1 if self._has_ends else self._options.min_poll_records
        self._put_off = put_off(
            sum(batch.taken.values()),
            min_records=least,
            max_delay_ms=self._options.max_trigger_delay_ms,
            last_ms=self._last_batch_ms,
            is_full=least > 1 and bool(ahead.paused()),
            now_ms=now_ms,
        )
        if self._put_off is not None:
            return None
        if not batch.taken:
            ahead.found_nothing(now_ms)
            return None
        return self._take_batch(start, before_poison(batch, queues, ahead.retained), now_ms)

    def _batch(self, start: SourceOffset, queues: Mapping[int, Sequence[Queue]], now_ms: float) -> BatchTake:
        """Plan a batch of these tasks only, and store the ends of the waits for their empty inputs."""
        ahead, held = self._shared.ahead, self._held()
        batch = plan_batch(
            queues,
            {tp: lag for tp, lag in ahead.lags.known(now_ms).items() if tp not in held},
            ahead.deadlines,
            self._options,
            finished=ahead.finished - held,
            ring=start.ring,
            now_ms=now_ms,
        )
        ahead.set_deadlines(queues.keys(), batch.deadlines)
        return batch

    def _queues(self, tasks: Mapping[int, Sequence[TopicPartition]]) -> Mapping[int, Sequence[Queue]]:
        ahead = self._shared.ahead
        return {
            task: [ahead.retained[tp].queue(ahead.ranks[tp.topic]) for tp in partitions]
            for task, partitions in tasks.items()
        }

    def _settled_counts(self) -> Mapping[TopicPartition, int] | None:
        retained = self._shared.ahead.retained
        if self._shared.failure is not None or not all(retained.values()):
            return None
        taken = settled_counts(
            self._queues(self._shared.ahead.tasks),
            max_poll_records=self._options.max_poll_records,
            max_drift_ms=self._options.max_drift_ms,
            ring=self._offset.ring,
        )
        # A refused record ends the batch just before itself, and then the query.
        if taken is None or any(retained[tp].first_refused(count) is not None for tp, count in taken.items()):
            return None
        return taken

    def _take_batch(self, start: SourceOffset, batch: BatchTake, now_ms: float) -> PlannedBatch:
        ahead = self._shared.ahead
        order = with_topics(self._fingerprint, self._options, ahead.ranks)
        planned, lateness, poison = take_batch(ahead, start, batch, fingerprint=order)
        self._offset, self._last_batch_ms = planned.end, now_ms
        end = planned.end
        sample = Sample(
            now_ms, end.records, sum(batch.enforced.values()), lateness, self._clock.monotonic_ms() - now_ms
        )
        aside = (count for tp, count in poison.items() if self._options.undecodable_of(tp.topic) == "aside")
        self.counts.add(sample, dead_letters=sum(aside))
        self._shared.changed.notify_all()
        return planned
