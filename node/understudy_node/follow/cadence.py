"""The cadence of a query: how often it commits, whether it still does, and whether a batch has begun (no I/O; time is
passed in).

Files look the same for a stopped query and for one without input; both count as idle once nothing was committed for a
minute and for ten times the usual interval.
"""

from __future__ import annotations

from understudy_node.follow.end import End
from understudy_shared.bus.messages import QueryProgress

IDLE_AFTER_MS = 60_000.0
IDLE_INTERVALS = 10


class Cadence:
    """The record of all polls: the last move of the end and the last interval between moves."""

    def __init__(self) -> None:
        self._moved_ms: float | None = None
        self._interval_ms = 0.0
        self._idle = False
        self._since_ms: float | None = None
        self._batch: tuple[int, float] | None = None
        """The version before the batch that has begun, and when that was first seen."""

    def saw(self, end: End, *, now_ms: float) -> bool:
        """Record a poll; True when an idle query committed again."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if end.moved_ms is None or end.moved_ms == self._moved_ms:
            return False
        if self._moved_ms is not None:
            self._interval_ms = end.moved_ms - self._moved_ms
        self._moved_ms = end.moved_ms
        resumed, self._idle = self._idle, False
        return resumed

    def saw_batch(self, after_version: int, *, has_begun: bool, now_ms: float) -> None:
        """Record whether the batch after that version has begun."""
        if not has_begun:
            self._batch = None
        elif self._batch is None or self._batch[0] != after_version:
            self._batch = (after_version, now_ms)

    @property
    def is_batch_in_progress(self) -> bool:
        """Whether a batch has begun that is not committed."""
        return self._batch is not None

    def progress(self, now_ms: float) -> QueryProgress:
        """Return the observed progress of the query, for other processes."""
        since_ms, batch = self.since_commit_ms(now_ms), self._batch  # read once: another thread polls
        return QueryProgress(
            since_commit_ms=None if since_ms is None else _count(since_ms),
            commit_interval_ms=_count(self._interval_ms) or None,
            batch_ms=None if batch is None else _count(now_ms - batch[1]),
        )

    def since_commit_ms(self, now_ms: float) -> float | None:
        """Return the time since this process last saw a commit arrive; None when it saw no commit arrive."""
        return None if self._moved_ms is None else now_ms - self._moved_ms

    def quiet_ms(self, now_ms: float) -> float:
        """Return the time since this process last saw a commit arrive, or since its first poll."""
        start_ms = self._moved_ms if self._moved_ms is not None else self._since_ms
        return 0.0 if start_ms is None else now_ms - start_ms

    def turned_idle(self, now_ms: float) -> bool:
        """Whether the query has just become idle; true once."""
        was, self._idle = self._idle, self._is_idle(now_ms)
        return self._idle and not was

    def state(self, now_ms: float, *, confirmed: bool) -> str:
        """Return `committing`, `idle`, `waiting` (this process saw no commit yet), or `unknown` (no confirmed end)."""
        if not confirmed:
            return "unknown"
        if self._is_idle(now_ms):
            return "idle"
        return "waiting" if self._moved_ms is None else "committing"

    def _is_idle(self, now_ms: float) -> bool:
        return self.quiet_ms(now_ms) > max(IDLE_AFTER_MS, IDLE_INTERVALS * self._interval_ms)


def _count(ms: float) -> int:
    return max(0, round(ms))
