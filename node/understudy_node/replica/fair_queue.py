"""Schedules bounded steps over all tasks, fairly (pure state).

Every task has at most one step in flight and at most one place in the queue. Tailing comes before restoring, and
restores never take the last worker, so a restore of minutes delays no tailing task. Tailing tasks that never catch up
do not starve a restore: it gets one turn in `TAILING_TURNS` + 1.
Size: at most one entry per task, so the queue is bounded by what the node holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

TAILING_TURNS = 8
"""Number of tailing steps in a row while a restore waits: the restore delays tailing by an eighth, and never stalls."""


class FairQueue(Generic[T]):
    """A round-robin of tasks in two classes, tailing and restoring."""

    def __init__(self, *, workers: int) -> None:
        if workers < 2:
            raise ValueError("the queue needs two workers at least: one restores while the other tails")
        self._restore_limit = workers - 1
        self._tailing: deque[T] = deque()
        self._restoring: deque[T] = deque()
        self._queued: dict[T, bool] = {}
        self._running: dict[T, bool] = {}
        self._again: set[T] = set()
        self._discarded: set[T] = set()
        self._tailed_in_a_row = 0

    def __repr__(self) -> str:
        running = sum(self._running.values())
        return (
            f"<FairQueue tailing={len(self._tailing)} restoring={len(self._restoring)} "
            f"running={len(self._running)} of which restoring={running}>"
        )

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give a task."""
        return bool(self._tailing) or self._may_restore

    @property
    def tails_only(self) -> bool:
        """Whether a tailing step runs and no restore waits."""
        return not self._restoring and not all(self._running.values())

    @property
    def _may_restore(self) -> bool:
        return bool(self._restoring) and sum(self._running.values()) < self._restore_limit

    def put(self, task: T, *, restoring: bool) -> None:
        """Queue a step. While one runs, this queues one more; a second call for a queued task does nothing.

        A task that changed its class while it was queued goes to the end of the other line.
        """
        if task in self._running:
            self._again.add(task)
        elif self._queued.get(task) is not restoring:
            self._leave_line(task)
            self._queued[task] = restoring
            self._line(restoring).append(task)

    def take(self) -> T | None:
        """Take the task whose step runs next; None when no step may run."""
        may_restore = self._may_restore
        if not self._tailing and not may_restore:
            return None
        restoring = may_restore and (not self._tailing or self._tailed_in_a_row >= TAILING_TURNS)
        self._tailed_in_a_row = 0 if restoring or not self._restoring else self._tailed_in_a_row + 1
        task = self._line(restoring).popleft()
        del self._queued[task]
        self._running[task] = restoring
        return task

    def done(self, task: T, *, more: bool, restoring: bool) -> None:
        """End a step; with `more` work the task goes to the end of its line."""
        del self._running[task]
        wanted = task in self._again or (more and task not in self._discarded)
        self._again.discard(task)
        self._discarded.discard(task)
        if wanted:
            self.put(task, restoring=restoring)

    def discard(self, task: T) -> None:
        """Forget a task: a step in flight ends, and no other follows."""
        self._again.discard(task)
        self._leave_line(task)
        if task in self._running:
            self._discarded.add(task)

    def _leave_line(self, task: T) -> None:
        restoring = self._queued.pop(task, None)
        if restoring is not None:
            self._line(restoring).remove(task)

    def _line(self, restoring: bool) -> deque[T]:
        return self._restoring if restoring else self._tailing
