"""Estimates for how long Spark will keep a version, by what it has kept and by the pace of the commits (pure, but for
`Retention`, which asks the history).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from understudy_node.follow.history import CommitHistory

PACE_COMMITS: Final = 20
"""Number of the newest commits whose pace counts."""


class _Known(NamedTuple):
    """The retained range when the end was at `end`, and the time between its commits."""

    end: int
    first: int
    interval_s: float


def retained_for_s(version: int, first: int, interval_s: float) -> int:
    """Return for how long a version is kept when one is purged, from `first` on, at each commit."""
    return max(0, int((version - first + 1) * interval_s))


class Retention:
    """The estimates of one node. The commit log is listed once for each version."""

    def __init__(self) -> None:
        self._known: _Known | None = None

    def of(self, version: int, end: int, history: CommitHistory) -> int | None:
        """Return for how many seconds Spark will keep a version, about; None where it has purged nothing yet, so that
        it is unknown how many it keeps. Reads files.
        """
        known = self._known
        if known is None or known.end != end:
            retained = history.retained()
            pace = None if retained is None else _pace_s(history, *retained)
            if retained is None or pace is None or retained[0] <= 1:
                return None
            known = self._known = _Known(end, retained[0], pace)
        return retained_for_s(version, known.first, known.interval_s)


def _pace_s(history: CommitHistory, first: int, last: int) -> float | None:
    """Return the mean time between the newest commits, None where their times do not say it."""
    since = max(first, last - PACE_COMMITS)
    began_ns, ended_ns = history.commit_time_ns(since), history.commit_time_ns(last)
    if began_ns is None or ended_ns is None or since == last or ended_ns <= began_ns:
        return None
    return (ended_ns - began_ns) / (last - since) / 1e9
