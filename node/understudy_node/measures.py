"""The counts of a node at work, for its metrics: the ages of its answers, failures, restored bytes.

Figures that the node's state shows when the metrics are asked for are not counted here.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from understudy_node.freshness import CommitToVisible
from understudy_shared.base.words import LagInfo
from understudy_shared.telemetry.histogram import OFFSET_LAG_BOUNDS, STALENESS_BOUNDS_MS, Histogram


class During(StrEnum):
    """The work in which the storage failed."""

    FOLLOW = "follow"
    """A look at the commit log."""
    REPLICA = "replica"
    """A step of a replica: a restore, or the changes of a version."""


class ReadLags:
    """The ages of the versions from which this node answered. A lookup counts once, and so do the keys of a hop or a
    batch that are of one partition. Used on the serving loop.
    """

    def __init__(self) -> None:
        self.staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self.offset_lag = Histogram(OFFSET_LAG_BOUNDS)
        self.unknown = 0

    @property
    def total(self) -> int:
        """The number of reads."""
        return self.offset_lag.total + self.unknown

    def read(self, lag: LagInfo, times: int) -> None:
        """Count reads that were answered at this lag."""
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
        """Times that a store partition moved onto a newer snapshot."""
        self.damaged_copies = 0
        """Times that a replica's local copy was found damaged."""
