"""Bounds the buffered records, in bytes (KIP-770) and in records. See docs/decisions/0011-memory.md.

Two rules prevent a livelock. A partition with an empty buffer is always fetched: its task may be waiting for it. And a
pause is not a state: what is paused is computed from the buffers before every fetch, so that nothing has to be
processed before a partition is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from understudy_pipeline.inputs.records import TopicPartition

UNKNOWN_RECORD_BYTES = 64 << 10
"""Assumed size of a record before the first one arrived. Few records are larger, so a first fetch is not too large."""

MAX_FETCH_RECORDS = 10_000
"""Largest chunk. Executors hand batches of the same length to Spark."""

FETCHES_PER_SHARE = 4
"""One fetch of all partitions of a task brings about a quarter of its share. The bound may be exceeded by that much."""


class Buffered(NamedTuple):
    """Size of the records of a partition that are fetched and in no batch yet."""

    bytes: int
    records: int


NOTHING = Buffered(0, 0)


def share_bytes(max_bytes: int, tasks: int) -> int:
    """Return each task's equal share of the bound, whatever it holds (KIP-770 shares equally between threads)."""
    return max_bytes // max(1, tasks)


def paused_partitions(
    held: Mapping[TopicPartition, Buffered],
    tasks: Mapping[int, Sequence[TopicPartition]],
    *,
    max_bytes: int,
    max_records_per_partition: int | None = None,
) -> frozenset[TopicPartition]:
    """List partitions that must not be fetched now: they have records, and their task exceeds its share.

    A task that holds exactly its share is not paused. `max_records_per_partition` (the deprecated bound) also pauses
    each partition that has more records than that.
    """
    share = share_bytes(max_bytes, len(tasks))
    paused = set()
    for partitions in tasks.values():
        holding = {partition: held[partition] for partition in partitions if held.get(partition, NOTHING).records}
        is_over = sum(each.bytes for each in holding.values()) > share
        for partition, each in holding.items():
            if is_over or (max_records_per_partition is not None and each.records > max_records_per_partition):
                paused.add(partition)
    return frozenset(paused)


def fetch_records(*, share: int, partitions: int, record_bytes: float | None, held: int, max_poll_records: int) -> int:
    """Return how many records the next fetch of a partition brings at most. 0 if `held`, its buffered records, fill any
    batch.

    As in KIP-41, a partition that holds fewer than `max_poll_records` gets a full fetch. `share` is its task's share in
    bytes, `partitions` the task's number of partitions, and `record_bytes` the partition's mean record size (None if
    unknown). The result is at least 1 for an empty buffer, however large the records.
    """
    if 0 < max_poll_records <= held:
        return 0
    room_bytes = share / (FETCHES_PER_SHARE * partitions)
    fitting = int(room_bytes / max(1.0, UNKNOWN_RECORD_BYTES if record_bytes is None else record_bytes))
    return min(MAX_FETCH_RECORDS, max(1, fitting))
