"""Bounded steps over all tasks, fairly: who may work next (pure state, one door).

Every task has at most one step in flight and at most one place in the queue. Tailing comes before restoring, and
restores never take the last worker: a task that restores for minutes holds up nobody who only has to follow.
Size: at most one entry per task, so the queue is bounded by what the node holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """A round-robin of tasks in two classes, tailing and restoring."""

    def __init__(self, *, workers: int) -> None:
        if workers < 2:
            raise ValueError("two workers at least: one restores while the other follows")
        self._restore_limit = workers - 1
        self._tailing: deque[T] = deque()
        self._restoring: deque[T] = deque()
        self._queued: set[T] = set()
        self._running: dict[T, bool] = {}
        self._again: set[T] = set()

    def __repr__(self) -> str:
        running = sum(self._running.values())
        return (
            f"<FairQueue tailing={len(self._tailing)} restoring={len(self._restoring)} "
            f"running={len(self._running)} of which restoring={running}>"
        )

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    def put(self, task: T, *, restoring: bool) -> None:
        """Ask for a step. Asking while one runs means one more afterwards; asking twice is asking once."""
        if task in self._running:
            self._again.add(task)
        elif task not in self._queued:
            self._queued.add(task)
            (self._restoring if restoring else self._tailing).append(task)

    def take(self) -> T | None:
        """The task whose step is to run now, or None when nothing may run."""
        if self._tailing:
            task, restoring = self._tailing.popleft(), False
        elif self._restoring and sum(self._running.values()) < self._restore_limit:
            task, restoring = self._restoring.popleft(), True
        else:
            return None
        self._queued.discard(task)
        self._running[task] = restoring
        return task

    def done(self, task: T, *, more: bool, restoring: bool) -> None:
        """A step ended; `more` work puts the task at the end of the round."""
        del self._running[task]
        wanted = task in self._again
        self._again.discard(task)
        if more or wanted:
            self.put(task, restoring=restoring)

    def discard(self, task: T) -> None:
        """Forget a task that left: a step in flight ends, and no other follows."""
        self._again.discard(task)
        if task in self._queued:
            self._queued.discard(task)
            for line in (self._tailing, self._restoring):
                if task in line:
                    line.remove(task)
