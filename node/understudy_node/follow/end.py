"""Decides where the committed history ends, whether that is confirmed, and how far behind a replica is (pure).

The commit log is the authority: `commits/<last+1>` is known by name before it exists. The end is confirmed only if that
file is absent, `commits/<last>` is still the file that was read, and the checkpoint is still the same one. Anything
else makes the end unknown until a listing settles it: after a long pause the next commit may already be purged, and a
rewound or re-created checkpoint must never look like one that stands still.

Lag, with c(v) = modification time of the commit file that made version v (one clock, the storage's):

- at the end: monotonic time since the start of the poll that confirmed the end;
- behind: max(0, c(end) - c(version + 1)) plus monotonic time since the start of the last poll that did not see that
  end yet: at least now - c(version + 1), without comparing any clock with the storage's; and at least the time since
  the start of the last poll that did not see version + 1. The second counts if a commit file's time is earlier than the
  file became visible, because renames keep times: a slow rename of the end would hide some lag;
- unknown when the end is not confirmed, when its confirmation is too old, when c(version + 1) was purged, or when this
  process has never looked while the end was an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf

from understudy_node.checkpoint.files import FileStat
from understudy_shared.base.words import LagInfo

MAX_UNSEEN = 64
"""Number of versions with a known time when they were last absent: replicas rarely lag more."""


class Next(StrEnum):
    """The poller's action after a probe."""

    WAIT = "wait"
    """The end is confirmed: nothing to do before the next poll."""
    READ = "read"
    """The next commit exists: read it and probe again at once."""
    LIST = "list"
    """The end is in doubt: list the commit log and settle it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The observations of one poll. `started_ms` is the monotonic time before its first stat.

    Before the first commit, an absent `commits/0` proves nothing: it may have come and gone during a long pause.
    `commits_without_first` says that a listing found commits although `commits/0` is absent.
    """

    started_ms: float
    next_commit: FileStat | None
    last_commit: FileStat | None
    query_id: FileStat | None
    commits_without_first: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The last committed version that is known.

    `version` is 0 before the first commit. `confirmed_ms` is the start of the newest poll that confirmed it, None while
    it is in doubt. `unseen_ms` is the start of the newest poll that confirmed an earlier end: the present end was
    committed after it; None when there was no such poll. `unseen` has the same for the newest versions, the end last.
    `last_commit` and `query_id` are the files as they were when the end was read.
    """

    version: int
    last_commit: FileStat | None
    query_id: FileStat
    confirmed_ms: float | None = None
    unseen_ms: float | None = None
    moved_ms: float | None = None
    unseen: tuple[float, ...] = ()


def observe(end: End, probe: Probe) -> tuple[End, Next]:
    """Return the end after one probe, and what to do next."""
    is_unvouched = probe.commits_without_first if end.version == 0 else probe.last_commit is None
    if probe.query_id != end.query_id or probe.last_commit != end.last_commit or is_unvouched:
        return replace(end, confirmed_ms=None), Next.LIST
    if probe.next_commit is not None:
        return end, Next.READ
    return replace(end, confirmed_ms=probe.started_ms), Next.WAIT


def advance(end: End, commit: FileStat, *, now_ms: float) -> End:
    """Return the end after the next commit was read: one version on, to be confirmed by a later probe."""
    unseen_ms = end.unseen_ms if end.confirmed_ms is None else end.confirmed_ms
    return replace(
        end,
        version=end.version + 1,
        last_commit=commit,
        confirmed_ms=None,
        unseen_ms=unseen_ms,
        moved_ms=now_ms,
        unseen=() if unseen_ms is None else (*end.unseen, unseen_ms)[-MAX_UNSEEN:],
    )


class Verdict(StrEnum):
    """The result of a listing for an end in doubt."""

    SAME = "same"
    """The end is unchanged (a passing failure of the storage)."""
    AHEAD = "ahead"
    """The history continued and the commits in between were purged: replicas re-bootstrap where they must."""
    REWOUND = "rewound"
    """The history was cut back, or its last batch was committed anew: what was read after it no longer holds."""
    RECREATED = "re-created"
    """Another query id: another lineage. Nothing that is held is valid."""
    GONE = "gone"
    """The checkpoint does not exist now."""


def settle(end: End, *, same_query: bool | None, batch_ids: list[int] | None, last_commit: FileStat | None) -> Verdict:
    """Judge a listing of the commit log against the end that was in doubt.

    `same_query` is None when the checkpoint's `metadata` is gone; `last_commit` is `commits/<last>` as it is now.
    `batch_ids` is None when there is no commit log, as before the first commit on storage without empty directories.
    """
    if same_query is None:
        return Verdict.GONE
    if not same_query:
        return Verdict.RECREATED
    if batch_ids is None and end.version > 0:
        return Verdict.GONE
    newest = max(batch_ids or (), default=-1) + 1
    if newest < end.version:
        return Verdict.REWOUND
    if last_commit is not None and end.last_commit is not None and last_commit != end.last_commit:
        return Verdict.REWOUND
    return Verdict.AHEAD if newest > end.version else Verdict.SAME


def next_poll_ms(*, quiet_ms: float, lag_refresh_ms: int, floor_ms: float) -> float:
    """Return the time until the next poll: short while commits arrive, `lag_refresh_ms` when nothing happens.

    A hundredth of the time since the last commit (or since the start) keeps the added delay near 1 % of the query's own
    cadence.
    """
    return min(float(lag_refresh_ms), max(floor_ms, quiet_ms / 100))


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
    # It counts at its latest where times are coarse: c(version + 1) is taken at its earliest.
    last = end.last_commit
    newest_ns = commit_time_ns(end.version) if last is None else last.mtime_ns + last.coarse_ns
    missed_ns = newest_ns if offset_lag == 1 else commit_time_ns(version + 1)
    if missed_ns is None or newest_ns is None or end.unseen_ms is None:
        return LagInfo(version, end.version, offset_lag, None)
    by_files_ms = max(0, newest_ns - missed_ns) / 1e6 + max(0.0, now_ms - end.unseen_ms)
    by_polls_ms = now_ms - end.unseen[-offset_lag] if offset_lag <= len(end.unseen) else 0.0
    return LagInfo(version, end.version, offset_lag, ceil(max(by_files_ms, by_polls_ms)))


def holds_until_ms(lag: LagInfo, end: End, *, expiry_ms: float) -> float:
    """Return until when a lag stays the same while the end does, on the clock of the end's confirmation.

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
