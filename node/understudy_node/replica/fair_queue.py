"""Schedules bounded steps over all tasks, fairly (pure state): by group first, then by task.

A group is an application; a process of one application has one group. Each line of waiting tasks serves the groups in
turn, so an application of a thousand tasks delays one of two tasks by a step each time. A group has no more steps in
flight than the process has workers, one less of restores: steps that hang take a bounded number of threads.

Every task has at most one step in flight and at most one place in the queue. Tailing comes before restoring, and
restores never take the last worker, so a restore of minutes delays no tailing task. Tailing tasks that never catch up
do not starve a restore: it gets one turn in `TAILING_TURNS` + 1.
Size: at most one entry per task, so the queue is bounded by what the node holds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

TAILING_TURNS = 8
"""Number of tailing steps in a row while a restore waits: the restore delays tailing by an eighth, and never stalls."""


class Place(NamedTuple):
    """The place of a task: in the line of restores or of tailing, as one of its group."""

    restoring: bool
    group: Hashable


class _Line(Generic[T]):
    """Tasks that wait for a step: the groups in turn, and in each group the tasks in their order.

    A group has at most `limit` steps in flight, those that hang included.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: deque[Hashable] = deque()
        """The groups that wait and may run."""
        self._waiting: dict[Hashable, deque[T]] = {}
        self._running: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_ready(self) -> bool:
        return bool(self._turns)

    def append(self, task: T, group: Hashable) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None:
            waiting.append(task)
            return
        self._waiting[group] = deque([task])
        if self._running[group] < self._limit:
            self._turns.append(group)

    def popleft(self) -> T:
        group = self._turns.popleft()
        waiting = self._waiting[group]
        task = waiting.popleft()
        self._running[group] += 1
        if not waiting:
            del self._waiting[group]
        elif self._running[group] < self._limit:
            self._turns.append(group)
        return task

    def ended(self, group: Hashable) -> None:
        """Note that a step of a group ended."""
        if self._running[group] == self._limit and group in self._waiting:
            self._turns.append(group)
        self._running[group] -= 1
        if not self._running[group]:
            del self._running[group]

    def remove(self, task: T, group: Hashable) -> None:
        waiting = self._waiting[group]
        waiting.remove(task)
        if not waiting:
            del self._waiting[group]
            if self._running[group] < self._limit:
                self._turns.remove(group)


class FairQueue(Generic[T]):
    """A round-robin of tasks in two classes, tailing and restoring."""

    def __init__(self, *, workers: int) -> None:
        if workers < 2:
            raise ValueError("the queue needs two workers at least: one restores while the other tails")
        self._restore_limit = workers - 1
        self._tailing: _Line[T] = _Line(workers)
        self._restoring: _Line[T] = _Line(self._restore_limit)
        self._queued: dict[T, Place] = {}
        self._running: dict[T, Place] = {}
        self._hanging: set[T] = set()
        self._again: set[T] = set()
        self._discarded: set[T] = set()
        self._tailed_in_a_row = 0

    def __repr__(self) -> str:
        running = self._restores_running
        return (
            f"<FairQueue tailing={len(self._tailing)} restoring={len(self._restoring)} "
            f"running={len(self._running)} of which restoring={running}>"
        )

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give a task."""
        return self._tailing.is_ready or self._may_restore

    @property
    def tails_only(self) -> bool:
        """Whether a tailing step runs and no restore waits."""
        return not len(self._restoring) and self._restores_running < len(self._running) - len(self._hanging)

    @property
    def _may_restore(self) -> bool:
        return self._restoring.is_ready and self._restores_running < self._restore_limit

    @property
    def _restores_running(self) -> int:
        return sum(place.restoring and task not in self._hanging for task, place in self._running.items())

    def put(self, task: T, *, restoring: bool, group: Hashable = None) -> None:
        """Queue a step. While one runs, this queues one more; a second call for a queued task does nothing.

        A task that changed its class while it was queued goes to the end of the other line.
        """
        if task in self._running:
            self._again.add(task)
        elif (place := self._queued.get(task)) is None or place.restoring is not restoring:
            self._leave_line(task)
            self._queued[task] = Place(restoring, group)
            self._line(restoring).append(task, group)

    def take(self) -> T | None:
        """Take the task whose step runs next; None when no step may run."""
        may_restore = self._may_restore
        may_tail = self._tailing.is_ready
        if not may_tail and not may_restore:
            return None
        restoring = may_restore and (not may_tail or self._tailed_in_a_row >= TAILING_TURNS)
        self._tailed_in_a_row = 0 if restoring or not len(self._restoring) else self._tailed_in_a_row + 1
        task = self._line(restoring).popleft()
        self._running[task] = self._queued.pop(task)
        return task

    def done(self, task: T, *, more: bool, restoring: bool) -> None:
        """End a step; with `more` work the task goes to the end of its line."""
        was_restoring, group = self._running.pop(task)
        self._hanging.discard(task)
        self._line(was_restoring).ended(group)
        wanted = task in self._again or (more and task not in self._discarded)
        self._again.discard(task)
        self._discarded.discard(task)
        if wanted:
            self.put(task, restoring=restoring, group=group)

    def hang(self, task: T) -> None:
        """Count a step in flight no more: its worker waits for storage that does not answer, and another takes its
        place. Its group still has it in flight.
        """
        self._hanging.add(task)

    def group_of(self, task: T) -> Hashable:
        """Return the group of a task whose step is in flight."""
        return self._running[task].group

    def running(self, group: Hashable) -> list[T]:
        """Return the tasks of a group whose steps are in flight."""
        return [task for task, place in self._running.items() if place.group == group]

    def discard_group(self, group: Hashable) -> None:
        """Forget all tasks of a group."""
        queued = [task for task, place in self._queued.items() if place.group == group]
        for task in [*queued, *self.running(group)]:
            self.discard(task)

    def discard(self, task: T) -> None:
        """Forget a task: a step in flight ends, and no other follows."""
        self._again.discard(task)
        self._leave_line(task)
        if task in self._running:
            self._discarded.add(task)

    def _leave_line(self, task: T) -> None:
        place = self._queued.pop(task, None)
        if place is not None:
            self._line(place.restoring).remove(task, place.group)

    def _line(self, restoring: bool) -> _Line[T]:
        return self._restoring if restoring else self._tailing
