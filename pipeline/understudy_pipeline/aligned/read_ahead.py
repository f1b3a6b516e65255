"""What reading ahead has brought and what it wants next: of all inputs, without threads, locks or I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from understudy_pipeline.aligned.ends import is_at, up_to
from understudy_pipeline.aligned.lags import Lags
from understudy_pipeline.aligned.memory import Buffered, fetch_records, paused_partitions, share_bytes
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.retained import Retained, Segment
from understudy_pipeline.inputs.protocol import DataLostError, Fetched
from understudy_pipeline.inputs.records import Chunk, Cursor, TopicPartition
from understudy_shared.errors import SettingsError

log = logging.getLogger(__name__)


class ReadAhead:
    """Use under one lock. `generation` tells what was asked before a seek from what was asked after it."""

    def __init__(self, options: AlignedOptions) -> None:
        self.tasks: Mapping[int, Sequence[TopicPartition]] = {}
        """Empty until the partitions of every topic are known."""
        self.retained: dict[TopicPartition, Retained] = {}
        """Just the partitions of the tasks."""
        self.lags = Lags(options.lag_max_age_ms)
        self.generation = 0
        self.finished: set[TopicPartition] = set()
        """Partitions of which everything up to the ends that were set is fetched."""
        self._options = options
        self._counts: dict[str, int] = {}
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._pending_seeks: set[TopicPartition] = set()
        self._ends: Mapping[TopicPartition, Cursor] | None = None

    def is_positioned_at(self, cursors: Mapping[TopicPartition, Cursor]) -> bool:
        """Whether the next batch would follow these; nobody has said where to stand at first."""
        return self.generation > 0 and _without_beginnings(cursors) == _without_beginnings(self._cursors)

    def seek_to(self, cursors: Mapping[TopicPartition, Cursor]) -> None:
        """Forget what was fetched and go on behind these, once the inputs were told."""
        self.generation += 1
        self._cursors = dict(cursors)
        self.retained.clear()
        self.finished.clear()
        self._pending_seeks.clear()
        self._set_tasks(self.tasks)

    def set_ends(self, ends: Mapping[TopicPartition, Cursor]) -> None:
        """Nothing that comes behind these is wanted, nor any partition that has none of them."""
        self._ends = dict(ends)
        if self.generation:
            self.seek_to(self._cursors)

    def is_complete(self) -> bool:
        """Whether everything up to the ends that were set is fetched and in a batch."""
        return bool(self.tasks) and all(tp in self.finished and not held for tp, held in self.retained.items())

    def set_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Partitions of some topics, now. Raises SettingsError and DataLostError; what was known is kept then."""
        known = {**self._counts, **counts}
        if any(topic not in known for topic in self._options.topics):
            self._counts = known
            return
        if known == self._counts and self.tasks:
            return
        unequal = self._options.merge == "task" and len({known[topic] for topic in self._options.topics}) > 1
        if unequal and not self.tasks:
            raise SettingsError(
                f"the topics have different numbers of partitions: {_counts_text(known)}",
                where="option merge=task",
                fix="Give them the same number, keyed alike, or set merge=global to merge all partitions together",
            )
        self._check_vanished(known)
        if unequal:
            log.warning(
                "topics have different numbers of partitions (%s): those that not all have yet are not read",
                _counts_text(known),
                extra={"action": "uneven-partitions"},
            )
        self._counts = known
        self._set_tasks(merge_tasks(self._options.topics, known, is_global=self._options.merge == "global"))

    def pending_seeks(self, topics: Collection[str]) -> Mapping[TopicPartition, Cursor]:
        """Where the input of these topics must be told to go on."""
        return {tp: self.retained[tp].cursor for tp in self._pending_seeks if tp.topic in topics}

    def seek_done(self, partitions: Collection[TopicPartition], *, generation: int) -> None:
        """The input goes on there."""
        if generation == self.generation:
            self._pending_seeks.difference_update(partitions)
            self.lags.forget(partitions)

    def records_to_fetch(self, topics: Collection[str]) -> Mapping[TopicPartition, int]:
        """What the input of these topics shall bring next, in records of each partition."""
        resting = self.paused() | self.finished | self._pending_seeks
        share = share_bytes(self._options.input_buffer_max_bytes, len(self.tasks))
        wanted = {
            tp: fetch_records(
                share=share,
                partitions=len(partitions),
                record_bytes=self.retained[tp].record_bytes,
                held=len(self.retained[tp]),
                max_poll_records=self._options.max_poll_records,
            )
            for partitions in self.tasks.values()
            for tp in partitions
            if tp.topic in topics and tp not in resting
        }
        return {tp: count for tp, count in wanted.items() if count}

    def add_fetched(self, fetched: Fetched, *, generation: int, asked_ms: float) -> None:
        """What a turn brought that was asked at `asked_ms`; of no use if there was a seek since."""
        if generation != self.generation:
            return
        for chunk in fetched.chunks:
            self._add(chunk)
        self.lags.update(fetched.lags, asked_ms=asked_ms)
        if self._ends is not None:
            self.finished.update(tp for tp, lag in fetched.lags.items() if lag <= 0 and tp in self.retained)

    def mark_unreachable(self, topics: Collection[str]) -> None:
        """The input of these topics did not answer: nothing is known of its ends."""
        self.lags.forget([tp for tp in self.retained if tp.topic in topics])

    def take(self, counts: Mapping[TopicPartition, int]) -> Sequence[Segment]:
        """The first records of these partitions, which are in a batch from now on."""
        segments = [self.retained[tp].take(count) for tp, count in counts.items()]
        self._cursors.update((segment.span.partition, segment.span.end) for segment in segments)
        return segments

    def buffered(self) -> Mapping[TopicPartition, Buffered]:
        """What is retained, of each partition."""
        return {tp: Buffered(each.bytes, len(each)) for tp, each in self.retained.items()}

    def paused(self) -> frozenset[TopicPartition]:
        """Partitions that memory has no room for now."""
        return paused_partitions(
            self.buffered(),
            self.tasks,
            max_bytes=self._options.input_buffer_max_bytes,
            max_records_per_partition=self._options.buffered_records_per_partition,
        )

    def _set_tasks(self, tasks: Mapping[int, Sequence[TopicPartition]]) -> None:
        self.tasks = tasks
        partitions = {tp for of_task in tasks.values() for tp in of_task}
        gone = self.retained.keys() - partitions
        self.lags.forget(gone)
        self.finished -= gone
        self._pending_seeks -= gone
        for tp in gone:
            del self.retained[tp]
        for tp in sorted(partitions - self.retained.keys()):
            cursor = self._cursors.get(tp, Cursor())
            self.retained[tp] = Retained(tp, cursor, max_jump_ms=self._options.max_timestamp_jump_ms)
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
                self.finished.add(chunk.partition)
        self.lags.subtract_fetched(chunk.partition, chunk.rows.num_rows)
        if kept is not None and chunk.partition in self.retained:
            self.retained[chunk.partition].add(kept)

    def _check_vanished(self, counts: Mapping[str, int]) -> None:
        gone = sorted(
            tp
            for tp in self.retained.keys() | _without_beginnings(self._cursors).keys()
            if tp.topic in counts and tp.partition >= counts[tp.topic]
        )
        if not gone:
            return
        what = f"partitions that were read from do not exist any more: {', '.join(map(str, gone))}"
        if self._options.fail_on_data_loss:
            raise DataLostError(
                what,
                where="option topics",
                fix="Bring them back, or start with a new checkpoint; fail_on_data_loss=false goes on without them",
            )
        log.warning("%s", what, extra={"action": "data-lost"})


def merge_tasks(
    topics: Sequence[str], counts: Mapping[str, int], *, is_global: bool
) -> Mapping[int, Sequence[TopicPartition]]:
    """What is merged with what: partition p of every topic that has so many, or all of them in one task."""
    if is_global:
        return {0: tuple(TopicPartition(topic, p) for topic in topics for p in range(counts[topic]))}
    least = min(counts[topic] for topic in topics)
    return {p: tuple(TopicPartition(topic, p) for topic in topics) for p in range(least)}


def _without_beginnings(cursors: Mapping[TopicPartition, Cursor]) -> Mapping[TopicPartition, Cursor]:
    """Without those at the beginning, which need not be named."""
    return {tp: cursor for tp, cursor in cursors.items() if cursor != Cursor()}


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} {count}" for topic, count in counts.items())
