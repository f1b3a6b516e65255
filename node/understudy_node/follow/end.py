"""Decides where the committed history ends, and whether that is confirmed (pure: no I/O, no clock).

The commit log is the authority: `commits/<last+1>` is known by name before it exists. The end is confirmed only if that
file is absent, `commits/<last>` is still the file that was read, and the checkpoint is still the same one. Anything
else makes the end unknown until a listing settles it: after a long pause the next commit may already be purged, and a
rewound or re-created checkpoint must never look like one that stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from understudy_node.checkpoint.files import FileStat

MAX_UNSEEN = 64
"""Number of versions of which it is known when they were last not there: replicas are rarely further behind."""


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
    """The last committed version as far as is known.

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
    """The history went on and the commits in between were purged: replicas re-bootstrap where they must."""
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
