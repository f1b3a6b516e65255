"""The choice of the replicas that get a step of work now: those that are behind, and now and then all of them, to read
ahead.

A worker goes on with a replica as long as it has work. So replicas are looked at only when something may have given
them work: the end moved, they are others than before, or one of them did not get to the end `retry_ms` ago. While all
show the end there is a look now and then all the same, as a safety net. A node with a thousand tasks polls a hundred
times a second.
"""

from __future__ import annotations

from understudy_node.follow.history import CommitHistory
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.workers import Steps

PREFETCH_FLOOR_MS = 25.0
PREFETCH_MS_PER_TASK = 2.0
"""Interval of looks for the next version's file, per task: a look costs a stat or a listing; this bounds it to a few
percent of a core.
"""

LOOKS_AT_REST = 5
"""Number of `retry_ms` between two looks while every replica shows the end: looks cost by tasks."""


class WorkSchedule:
    """The schedule that hands steps to `workers`. A replica that failed is tried again every `retry_ms`."""

    def __init__(self, workers: Steps, *, retry_ms: float) -> None:
        self.workers = workers
        self._retry_ms = retry_ms
        self._next_prefetch_ms = 0.0
        self._next_retry_ms = 0.0
        self._looked_at: tuple[int, list[TaskReplica]] | None = None
        """The end and the replicas of the last look; None before it."""

    def hand_out(
        self,
        replicas: list[TaskReplica],
        history: CommitHistory,
        *,
        end_version: int,
        batch_in_progress: bool,
        now_ms: float,
    ) -> None:
        """Queue the steps that are due. Read the commit times that lookups of lagging replicas will need."""
        retry, prefetch = now_ms >= self._next_retry_ms, batch_in_progress and now_ms >= self._next_prefetch_ms
        if not retry and not prefetch and self._looked_at == (end_version, replicas):
            return
        self._looked_at = (end_version, replicas)
        due: list[TaskReplica] = []
        is_at_rest = True
        # One pass with all its questions: it costs by tasks, and `behind` is the dearest of them.
        for replica in replicas:
            if retry:
                replica.check_stall(self._retry_ms)
            behind, view = replica.behind, replica.view
            shows_end = view is not None and view.version == end_version
            is_at_rest = is_at_rest and shows_end and not behind and replica.error is None
            if view is not None and (behind or replica.progress.is_limited):
                history.commit_time_ns(view.version + 1)  # cached: lookups compute time lag from it
            if behind:
                if replica.error is None or retry:
                    due.append(replica)
            elif prefetch and replica.want_prefetch():
                due.append(replica)
        self.workers.submit(*due)
        next_look_ms = now_ms + self._retry_ms * (LOOKS_AT_REST if is_at_rest else 1)
        self._next_retry_ms = next_look_ms if retry else min(self._next_retry_ms, next_look_ms)
        if prefetch:
            self._next_prefetch_ms = now_ms + prefetch_interval_ms(len(replicas))


def prefetch_interval_ms(tasks: int) -> float:
    """Return the interval between two looks for the next version's files."""
    return max(PREFETCH_FLOOR_MS, PREFETCH_MS_PER_TASK * tasks)
