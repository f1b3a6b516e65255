"""Counters of a node for its metrics: the ages of its answers, failures, restored bytes, and the time from a commit
until this node can serve it.

Figures that can be read from the node's state at a scrape are not counted here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from copy import deepcopy
from enum import StrEnum
from threading import Lock

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.words import LagInfo
from understudy_shared.bus.messages import Freshness
from understudy_shared.telemetry.metrics import OFFSET_LAG_BOUNDS, STALENESS_BOUNDS_MS, Histogram, upper_bound

BOUNDS_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)

SLICE_MS = 5_000.0
SLICES = 12
"""A minute, in parts: what is older than that is left out a part at a time."""


def _fine_bounds() -> tuple[int, ...]:
    """Return bounds: every millisecond up to 20, then each a tenth above the one before, up to an hour."""
    bounds = list(range(1, 21))
    while bounds[-1] < 3_600_000:
        bounds.append(math.ceil(bounds[-1] * 1.1))
    return tuple(bounds)


FINE_BOUNDS_MS = _fine_bounds()


class CommitToVisible:
    """The delays of one node: all, and the last minute's (time is passed in)."""

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS_MS)
        self._slices: deque[tuple[int, list[int]]] = deque(maxlen=SLICES)
        """Number and counts of each part of the minute with an observation."""
        self._lock = Lock()

    def observe(self, delay_ms: float, now_ms: float) -> None:
        """Count a version that became visible now, so long after its commit. Called from any thread."""
        number = int(now_ms // SLICE_MS)
        with self._lock:
            self._histogram.observe(delay_ms)
            if not self._slices or self._slices[-1][0] < number:
                self._slices.append((number, [0] * (len(FINE_BOUNDS_MS) + 1)))
            self._slices[-1][1][bisect_left(FINE_BOUNDS_MS, delay_ms)] += 1

    def freshness(self, now_ms: float) -> Freshness | None:
        """Return median and 99th percentile of the last minute, rounded up; None if nothing was observed."""
        oldest = int(now_ms // SLICE_MS) - SLICES + 1
        with self._lock:
            parts = [counts for number, counts in self._slices if number >= oldest]
            counts = [sum(column) for column in zip(*parts, strict=True)]
        p50_ms, p99_ms = (upper_bound(FINE_BOUNDS_MS, counts, share) for share in (0.5, 0.99))
        if p50_ms is None or p99_ms is None:
            return None
        return Freshness(p50_ms=_whole(p50_ms), p99_ms=_whole(p99_ms))

    @property
    def histogram(self) -> Histogram:
        with self._lock:
            return deepcopy(self._histogram)


def _whole(ms: float) -> int:
    return CEILING if ms == math.inf else int(ms)


class During(StrEnum):
    """The work during which the storage failed."""

    FOLLOW = "follow"
    """A poll of the commit log."""
    REPLICA = "replica"
    """A step of a replica: a restore, or the changes of a version."""


class ReadLags:
    """The ages of the versions that this node answered from. A lookup counts once, and so do the keys of one partition
    in a hop or a batch. Used on the serving loop.
    """

    def __init__(self) -> None:
        self.staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self.offset_lag = Histogram(OFFSET_LAG_BOUNDS)
        self.unknown = 0

    @property
    def total(self) -> int:
        return self.offset_lag.total + self.unknown

    def read(self, lag: LagInfo, times: int) -> None:
        if lag.offset_lag is None:
            self.unknown += times
        else:
            self.offset_lag.observe_many(lag.offset_lag, times)
        if lag.time_lag_ms is not None:
            self.staleness_ms.observe_many(lag.time_lag_ms, times)


class Measures:
    """The counts of one node, over all its generations."""

    def __init__(self) -> None:
        self.lags = ReadLags()
        self.visible = CommitToVisible()
        self.storage_errors: Counter[During] = Counter()
        self.restored_bytes = 0
        """Bytes of snapshots that were linked, copied or downloaded."""
        self.replaced_bases = 0
        self.damaged_copies = 0
