"""Records: their schema, positions, sizes and effective times.

The *partition time* is the greatest timestamp of a partition up to a record. A record's *effective time* is the
greatest one of its partition up to it in its batch. Kafka Streams always takes the record with the least timestamp
among the heads of a task's queues (`PartitionGroup`). Sorting a batch by `(effective time, topic rank, partition,
ordinal)` gives the same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy_aligned.inputs.arrays import to_numpy

NO_TIME_MS = -(2**62)
"""The partition time before the first record. It is less than every timestamp, and sums with it do not overflow."""

ROW_SCHEMA = pa.schema(
    [
        ("offset", pa.string()),
        ("ordinal", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_type", pa.int32()),
    ]
)
"""Records of one partition as an input fetches them, in log order. `timestamp_ms` (since the epoch) is null in a poison
record: one without a usable timestamp. `headers` is null if there are no headers, or unless the option
`include_headers` is set. `timestamp_type` is Kafka's: -1 for no timestamp, 0 for the producer's time, 1 for the
broker's; null elsewhere.
"""


class TopicPartition(NamedTuple):
    """A partition of a topic: one log. In Redis it is a stream."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cursor(NamedTuple):
    """The position of a reader in one partition, behind the last record that it read.

    `offset` is that record's offset in the form of its input; "" is the beginning of the log. `ordinal` is the least
    number that the next record can have: its offset in Kafka, a count of records elsewhere. `time_ms` is the partition
    time at the last record.
    """

    offset: str = ""
    ordinal: int = 0
    time_ms: int = NO_TIME_MS


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """At least one record of a partition, in log order. `sizes` are the bytes of each, by `record_size`."""

    partition: TopicPartition
    rows: pa.RecordBatch
    sizes: NDArray[np.int64]


RECORD_OVERHEAD_BYTES = 96
"""Memory that a buffered record takes beside its bytes: an offset as text, ends of key and value, and the planner's
arrays, which have room to grow. Records of 10 bytes take 90 to 150 in all.
"""


def record_size(topic: str, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> int:
    """Count bytes as KIP-770 (key, value, timestamp of 8, offset of 8, topic, partition of 4, headers; null is 0), and
    the overhead of a record in memory.
    """
    return len(key or b"") + len(value or b"") + 20 + len(topic.encode()) + headers_bytes + RECORD_OVERHEAD_BYTES


def partition_times_ms(
    timestamps_ms: pa.Int64Array, *, time_ms: int, max_jump_ms: int | None = None
) -> NDArray[np.int64]:
    """Return the partition time at each of the records after partition time `time_ms`. It never decreases.

    One record advances the partition time by at most `max_jump_ms`; the first record of a partition sets it freely. A
    poison record does not change it.
    """
    return running_times_ms(to_numpy(timestamps_ms, null=NO_TIME_MS), time_ms=time_ms, max_jump_ms=max_jump_ms)


def running_times_ms(times: NDArray[np.int64], *, time_ms: int, max_jump_ms: int | None = None) -> NDArray[np.int64]:
    """Do the same for timestamps that are NO_TIME_MS in poison records."""
    if max_jump_ms is not None and _jumps(time_ms, times, max_jump_ms):
        return _capped(times, time_ms, max_jump_ms)
    return _running_maximum(time_ms, times)


def running_maxima(values: NDArray[np.int64], counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the greatest of the values so far, of each of the runs that follow each other and have so many values.

    Most runs ascend, so only the others are visited.
    """
    ends = np.cumsum(counts)
    falls = np.setdiff1d(np.flatnonzero(values[1:] < values[:-1]) + 1, ends)
    if len(falls):
        values = values.copy()
        for run in np.unique(np.searchsorted(ends, falls, "right")).tolist():
            of_run = values[ends[run] - counts[run] : ends[run]]
            np.maximum.accumulate(of_run, out=of_run)
    return values


def with_partition_times(timestamps_ms: NDArray[np.int64], partition_times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace missing timestamps (NO_TIME_MS) by the partition time. One before the first timestamp stays missing."""
    return np.where(timestamps_ms == NO_TIME_MS, partition_times_ms, timestamps_ms)


def effective_times_ms(
    timestamps_ms: NDArray[np.int64], partition_times_ms: NDArray[np.int64], *, begin_ms: int = NO_TIME_MS
) -> NDArray[np.int64]:
    """Compute effective times of records of one partition, by which a batch is sorted. They never decrease within a
    batch.

    `begin_ms` is the effective time of the record before them in the batch, NO_TIME_MS for the first one. A timestamp
    counts no more than the partition time at its record, which `max_timestamp_jump_ms` can hold back.
    """
    return _running_maximum(begin_ms, np.minimum(timestamps_ms, partition_times_ms))


def _running_maximum(first: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(np.maximum.accumulate(values), first)


def _jumps(time_ms: int, times: NDArray[np.int64], max_jump_ms: int) -> bool:
    running = np.maximum.accumulate(np.concatenate(([time_ms], times)))
    known = running[running > NO_TIME_MS]
    return bool((np.diff(known) > max_jump_ms).any())


def _capped(times: NDArray[np.int64], time_ms: int, max_jump_ms: int) -> NDArray[np.int64]:
    capped = np.empty(len(times), dtype=np.int64)
    for index, timestamp in enumerate(times.tolist()):
        if timestamp > time_ms:
            time_ms = timestamp if time_ms == NO_TIME_MS else min(timestamp, time_ms + max_jump_ms)
        capped[index] = time_ms
    return capped
