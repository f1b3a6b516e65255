"""Readings, from which answers are made: a version of a replica, its lag now, and their JSON.

The JSON is the same for all lookups of a moment, and computing the lag costs several times what a lookup in memory
does. So both are cached for as long as they equal what new ones would be: less than a millisecond.
"""

from __future__ import annotations

from typing import NamedTuple

from understudy_node.counters import ReadLags
from understudy_node.follow.end import End, against_known_end, holds_until_ms
from understudy_node.replica.progress import Progress
from understudy_node.replica.replica_identity import Origin
from understudy_node.replica.task_view import TaskView
from understudy_shared.base.words import LagInfo


class Reading(NamedTuple):
    """A version and its lag; `tail` is the JSON of its age and origin, which ends each answer."""

    view: TaskView
    lag: LagInfo
    tail: bytes


class _CachedReading(NamedTuple):
    """The cached lag and JSON of the last reading, and the inputs that they were made of, except for the view, which
    must not be kept alive.
    """

    stamp: bytes
    end: End
    known_end: int
    origin_json: bytes
    until_ms: float
    lag: LagInfo
    tail: bytes


class Readings:
    """The maker of one replica's readings, on the serving loop.

    `answered` is the number of reads that were answered from the reading made last; the answering code adds to it.
    """

    def __init__(self, origin: Origin, progress: Progress, lags: ReadLags | None = None) -> None:
        """Take the parts of a reading. `lags` are those of all reads of the node."""
        self.answered = 0
        self._origin = origin
        self._progress = progress
        self._lags = ReadLags() if lags is None else lags
        self._kept: _CachedReading | None = None

    def of(self, view: TaskView, known_end: int = 0) -> Reading:
        """Return the reading of a view, now, against the newer of the own end and `known_end`."""
        progress = self._progress
        end, now_ms = progress.end, progress.now_ms()  # after the view: a race overstates the lag
        kept, origin_json = self._kept, self._origin.json
        if (
            kept is not None
            and now_ms <= kept.until_ms
            and kept.stamp is view.stamp
            and kept.end is end
            and kept.known_end == known_end
            and kept.origin_json is origin_json
        ):
            return Reading(view, kept.lag, kept.tail)
        if self.answered:
            self.count()
        own = progress.lag_at(view.version, end, now_ms=now_ms)
        lag = against_known_end(own, known_end)
        tail = _tail(view, lag, origin_json)
        until_ms = holds_until_ms(own, end, expiry_ms=progress.end_expiry_ms)
        self._kept = _CachedReading(view.stamp, end, known_end, origin_json, until_ms, lag, tail)
        return Reading(view, lag, tail)

    def count(self) -> None:
        """Count the reads that were answered since the last time: for metrics, and before another lag is read."""
        answered, self.answered = self.answered, 0
        if answered and self._kept is not None:
            self._lags.read(self._kept.lag, answered)


def _tail(view: TaskView, lag: LagInfo, origin_json: bytes) -> bytes:
    end, offset_lag, time_lag_ms = lag.end_offset_position, lag.offset_lag, lag.time_lag_ms
    return (
        b'%b,"lag":{"current_offset_position":%d,"end_offset_position":%b,"offset_lag":%b,"time_lag_ms":%b},'
        b'"served_by":%b,%b}\n'
    ) % (
        view.stamp,
        view.version,
        b"null" if end is None else b"%d" % end,
        b"null" if offset_lag is None else b"%d" % offset_lag,
        b"null" if time_lag_ms is None else b"%d" % time_lag_ms,
        origin_json,
        view.seal,
    )
