"""State of reading ahead on all inputs: what is fetched, and what to fetch next. No threads, no locks, no I/O.

Bounds the buffered records, in bytes (KIP-770) and in records. See docs/decisions/0011-memory.md.

Two rules prevent a livelock. A partition with an empty buffer is always fetched: its task may be waiting for it. And a
pause is not a state: what is paused is computed from the buffers before every fetch, so that nothing has to be
processed before a partition is resumed.

`current_lag` (KIP-695): how many records a server has that are not fetched yet, and how old that answer is.

Kafka's consumer keeps its last answer for ever, also one below 0. Here an answer expires, and is dropped when its
server fails. Then the lag is unknown, which is not 0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from understudy_aligned.batch_plan import NOT_HELD_BACK, is_filling
from understudy_aligned.inputs.protocol import Fetched
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition
from understudy_aligned.offset import join_topics
from understudy_aligned.open_inputs import is_at, made_anew, report_lost, report_made_anew, up_to
from understudy_aligned.options import AlignedOptions
from understudy_aligned.partition_buffer import Retained, Segment, copy_out
from understudy_shared.base.errors import SettingsError

log = logging.getLogger(__name__)


UNKNOWN_RECORD_BYTES = 64 << 10
"""Assumed size of a record before the first one arrived. Few records are larger, so a first fetch is not too large."""

MAX_FETCH_RECORDS = 10_000
"""Largest chunk. Executors hand batches of the same length to Spark."""

FETCHES_PER_BOUND = 4
"""One fetch brings about a quarter of the bound. The bound may be exceeded by that much."""


class FetchLag(NamedTuple):
    """`records` were not fetched yet, by an answer that is at most `age_ms` old."""

    records: int
    age_ms: float


class Lags:
    """Last answer for each partition. Its age counts from the request, so it is never older than its age says."""

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._answers: dict[TopicPartition, tuple[int, float]] = {}

    def update(self, lags: Mapping[TopicPartition, int], *, asked_ms: float) -> None:
        """Store the lags of an answer to a request sent at `asked_ms`. Other partitions keep their last answer."""
        self._answers.update((partition, (max(0, lag), asked_ms)) for partition, lag in lags.items())

    def subtract_fetched(self, partition: TopicPartition, records: int) -> None:
        """Subtract fetched records from the lag. If the answer counted fewer than that, the lag becomes unknown."""
        if partition in self._answers:
            lag, asked_ms = self._answers.pop(partition)
            if lag >= records:
                self._answers[partition] = lag - records, asked_ms

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Make lags unknown: after a failed request, after a seek, and for partitions that no longer exist."""
        for partition in partitions:
            self._answers.pop(partition, None)

    def current(self, partition: TopicPartition, now_ms: float) -> FetchLag | None:
        """Return the last known lag, None if unknown. Does no I/O."""
        records, asked_ms = self._answers.get(partition, (0, None))
        if asked_ms is None or now_ms - asked_ms > self._max_age_ms:
            return None
        return FetchLag(records, now_ms - asked_ms)

    def known(self, now_ms: float) -> dict[TopicPartition, int]:
        """Return the last lags of all partitions whose lag is known."""
        oldest_ms = now_ms - self._max_age_ms
        return {tp: records for tp, (records, asked_ms) in self._answers.items() if asked_ms >= oldest_ms}


def paused_partitions(
    held: Mapping[TopicPartition, Retained],
    tasks: Mapping[int, Sequence[TopicPartition]],
    *,
    max_bytes: int,
    max_records_per_partition: int | None = None,
) -> frozenset[TopicPartition]:
    """List partitions that must not be fetched now: they have records, and their task exceeds its share, or all tasks
    together exceed the bound.

    A task that holds exactly its share is not paused. `max_records_per_partition` (the deprecated bound) also pauses
    each partition that has more records than that.
    """
    share = max_bytes // max(1, len(tasks))  # equal, whatever each holds, as KIP-770 shares between threads
    is_full = sum([each.bytes for each in held.values()]) > max_bytes
    paused = list[TopicPartition]()
    for partitions in tasks.values():
        of_task = [held[partition].bytes for partition in partitions if partition in held]
        most_records = 0 if is_full or sum(of_task) > share else max_records_per_partition
        if most_records is not None:
            paused += [tp for tp in partitions if tp in held and held[tp].records > most_records]
    return frozenset(paused)


def fetch_bytes(max_bytes: int, *, held: int) -> int:
    """Return how many bytes the next fetch of all partitions brings at most, while `held` bytes are buffered."""
    one_fetch = max_bytes // FETCHES_PER_BOUND
    return max(0, min(one_fetch, max_bytes + one_fetch - held))


def fetch_records(*, room: float, record_bytes: float | None, held: int, max_poll_records: int) -> int:
    """Return how many records of a partition the next fetch should bring. 0 if `held`, its buffered records, fill any
    batch.

    As in KIP-41, a partition that holds fewer than `max_poll_records` gets a full fetch. `room` is the partition's part
    of `fetch_bytes`, and `record_bytes` the mean size of its records (None if unknown). The result is at least 1,
    however large the records.
    """
    if 0 < max_poll_records <= held:
        return 0
    fitting = int(room / max(1.0, UNKNOWN_RECORD_BYTES if record_bytes is None else record_bytes))
    return min(MAX_FETCH_RECORDS, max(1, fitting))


class ReadAhead:
    """Not thread-safe: hold one lock around every call. `generation` counts seeks; older answers are dropped."""

    def __init__(self, options: AlignedOptions) -> None:
        self.ranks: Mapping[str, int] = _ranks(options.topics)
        """The topics that are read, with their ranks: these order records of equal times. A pattern appends topics."""
        self.waiting: Mapping[str, int] = {}
        """Partition counts of topics that match the pattern but are not read: their counts differ from the others'."""
        self.is_counted = False
        """Whether the partitions of every topic are known."""
        self.tasks: Mapping[int, Sequence[TopicPartition]] = {}
        """Empty until `is_counted`."""
        self.retained: dict[TopicPartition, Retained] = {}
        """Fetched records that are in no batch yet. The keys are exactly the partitions of `tasks`."""
        self.unread: Sequence[TopicPartition] = ()
        """Partitions that no task has because another topic has too few: they wait until that topic grows, too."""
        self.lags = Lags(options.lag_max_age_ms)
        self.deadlines: dict[TopicPartition, float] = {}
        """By the last plan: when the wait for each empty input ends."""
        self.held_back = NOT_HELD_BACK
        """By the last plan: the inputs that wait for the slowest ones."""
        self.generation = 0
        self.finished: set[TopicPartition] = set()
        """Partitions that are fetched up to the ends that `set_ends` gave."""
        self._options = options
        self._task_of: dict[TopicPartition, int] = {}
        self._changed: set[int] = set()
        """Tasks of which something changed since a plan found nothing to take."""
        self._planned_ms = float("-inf")
        """The time of that plan."""
        self._counts: dict[str, int] = {}
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._pending_seeks: set[TopicPartition] = set()
        self._ends: Mapping[TopicPartition, Cursor] | None = None
        self.topic_ids: dict[str, str] = {}
        """The ids of the topics that are read, where they are known."""
        self._made_anew: set[str] = set()
        """Topics that were created again, so are read from their beginning; `_cursors` still has old positions."""
        self._vanished: frozenset[TopicPartition] = frozenset()
        """Partitions that were read and do not exist now: each is one loss, however often partitions are counted."""
        self.losses = 0
        """Number of losses after which reading continued: topics created again, partitions that vanished."""

    def is_positioned_at(self, cursors: Mapping[TopicPartition, Cursor]) -> bool:
        """Whether the next batch starts at these cursors. False before the first `seek_to`."""
        is_same = cursors == self._cursors or _without_beginnings(cursors) == _without_beginnings(self._cursors)
        return self.generation > 0 and is_same

    def seek_to(
        self,
        cursors: Mapping[TopicPartition, Cursor],
        topic_ids: Mapping[str, str] | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        """Drop what was fetched and start over after these cursors, which belong to topics with these ids.

        Each input must then `seek` (`pending_seeks`). `topics` are the topics that a pattern had found by then. Topics
        that joined since keep their places after them.
        """
        self.generation += 1
        self.ranks = self.ranks or _ranks(topics)
        self._cursors = dict(cursors)
        self._made_anew.clear()
        self.retained.clear()
        self.finished.clear()
        self._pending_seeks.clear()
        found, self.topic_ids = self.topic_ids, {**self.topic_ids, **(topic_ids or {})}
        self.set_topic_ids(found)

    def set_ends(self, ends: Mapping[TopicPartition, Cursor]) -> None:
        """Fetch nothing after these ends, and nothing of a partition that is not among them."""
        self._ends = dict(ends)
        if self.generation:
            self.seek_to(self._cursors, self.topic_ids)

    def is_complete(self, *, in_order: bool = False) -> bool:
        """Whether everything up to the ends of `set_ends` is fetched and in a batch.

        With `in_order` each task ends with the first of its inputs to end: later records wait for a later query.
        """
        if in_order:
            return self.is_counted and all(
                any(tp in self.finished and not self.retained[tp] for tp in of_task) for of_task in self.tasks.values()
            )
        return self.is_counted and all(tp in self.finished and not held for tp, held in self.retained.items())

    def join_found(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Begin to read the topics that a pattern found and that fit. Return the counts of all topics to read."""
        if self._options.pattern is None:
            return counts
        joined, waiting = join_topics(self.ranks, counts, is_global=self._options.merge == "global")
        if waiting and waiting != self.waiting:
            log.warning(
                "topics that the pattern found are not read: a topic needs as many partitions as the others (%s)",
                _counts_text(counts),
                extra={"action": "uneven-topics"},
            )
        if joined:
            log.info("the pattern found topics: %s", ", ".join(joined), extra={"action": "topics-found"})
        elif not self.ranks and not self.is_counted:
            log.warning("the pattern finds no topic yet; the query waits for one", extra={"action": "no-topics"})
        self.ranks, self.waiting = _ranks([*self.ranks, *joined]), waiting
        return {topic: counts.get(topic, 0) for topic in self.ranks}

    def set_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Update partition counts of some topics. Raises SettingsError and DataLostError, and then changes nothing."""
        known = {**self._counts, **counts}
        if any(topic not in known for topic in self.ranks):
            self._counts = known
            return
        if known == self._counts and self.is_counted:
            return
        self._check_vanished(known)
        partitions = self._options.partitions({topic: known[topic] for topic in self.ranks})
        tasks = merge_tasks(
            partitions, is_global=self._options.merge == "global", is_assigned=self._options.assigned is not None
        )
        read = {tp for of_task in tasks.values() for tp in of_task}
        unread = tuple(tp for tp in partitions if tp not in read)
        self._check_still_read(unread, known)
        self._counts, self.unread, self.is_counted = known, unread, True
        if unread:
            log.warning(
                "topics have different numbers of partitions (%s): a partition is read once every topic has it",
                _counts_text(known),
                extra={"action": "uneven-partitions"},
            )
        self._set_tasks(tasks)

    def set_topic_ids(self, found: Mapping[str, str]) -> None:
        """Update the ids of some topics. Read one that was created again from its beginning, or raise DataLostError."""
        anew = made_anew(self.topic_ids, found)
        if anew:
            report_made_anew(anew, is_error=self._options.fail_on_data_loss)
            self.losses += len(anew)
        self.topic_ids.update(found)
        self._made_anew |= anew
        for tp in [tp for tp in self.retained if tp.topic in anew]:
            del self.retained[tp]
            self.finished.discard(tp)
        self._set_tasks(self.tasks)

    def take_beginnings(self) -> Mapping[TopicPartition, Cursor]:
        """Return the beginnings of topics that were created again since the last call, as cursors for the offset."""
        begun = {tp: self._first_cursor(tp) for tp in self._cursors if tp.topic in self._made_anew}
        self._cursors.update(begun)
        self._made_anew.clear()
        return begun

    def _first_cursor(self, tp: TopicPartition) -> Cursor:
        """Return the cursor for reading a partition after a seek. A topic created again keeps its partition time."""
        cursor = self._cursors.get(tp, Cursor())
        return Cursor(time_ms=cursor.time_ms) if tp.topic in self._made_anew else cursor

    def pending_seeks(self, topics: Container[str]) -> Mapping[TopicPartition, Cursor]:
        """Return cursors at which the input of these topics must seek before it can fetch."""
        return {tp: self.retained[tp].cursor for tp in self._pending_seeks if tp.topic in topics}

    def seek_done(self, partitions: Collection[TopicPartition], *, generation: int) -> None:
        """Note that the input has sought these partitions; they can be fetched."""
        if generation == self.generation:
            self._pending_seeks.difference_update(partitions)
            self.lags.forget(partitions)

    def records_to_fetch(self, topics: Container[str]) -> Mapping[TopicPartition, int]:
        """Return how many records of each partition the input of these topics should fetch next."""
        resting = self.paused() | self.finished | self._pending_seeks
        room = fetch_bytes(self._options.input_buffer_max_bytes, held=self.held_bytes) / max(1, len(self.retained))
        # Assume that a partition without records so far has records as large as its topic's other partitions.
        of_topic = {tp.topic: each.record_bytes for tp, each in self.retained.items() if each.record_bytes is not None}
        most = self._options.max_poll_records
        counts = {
            tp: fetch_records(
                room=room,
                record_bytes=each.record_bytes or of_topic.get(tp.topic),
                held=each.records,
                max_poll_records=most,
            )
            for tp, each in self.retained.items()
            if tp not in resting and tp.topic in topics
        }
        return {tp: count for tp, count in counts.items() if count}

    def add_fetched(self, fetched: Fetched, *, generation: int, asked_ms: float, now_ms: float) -> None:
        """Add the result of a fetch that was sent at `asked_ms`. It is dropped if there was a seek since."""
        if generation != self.generation:
            return
        for chunk in fetched.chunks:
            self._add(chunk)
        known = self.lags.known(now_ms)
        # A plan distinguishes three kinds of lag only: 0, more, and unknown.
        self._mark_changed(tp for tp, lag in fetched.lags.items() if tp not in known or (known[tp] <= 0) != (lag <= 0))
        self.lags.update(fetched.lags, asked_ms=asked_ms)
        if self._ends is not None:
            self._mark_finished(tp for tp, lag in fetched.lags.items() if lag <= 0)

    def mark_unreachable(self, topics: Container[str]) -> None:
        """Forget the lags of an input that did not answer: they are unknown from now on."""
        self.lags.forget([tp for tp in self.retained if tp.topic in topics])

    def tasks_to_plan(self, now_ms: float) -> Mapping[int, Sequence[TopicPartition]]:
        """Return the tasks that may have records for a batch although the last plan took nothing (`found_nothing`): new
        records arrived, a lag became known, or the wait for an input ended, also because its lag became unknown.
        """
        known = self.lags.known(now_ms) if self.deadlines else {}
        due = {
            self._task_of[tp]
            for tp, at_ms in self.deadlines.items()
            if self._planned_ms < at_ms <= now_ms or tp not in known
        }
        return {task: of_task for task, of_task in self.tasks.items() if task in self._changed or task in due}

    def found_nothing(self, now_ms: float) -> None:
        """Note that a plan at this time found no record that can be taken."""
        self._changed.clear()
        self._planned_ms = now_ms

    def set_deadlines(self, tasks: Collection[int], deadlines: Mapping[TopicPartition, float]) -> None:
        """Replace the deadlines of these tasks, which were planned, and keep those of others."""
        kept = {tp: at_ms for tp, at_ms in self.deadlines.items() if self._task_of[tp] not in tasks}
        self.deadlines = {**kept, **deadlines}

    def take(self, counts: Mapping[TopicPartition, int]) -> Sequence[Segment]:
        """Move the first records of these partitions out of the buffer and into a batch."""
        segments = [self.retained[tp].take(count) for tp, count in counts.items()]
        copy_out(self.retained.values())
        self._cursors.update((segment.span.partition, segment.span.end) for segment in segments)
        self._changed.update(self.tasks)
        return segments

    @property
    def held_bytes(self) -> int:
        return sum([each.bytes for each in self.retained.values()])

    def is_filling(self, now_ms: float) -> bool:
        """Whether further reading fills the next batch: to `max_poll_records` if set, else until memory is full."""
        most, max_bytes = self._options.max_poll_records, self._options.input_buffer_max_bytes
        held, full = (sum(map(len, self.retained.values())), most) if most > 0 else (self.held_bytes, max_bytes)
        if held >= full:
            return False
        resting, known = self.paused() | self.finished, self.lags.known(now_ms)
        going = [(lag, self.retained[tp]) for tp, lag in known.items() if tp in self.retained and tp not in resting]
        return is_filling(held, (lag if most > 0 else lag * (each.record_bytes or 0) for lag, each in going), full=full)

    def paused(self) -> frozenset[TopicPartition]:
        """List partitions that are not fetched now because memory is full."""
        return paused_partitions(
            self.retained,
            self.tasks,
            max_bytes=self._options.input_buffer_max_bytes,
            max_records_per_partition=self._options.buffered_records_per_partition,
        )

    def _set_tasks(self, tasks: Mapping[int, Sequence[TopicPartition]]) -> None:
        self.tasks = tasks
        self._task_of = {tp: task for task, of_task in tasks.items() for tp in of_task}
        self._changed = set(tasks)
        partitions = self._task_of.keys()
        gone = self.retained.keys() - partitions
        self.lags.forget(gone)
        # Now, because a partition may be back before the next plan, which then would not notice that it was gone.
        self.deadlines = {tp: at_ms for tp, at_ms in self.deadlines.items() if tp not in gone}
        self.finished -= gone
        self._pending_seeks -= gone
        for tp in gone:
            del self.retained[tp]
        for tp in [tp for tp in partitions if tp not in self.retained]:
            cursor = self._first_cursor(tp)
            self.retained[tp] = Retained(
                tp,
                cursor,
                max_jump_ms=self._options.max_timestamp_jump_ms,
                undecodable=self._options.undecodable_of(tp.topic),
            )
            self.lags.forget([tp])
            if self._ends is not None and is_at(cursor, self._ends.get(tp, Cursor())):
                self.finished.add(tp)
            else:
                self._pending_seeks.add(tp)

    def _add(self, chunk: Chunk) -> None:
        kept: Chunk | None = chunk
        if self._ends is not None:
            kept, is_at_end = up_to(chunk, self._ends.get(chunk.partition, Cursor()))
            if is_at_end:
                self._mark_finished([chunk.partition])
        self.lags.subtract_fetched(chunk.partition, chunk.rows.num_rows)
        if kept is not None and chunk.partition in self.retained:
            self.retained[chunk.partition].add(kept)
            self._changed.add(self._task_of[chunk.partition])

    def _mark_changed(self, partitions: Iterable[TopicPartition]) -> None:
        self._changed.update(self._task_of[tp] for tp in partitions if tp in self._task_of)

    def _mark_finished(self, partitions: Iterable[TopicPartition]) -> None:
        new = {tp for tp in partitions if tp in self.retained} - self.finished
        self.finished |= new
        self._mark_changed(new)

    def _check_still_read(self, unread: Collection[TopicPartition], counts: Mapping[str, int]) -> None:
        stopped = sorted(_without_beginnings(self._cursors).keys() & set(unread))
        if stopped and self._options.fail_on_data_loss:
            raise SettingsError(
                f"partitions that this query has read would not be read any more: {', '.join(map(str, stopped))}; "
                f"the topics have different numbers of partitions ({_counts_text(counts)})",
                where="option topics",
                fix="Give the new topic as many partitions as the others have, or leave it out; with "
                "fail_on_data_loss=false the query goes on without these partitions",
            )

    def _check_vanished(self, counts: Mapping[str, int]) -> None:
        gone = frozenset(
            tp
            for tp in self.retained.keys() | _without_beginnings(self._cursors).keys()
            if tp.topic in counts and tp.partition >= counts[tp.topic]
        )
        if found := sorted(gone - self._vanished):
            what = f"partitions that this query has read do not exist any more: {', '.join(map(str, found))}"
            report_lost(what, is_error=self._options.fail_on_data_loss)
            self.losses += len(found)
        self._vanished = gone


def merge_tasks(
    partitions: Sequence[TopicPartition], *, is_global: bool, is_assigned: bool
) -> Mapping[int, Sequence[TopicPartition]]:
    """Map merge tasks to their partitions: partition p of every topic, or all in one task (`is_global`).

    With assigned partitions, a task has the assigned ones of its number. Otherwise a task needs this partition of every
    topic.
    """
    tasks: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        tasks.setdefault(0 if is_global else tp.partition, []).append(tp)
    topics = {tp.topic for tp in partitions}
    return {
        number: tuple(of_task)
        for number, of_task in sorted(tasks.items())
        if is_global or is_assigned or len(of_task) == len(topics)
    }


def _ranks(topics: Sequence[str]) -> Mapping[str, int]:
    return {topic: rank for rank, topic in enumerate(topics)}


def _without_beginnings(cursors: Mapping[TopicPartition, Cursor]) -> Mapping[TopicPartition, Cursor]:
    """Return the cursors that are not at the beginning. A missing cursor means the beginning."""
    beginning = Cursor()
    return {tp: cursor for tp, cursor in cursors.items() if cursor != beginning}


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} {count}" for topic, count in counts.items())
