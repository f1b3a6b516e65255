"""Memory of what is fetched and in no batch yet, in bytes (KIP-770) and in records. See docs/decisions/0011-memory.md.

Two rules keep a bound from stopping what it bounds. A partition that holds nothing is always fetched: its task may be
waiting for it. And what is paused follows from what is held alone: it is asked anew before every fetch, so nothing has
to be processed first, and no pause outlives its reason or touches anyone else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from understudy_pipeline.inputs.records import TopicPartition

UNKNOWN_RECORD_BYTES = 64 << 10
"""Of a partition's records before the first came: few are as large, so that its first fetch is none too many."""

MAX_FETCH_RECORDS = 10_000
"""One chunk; what executors hand to Spark has the same length."""

FETCHES_PER_SHARE = 4
"""One fetch of all partitions of a task brings about a quarter of its share: by so much the bound is soft."""


class Buffered(NamedTuple):
    """What is fetched of a partition and in no batch yet."""

    bytes: int
    records: int


NOTHING = Buffered(0, 0)


def share_bytes(max_bytes: int, tasks: int) -> int:
    """Of the bound, for each task: even, whatever they hold (KIP-770 shares evenly between threads)."""
    return max_bytes // max(1, tasks)


def paused_partitions(
    held: Mapping[TopicPartition, Buffered],
    tasks: Mapping[int, Sequence[TopicPartition]],
    *,
    max_bytes: int,
    max_records_per_partition: int | None = None,
) -> frozenset[TopicPartition]:
    """Partitions that are not to be fetched now: they hold data, and their task holds more than its share.

    A task that holds just its share goes on. `max_records_per_partition` (the deprecated bound) pauses single
    partitions that hold more than that.
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
    """Most records that the next fetch of a partition brings; 0 if it holds enough for any batch (KIP-41: what is
    retained is followed by a fetch of full size once it is less than `max_poll_records`).

    `share` is that of its task in bytes, with `partitions` partitions; `record_bytes` what a record of it takes,
    None if unknown; `held` the records that it holds. A partition that holds nothing is given one at least.
    """
    if 0 < max_poll_records <= held:
        return 0
    room_bytes = share / (FETCHES_PER_SHARE * partitions)
    fitting = int(room_bytes / max(1.0, UNKNOWN_RECORD_BYTES if record_bytes is None else record_bytes))
    return min(MAX_FETCH_RECORDS, max(1, fitting))
