"""Takes a planned batch out of the buffers, and makes its offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from understudy_aligned.batch_plan import Batch
from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.partition_buffer import Segment
from understudy_aligned.read_ahead import ReadAhead
from understudy_aligned.run_counts import Lateness, Taken, record_lateness


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
    """Its end, but for the counters that only a plan knows."""


def take_batch(
    ahead: ReadAhead, start: SourceOffset, batch: Batch, *, fingerprint: Mapping[str, object]
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
    poison = {tp: _undecodable(segment) for tp, segment in segments.items()}
    end = replace(
        start,
        fingerprint=fingerprint,
        cursors={**start.cursors, **begun, **{tp: segment.span.end for tp, segment in segments.items()}},
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
    """Look at a settled batch, behind which every partition has records. They stay in the buffers."""
    segments = {tp: ahead.retained[tp].head(count) for tp, count in taken.items()}
    cursors = {tp: segments[tp].span.end if tp in segments else held.cursor for tp, held in ahead.retained.items()}
    end = replace(
        start,
        fingerprint=fingerprint,
        cursors={**start.cursors, **cursors},
        topic_ids={**start.topic_ids, **ahead.topic_ids},
        stream_time_ms=max(start.stream_time_ms, min(cursor.time_ms for cursor in cursors.values())),
        batches=start.batches + 1,
    )
    return SettledBatch([(segment.span, segment.rows) for segment in segments.values()], end)


def _undecodable(segment: Segment) -> int:
    return int((segment.timestamps_ms == NO_TIME_MS).sum())


def _stream_time_ms(ahead: ReadAhead, batch: Batch) -> int:
    """Return the least partition time of the inputs that count behind the batch. Without one, return the greatest.

    An input that is given up on does not count, nor one that has ended without ever having had a record.
    """
    counting = [
        held.cursor.time_ms
        for tp, held in ahead.retained.items()
        if len(held) or tp not in batch.may_pass or (tp in ahead.finished and held.cursor.time_ms > NO_TIME_MS)
    ]
    return min(counting) if counting else max(held.cursor.time_ms for held in ahead.retained.values())
