"""Records as they are handed around: who fetched which, how long they are, and when they are.

A partition's log never changes its order, and everything else follows from the log: a record's *effective time* is the
greatest timestamp of its partition up to it. Kafka Streams picks the least head timestamp over the queues of a task
(`PartitionGroup`); sorting by `(effective time, topic rank, partition, ordinal)` gives that very sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NO_TIME_MS = -(2**62)
"""The partition time before the first record. Less than every timestamp, and safe to add to."""

ROW_SCHEMA = pa.schema(
    [
        ("offset", pa.string()),
        ("ordinal", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Records of one partition as an input fetched them, in log order. `timestamp_ms` (since the epoch) is null in a poison
record: one whose time cannot be told. `headers` is null where the input was not asked for them."""


class TopicPartition(NamedTuple):
    """One log. For Redis a stream, for files a folder."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cursor(NamedTuple):
    """Where a reader of one partition stands, behind the last record that it took.

    `offset` is that record's, as its input writes it; "" is the beginning, whatever that is by now. `ordinal` is the
    least number that the next record can have: the offset in Kafka, a count from the beginning elsewhere. `time_ms` is
    the partition time: the effective time of the last record.
    """

    offset: str = ""
    ordinal: int = 0
    time_ms: int = NO_TIME_MS


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Records of one partition that follow each other, at least one. `sizes` are bytes each, as KIP-770 counts them."""

    partition: TopicPartition
    rows: pa.RecordBatch
    sizes: NDArray[np.int64]


def record_size(topic: str, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> int:
    """Bytes of a record by KIP-770: key, value, time (8), offset (8), topic, partition (4), headers; null is 0."""
    return len(key or b"") + len(value or b"") + 20 + len(topic.encode()) + headers_bytes


def effective_times_ms(
    timestamps_ms: pa.Int64Array, *, time_ms: int, max_jump_ms: int | None = None
) -> NDArray[np.int64]:
    """Effective times of records that follow partition time `time_ms`: never less than the one before.

    A record that is more than `max_jump_ms` ahead of its partition's time counts as just so far ahead (the first record
    of a partition sets its time, however far). A poison record takes the partition's time as it is.
    """
    times = timestamps_ms.fill_null(NO_TIME_MS).to_numpy(zero_copy_only=False)
    running = np.maximum.accumulate(np.concatenate(([time_ms], times)))
    if max_jump_ms is None or not _jumps(running, max_jump_ms):
        return running[1:]
    return _held(times, time_ms, max_jump_ms)


def _jumps(running: NDArray[np.int64], max_jump_ms: int) -> bool:
    known = running[running > NO_TIME_MS]
    return bool((np.diff(known) > max_jump_ms).any())


def _held(times: NDArray[np.int64], time_ms: int, max_jump_ms: int) -> NDArray[np.int64]:
    held = np.empty(len(times), dtype=np.int64)
    for index, timestamp in enumerate(times.tolist()):
        if timestamp > time_ms:
            time_ms = timestamp if time_ms == NO_TIME_MS else min(timestamp, time_ms + max_jump_ms)
        held[index] = time_ms
    return held
