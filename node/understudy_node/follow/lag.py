"""Computes lag in versions and in time (pure).

With c(v) = modification time of the commit file that made version v (one clock, the storage's):

- at the end: monotonic time since the start of the poll that confirmed the end;
- behind: max(0, c(end) - c(version + 1)) plus monotonic time since the start of the last poll that did not see that
  end yet: at least now - c(version + 1), without comparing any clock with the storage's; and at least the time since
  the start of the last poll that did not see version + 1. The second counts where a commit file's time is earlier than
  the file could be seen, because storage keeps it in a rename or a move: a slow one of the end would hide some lag;
- unknown when the end is not confirmed, when its confirmation is too old, when c(version + 1) was purged, or when this
  process has never looked while the end was an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf

from understudy_node.follow.end import End
from understudy_shared.base.words import LagInfo

CommitTime = Callable[[int], int | None]
"""A function that returns c(v) in nanoseconds, None when that commit file was purged."""


def lag_of(version: int, end: End, commit_time_ns: CommitTime, *, now_ms: float, expiry_ms: float) -> LagInfo:
    """Compute the lag of a replica at `version`. `expiry_ms` is how long a confirmation counts."""
    if end.confirmed_ms is None or now_ms - end.confirmed_ms > expiry_ms or version > end.version:
        return LagInfo(version, None, None, None)
    offset_lag = end.version - version
    if offset_lag == 0:
        return LagInfo(version, end.version, 0, ceil(max(0.0, now_ms - end.confirmed_ms)))
    # The poll that found the end also saw its file's time: readers need no look-up of it.
    newest_ns = _latest_ns(end, commit_time_ns)
    missed_ns = newest_ns if offset_lag == 1 else commit_time_ns(version + 1)
    if missed_ns is None or newest_ns is None or end.unseen_ms is None:
        return LagInfo(version, end.version, offset_lag, None)
    by_files_ms = max(0, newest_ns - missed_ns) / 1e6 + max(0.0, now_ms - end.unseen_ms)
    by_polls_ms = now_ms - end.unseen[-offset_lag] if offset_lag <= len(end.unseen) else 0.0
    return LagInfo(version, end.version, offset_lag, ceil(max(by_files_ms, by_polls_ms)))


def _latest_ns(end: End, commit_time_ns: CommitTime) -> int | None:
    """Return c(end), at its latest where times are coarse: c(version + 1) is taken at its earliest."""
    last = end.last_commit
    return commit_time_ns(end.version) if last is None else last.mtime_ns + last.coarse_ns


def holds_until_ms(lag: LagInfo, end: End, *, expiry_ms: float) -> float:
    """Return until when a lag stays exactly the same while the end does, on the clock of the end's confirmation.

    Minus infinity for a replica that is behind, or of unknown lag: these are computed each time.
    """
    if lag.offset_lag != 0 or lag.time_lag_ms is None or end.confirmed_ms is None:
        return -inf
    return end.confirmed_ms + min(lag.time_lag_ms, expiry_ms)


def against_known_end(lag: LagInfo, known_end: int) -> LagInfo:
    """Return the lag against the newer of its own end and `known_end`, which another process saw committed.

    Unknown lag stays unknown, because no end is confirmed. Time lag stays, too: it counts from the poll that confirmed
    the older end, before that poll could have seen the newer commit.
    """
    if lag.offset_lag is None or lag.end_offset_position is None or known_end <= lag.end_offset_position:
        return lag
    version = lag.current_offset_position
    return LagInfo(version, known_end, known_end - version, lag.time_lag_ms)


COARSE_MS = 10.0
"""Resolution of file times: they come from a clock that ticks every 4 or 10 ms."""


def since_commit_ms(version_ns: int | None, end: End, *, now_ms: float, wall_ns: int) -> float | None:
    """Return how long ago a version was committed, `version_ns` being c(version); None while that is not known.

    The end was committed between the last poll that did not see it and the one that found it, by this machine's
    monotonic clock. The time since its file was written counts if it lies there, because then the storage's clock is
    this machine's; else the time since it was found.
    """
    if version_ns is None or end.last_commit is None or end.moved_ms is None or end.unseen_ms is None:
        return None
    end_ns = end.last_commit.mtime_ns
    found_ms, unseen_ms = now_ms - end.moved_ms, now_ms - end.unseen_ms
    by_file_ms = (wall_ns - end_ns) / 1e6
    is_one_clock = found_ms - COARSE_MS <= by_file_ms <= unseen_ms + COARSE_MS
    since_end_ms = min(max(by_file_ms, found_ms), unseen_ms) if is_one_clock else found_ms
    return max(0, end_ns - version_ns) / 1e6 + max(0.0, since_end_ms)
