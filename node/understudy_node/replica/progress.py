"""The progress of a task: the version to which it may advance, and the lag of a version behind the end."""

from __future__ import annotations

from collections.abc import Callable

from understudy_node.follow.end import End, lag_of, since_commit_ms
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.task_view import TaskView
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
        self._end = end
        self._newest_fitting = 0
        self._judged_end = 0

    @property
    def end(self) -> End:
        """The end of the committed history, as far as it is known."""
        return self._end()

    @property
    def knows_end(self) -> bool:
        """Whether the end is confirmed, and was not too long ago."""
        confirmed_ms = self._end().confirmed_ms
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
        end = self._end().version
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
        return self.lag_at(view.version, self._end(), now_ms=self.now_ms())

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        """Return a version's lag against an end. Read the end after the version, so that a race overstates the lag."""
        return lag_of(
            version, end, self._around.history.known_commit_time_ns, now_ms=now_ms, expiry_ms=self.end_expiry_ms
        )

    def since_commit_ms(self, version: int) -> float | None:
        """Return how long ago a version was committed, if that is known; read no files."""
        committed_ns = self._around.history.known_commit_time_ns(version)
        return since_commit_ms(committed_ns, self._end(), now_ms=self.now_ms(), wall_ns=self._wall_us() * 1000)

    def was_taken_back(self, version: int, committed_at_us: int | None) -> bool:
        """Whether a rewind took this commit away, and its version was not committed again."""
        is_beyond = committed_at_us is not None and version > self._end().version
        return is_beyond and self._around.history.taken_back.get(version) == committed_at_us

    def committed_at_us(self, version: int) -> int | None:
        """Return the commit time of `version` if it was read already: lookups read no files."""
        committed_at_ns = self._around.history.known_commit_time_ns(version)
        return None if committed_at_ns is None else committed_at_ns // 1000
