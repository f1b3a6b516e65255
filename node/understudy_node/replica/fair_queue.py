"""Schedules bounded steps over all tasks, fairly (pure state): by group first, then by task.

A group is an application; a process of one application has one group. Each line of waiting tasks serves the groups in
turn, so an application of a thousand tasks delays one of two tasks by a step each time. A group has no more steps in
flight than the process has workers, one less of those in background: steps that hang take a bounded number of threads.

Every task has at most one step in flight and at most one place in the queue. Tailing comes before background, which are
restores, and the checks and sorting of local copies. Background never takes the last worker, so a restore of minutes
delays no tailing task. Tailing tasks that never catch up do not starve it: it gets one turn in `TAILING_TURNS` + 1.
Size: at most one entry per task, so the queue is bounded by what the node holds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

TAILING_TURNS = 8
"""Number of tailing steps in a row while background waits: it delays tailing by an eighth, and never stalls."""


class Place(NamedTuple):
    """The place of a task: in the line of background or of tailing, as one of its group."""

    background: bool
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
    """A round-robin of tasks in two classes, tailing and background."""

    def __init__(self, *, workers: int) -> None:
        if workers < 2:
            raise ValueError("the queue needs two workers at least: one works in background while the other tails")
        self._background_limit = workers - 1
        self._tailing: _Line[T] = _Line(workers)
        self._background: _Line[T] = _Line(self._background_limit)
        self._queued: dict[T, Place] = {}
        self._running: dict[T, Place] = {}
        self._hanging: set[T] = set()
        self._again: set[T] = set()
        self._discarded: set[T] = set()
        self._tailed_in_a_row = 0

    def __repr__(self) -> str:
        running = self._background_running
        return (
            f"<FairQueue tailing={len(self._tailing)} background={len(self._background)} "
            f"running={len(self._running)} of which background={running}>"
        )

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give a task."""
        return self._tailing.is_ready or self._may_run_background

    @property
    def tails_only(self) -> bool:
        """Whether a tailing step runs and nothing waits in background."""
        return not len(self._background) and self._background_running < len(self._running) - len(self._hanging)

    @property
    def _may_run_background(self) -> bool:
        return self._background.is_ready and self._background_running < self._background_limit

    @property
    def _background_running(self) -> int:
        return sum(place.background and task not in self._hanging for task, place in self._running.items())

    def put(self, task: T, *, background: bool, group: Hashable = None) -> None:
        """Queue a step. While one runs, this queues one more; a second call for a queued task does nothing.

        A task that changed its class while it was queued goes to the end of the other line.
        """
        if task in self._running:
            self._again.add(task)
        elif (place := self._queued.get(task)) is None or place.background is not background:
            self._leave_line(task)
            self._queued[task] = Place(background, group)
            self._line(background).append(task, group)

    def take(self) -> T | None:
        """Take the task whose step runs next; None when no step may run."""
        may_run_background = self._may_run_background
        may_tail = self._tailing.is_ready
        if not may_tail and not may_run_background:
            return None
        background = may_run_background and (not may_tail or self._tailed_in_a_row >= TAILING_TURNS)
        self._tailed_in_a_row = 0 if background or not len(self._background) else self._tailed_in_a_row + 1
        task = self._line(background).popleft()
        self._running[task] = self._queued.pop(task)
        return task

    def done(self, task: T, *, more: bool, background: bool) -> None:
        """End a step; with `more` work the task goes to the end of its line."""
        was_background, group = self._running.pop(task)
        self._hanging.discard(task)
        self._line(was_background).ended(group)
        wanted = task in self._again or (more and task not in self._discarded)
        self._again.discard(task)
        self._discarded.discard(task)
        if wanted:
            self.put(task, background=background, group=group)

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
            self._line(place.background).remove(task, place.group)

    def _line(self, background: bool) -> _Line[T]:
        return self._background if background else self._tailing
