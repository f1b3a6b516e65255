"""`record-lateness-avg` and `record-lateness-max`: how far a record's timestamp is behind its task's stream time.

Stream time is the greatest timestamp that the task has processed (`PartitionGroup`). Within a batch effective times
ascend, so stream time at a record is the greater of its effective time and the stream time before the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_pipeline.inputs.records import NO_TIME_MS


class Taken(NamedTuple):
    """A queue whose first `records` are in a batch."""

    times_ms: NDArray[np.int64]
    """Effective times."""

    timestamps_ms: NDArray[np.int64]
    """Timestamps of the records. NO_TIME_MS marks a poison record, which does not count."""

    records: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of a set of records. Add the values of several tasks or batches with `+`."""

    records: int = 0
    total_ms: float = 0.0
    max_ms: int = 0

    @property
    def avg_ms(self) -> float | None:
        """None without records."""
        return self.total_ms / self.records if self.records else None

    def __add__(self, other: Lateness) -> Lateness:
        return Lateness(self.records + other.records, self.total_ms + other.total_ms, max(self.max_ms, other.max_ms))


def record_lateness(queues: Iterable[Taken], *, stream_time_ms: int) -> Lateness:
    """Lateness of one task's records in a batch. `stream_time_ms` is the task's stream time before the batch."""
    return sum((_of_queue(queue, stream_time_ms) for queue in queues), start=Lateness())


def _of_queue(queue: Taken, stream_time_ms: int) -> Lateness:
    timestamps_ms = queue.timestamps_ms[: queue.records]
    known = timestamps_ms > NO_TIME_MS
    if not known.any():
        return Lateness()
    reached_ms = np.maximum(queue.times_ms[: queue.records][known], stream_time_ms)
    # `max_timestamp_jump_ms` can put a record's timestamp ahead of its effective time. Such a record is not late.
    late_ms = np.maximum(reached_ms - timestamps_ms[known], 0)
    return Lateness(len(late_ms), float(late_ms.sum(dtype=np.float64)), int(late_ms.max()))
