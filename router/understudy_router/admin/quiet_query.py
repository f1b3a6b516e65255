"""The signs of whether the query still commits, and the evidence of its files when it does not (pure).

A query that was stopped leaves the same files as one without input. But a batch writes its offsets when it begins and
its commit when it ends, so a query that is slow, or that ended within a batch, differs from one that begins no batch.
"""

from __future__ import annotations

from understudy_router.admin.facts import NodeView
from understudy_router.admin.faults import Fault, attention
from understudy_router.admin.observed import Observed
from understudy_router.admin.snapshot import Snapshot
from understudy_shared.base.durations import duration_text
from understudy_shared.bus.messages import QueryProgress

QUIET_PACES, MIN_QUIET_MS = 5, 5_000
"""Limits of quiet: the query is quiet after so many of its usual times between commits, and not before so many ms."""


def quiet_query(seen: Observed) -> Fault | None:
    """Return the fault of a query that has not committed for much longer than usual; `None` while it commits, and
    before its pace is known.
    """
    said = _said(seen.snapshot)
    usual = (query.commit_interval_ms for _, query in said if query.commit_interval_ms is not None)
    since = (query.since_commit_ms + (view.age_ms or 0) for view, query in said if query.since_commit_ms is not None)
    # A router that has seen no commits takes what the nodes saw: no node saw a commit before it was there.
    usual_ms = seen.usual_commit_ms or max(usual, default=None)
    if usual_ms is None:
        return None
    silent_ms = max([seen.silent_ms, *since])
    if silent_ms <= max(MIN_QUIET_MS, QUIET_PACES * usual_ms):
        return None
    why, action = _why(seen.snapshot, said)
    return attention(
        f"The query has not committed for {duration_text(round(silent_ms))}",
        "answers stay what they are",
        f"it usually commits every {duration_text(round(usual_ms))}; {why}",
        action,
    )


def _said(snapshot: Snapshot) -> list[tuple[NodeView, QueryProgress]]:
    """Return the reports about the query by the nodes that know the newest end of the history in use."""
    return [
        (view, beat.query)
        for view in snapshot.nodes.values()
        if (beat := view.heartbeat) is not None
        and beat.query is not None
        and beat.lineage == snapshot.lineage
        and beat.end_version == snapshot.end_version
    ]


def _why(snapshot: Snapshot, said: list[tuple[NodeView, QueryProgress]]) -> tuple[str, str]:
    """Return the cause as far as the files show it, and where to look."""
    if not said:
        return "it stopped, hangs, or has no input", "look at the query"
    batch = f"batch {snapshot.end_version}"
    begun = [query.batch_ms + (view.age_ms or 0) for view, query in said if query.batch_ms is not None]
    if begun:
        ago = duration_text(max(begun))
        why = f"{batch} began at least {ago} ago, without a commit: it is slow, hangs, or ended there"
        return why, "look at the query's driver, and at the tasks of that batch"
    why = f"{batch} has not begun: the query was stopped, waits for its trigger, or has no input"
    return why, "look whether the query runs, and whether its sources have input"
