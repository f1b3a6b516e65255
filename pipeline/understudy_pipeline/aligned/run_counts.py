"""The counts of one run of a query: since its planner's process started, not since the checkpoint began."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from understudy_pipeline.aligned.lateness import Lateness

WINDOW_MS = 30_000
MAX_SAMPLES = 10_000
"""Most batches in the window. A planner that makes more in 30 s forgets the oldest."""


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
