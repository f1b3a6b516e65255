"""The counts of one run of a query: since its planner's process started, not since the checkpoint began.

`record-lateness-avg` and `record-lateness-max`: how far a record's timestamp is behind its task's stream time.

Stream time is the greatest timestamp that the task has processed (`PartitionGroup`). Within a batch effective times
ascend, so stream time at a record is the greater of its effective time and the stream time before the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from understudy_aligned.inputs.records import NO_TIME_MS

WINDOW_MS = 30_000
MAX_SAMPLES = 10_000
"""Most batches in the window. A planner that makes more in 30 s forgets the oldest."""


class Taken(NamedTuple):
    """The records of one queue that are in a batch."""

    times_ms: NDArray[np.int64]
    """Effective times."""

    timestamps_ms: NDArray[np.int64]
    """Timestamps of the records. NO_TIME_MS marks a poison record, which does not count."""

    stream_time_ms: int
    """The stream time of its task before the batch."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of a set of records. Add the values of several batches with `+`."""

    records: int = 0
    total_ms: float = 0.0
    max_ms: int = 0

    @property
    def avg_ms(self) -> float | None:
        """None without records."""
        return self.total_ms / self.records if self.records else None

    def __add__(self, other: Lateness) -> Lateness:
        return Lateness(self.records + other.records, self.total_ms + other.total_ms, max(self.max_ms, other.max_ms))


def record_lateness(taken: Sequence[Taken]) -> Lateness:
    """Return the lateness of a batch's records."""
    if not taken:
        return Lateness()
    timestamps_ms = np.concatenate([each.timestamps_ms for each in taken])
    before_ms = np.repeat([each.stream_time_ms for each in taken], [len(each.timestamps_ms) for each in taken])
    reached_ms = np.maximum(np.concatenate([each.times_ms for each in taken]), before_ms)
    # `max_timestamp_jump_ms` can put a record's timestamp ahead of its effective time. Such a record is not late.
    late_ms = np.maximum(reached_ms - timestamps_ms, 0)[timestamps_ms > NO_TIME_MS]
    return Lateness(len(late_ms), float(late_ms.sum(dtype=np.float64)), int(late_ms.max(initial=0)))


class Sample(NamedTuple):
    """One planned batch."""

    at_ms: float
    records: int
    enforced: int
    lateness: Lateness
    plan_ms: float = 0.0
    """The time to plan it, without waiting for records."""


class Window:
    """Batches of the last 30 s."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Add a planned batch."""
        self._samples.append(sample)

    def samples(self, now_ms: float) -> Sequence[Sample]:
        """Return the batches of the last 30 s. Older ones are removed."""
        while self._samples and now_ms - self._samples[0].at_ms > WINDOW_MS:
            self._samples.popleft()
        return tuple(self._samples)

    def enforced_rate(self, now_ms: float) -> float:
        """Return enforced records per second: those taken after the wait for an empty input ran out."""
        return sum(sample.enforced for sample in self.samples(now_ms)) * 1000 / WINDOW_MS


@dataclass(slots=True)
class RunCounts:
    """Only the thread that plans changes them."""

    window: Window = field(default_factory=Window)
    batches: int = 0
    records: int = 0
    plan_ms: float = 0.0
    lateness: Lateness = field(default_factory=Lateness)
    empty_plans: int = 0
    """The number of times that Spark asked for a batch in vain."""

    dead_letters: int = 0
    """Records without a usable timestamp of batches that were planned with `undecodable=aside`."""

    compacted: int | None = None
    """Records that batches had when they were planned, and not when executors read them. None: executors cannot say."""

    spooled_ahead: int = 0
    """Batches whose spool file was there when Spark asked for them."""

    def add(self, sample: Sample, *, dead_letters: int) -> None:
        """Count a planned batch."""
        self.window.add(sample)
        self.batches += 1
        self.records += sample.records
        self.plan_ms += sample.plan_ms
        self.lateness += sample.lateness
        self.dead_letters += dead_letters
