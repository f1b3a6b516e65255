"""Readings, from which answers are made: a version of a replica, its lag behind the end now, and their JSON.

The JSON is the same for all lookups of a moment, and computing the lag costs several times what a lookup in memory
does. So both are cached for as long as they equal what new ones would be: less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from understudy_node.counters import ReadLags
from understudy_node.follow.end import End, against_known_end, holds_until_ms, lag_of, since_commit_ms
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.task_view import Origin, TaskView
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import LagInfo


class Progress:
    """One task against the end of the committed history, as long as versions fit the layout of `place`."""

    def __init__(
        self, place: StorePlace, around: Surroundings, *, end: Callable[[], End], clock: Clock, end_expiry_ms: float
    ) -> None:
        """Take the end and the layout. `end_expiry_ms`: how long a confirmation of the end counts."""
        self._place = place
        self._around = around
        self.end_expiry_ms = end_expiry_ms
        self.now_ms = clock.monotonic_ms
        self._wall_us = clock.wall_us
        self.end = end
        """A function that returns the end of the committed history, as far as it is known."""
        self._newest_fitting = 0
        self._judged_end = 0

    @property
    def knows_end(self) -> bool:
        """Whether the end is confirmed, and was not too long ago."""
        confirmed_ms = self.end().confirmed_ms
        return confirmed_ms is not None and self.now_ms() - confirmed_ms <= self.end_expiry_ms

    @property
    def target(self) -> int:
        """The newest version that may be shown: the newest of this layout, unless a ceiling limits it."""
        newest, ceiling = self.newest, self._around.ceiling()
        return newest if ceiling is None else min(newest, ceiling)

    @property
    def is_limited(self) -> bool:
        """Whether a ceiling is set: then the replica may lag without being behind its target."""
        return self._around.ceiling() is not None

    @property
    def newest(self) -> int:
        """The end, or the last version before the query changed its layout."""
        end = self.end().version
        if end == self._judged_end:
            return self._newest_fitting
        try:
            record = self._around.history.record(end)
        except UnderstudyError:
            return end  # the step towards it reports the error
        if record is not None:
            self._newest_fitting = end if self._place.fits(record) else self._newest_fitting
            self._judged_end = end
        return self._newest_fitting

    def lag_of(self, view: TaskView) -> LagInfo:
        """Return the lag of a view, now."""
        return self.lag_at(view.version, self.end(), now_ms=self.now_ms())

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        """Return a version's lag against an end. Read the end after the version, so that a race overstates the lag."""
        return lag_of(
            version, end, self._around.history.known_commit_time_ns, now_ms=now_ms, expiry_ms=self.end_expiry_ms
        )

    def since_commit_ms(self, version: int) -> float | None:
        """Return how long ago a version was committed, if that is known; read no files."""
        committed_ns = self._around.history.known_commit_time_ns(version)
        return since_commit_ms(committed_ns, self.end(), now_ms=self.now_ms(), wall_ns=self._wall_us() * 1000)

    def was_taken_back(self, version: int, committed_at_us: int | None) -> bool:
        """Whether a rewind took this commit away, and its version was not committed again."""
        is_beyond = committed_at_us is not None and version > self.end().version
        return is_beyond and self._around.history.taken_back.get(version) == committed_at_us

    def committed_at_us(self, version: int) -> int | None:
        """Return the commit time of `version` if it was read already: lookups read no files."""
        committed_at_ns = self._around.history.known_commit_time_ns(version)
        return None if committed_at_ns is None else committed_at_ns // 1000


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
        end, now_ms = progress.end(), progress.now_ms()  # after the view: a race overstates the lag
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
        lag = against_known_end(own, known_end) if known_end else own
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
