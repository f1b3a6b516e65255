"""The threads that run steps: a fixed number of workers over one fair queue.

Short tailing steps are left to one worker, because they are CPU-bound: a second thread would only contend for the
interpreter's lock, and waking it costs as much as a step. The others join when a step is long or does not end: then it
waits for files, and waits can overlap.

Applications of one process share the workers, each by a share of its own. A step of a share that hangs, because its
storage does not answer, keeps its thread, and another thread replaces it until it ends.

A step that raises an unexpected exception is a bug: it is stored in `failure`, the workers stop, and the node turns
unready instead of running on with replicas that silently stall. In a share it ends the steps of that share alone.

The queue (pure state) is fair by group first, then by task.

A group is an application; a process of one application has one group. Each line of waiting tasks serves the groups in
turn, so an application of a thousand tasks delays one of two tasks by a step each time. A group has at most as many
steps in flight as the process has workers, and one fewer in background: hanging steps take a bounded number of threads.

Every task has at most one step in flight and at most one place in the queue. Tailing comes before background, which are
restores, and the checks and sorting of local copies. Background never takes the last worker, so a restore of minutes
delays no tailing task. Tailing tasks that never catch up do not starve background: it gets one turn in `TAILING_TURNS`
+ 1. Size: at most one entry per task, so the queue is bounded by what the node holds.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from understudy_node.follow.history import CommitHistory
from understudy_node.replica.task import TaskReplica

log = logging.getLogger(__name__)

SHORT_STEP_S = 0.002
"""Longest time of a short step: a usual commit takes a tenth of it; reading a remote file takes longer."""

HANGS_AFTER_S = 5.0
"""Time after which a step of a share no longer counts as one of the workers."""

HELP_AFTER_S = 0.005
"""Time that a second worker watches the first before it joins."""


T = TypeVar("T", bound=Hashable)

TAILING_TURNS = 8
"""Number of tailing steps in a row while background waits: background delays tailing by an eighth, and never stalls."""


class QueuePlace(NamedTuple):
    """The place of a task: in the queue of background or of tailing, in its group."""

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
        self._queued: dict[T, QueuePlace] = {}
        self._running: dict[T, QueuePlace] = {}
        self._hanging: set[T] = set()
        self._again: set[T] = set()
        self._discarded: set[T] = set()
        self._tailed_in_a_row = 0

    def __repr__(self) -> str:
        running = self._background_running
        return (
            f"<FairQueue tailing={len(self._tailing)} background={len(self._background)} "
            f"running={len(self._running)} (background={running})>"
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
            self._queued[task] = QueuePlace(background, group)
            self._line(background).append(task, group)

    def take(self) -> T | None:
        """Take the task to run next; None when no step may run."""
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
        """Stop counting a step as in flight: another worker replaces its own. Its group still counts it."""
        self._hanging.add(task)

    def group_of(self, task: T) -> Hashable:
        """Return the group of a task with a step in flight."""
        return self._running[task].group

    def running(self, group: Hashable) -> list[T]:
        """Return the tasks of a group with steps in flight."""
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


class SteppedTask(Hashable, Protocol):
    """A task that can be advanced by one bounded step."""

    @property
    def in_background(self) -> bool:
        """Whether its next step may wait for tailing tasks."""

    def step(self) -> bool:
        """Do one bounded piece of work; True when there is more to do right now."""


class Steps(Protocol):
    """The workers, or the share of one application in them: what a node needs of them."""

    @property
    def failure(self) -> BaseException | None:
        """The bug that ended them."""

    def start(self) -> None: ...

    def submit(self, *tasks: SteppedTask) -> None: ...

    def discard(self, task: SteppedTask) -> None: ...

    def stop(self, *, timeout_s: float) -> None: ...


class Ended(NamedTuple):
    """A finished step: whether there is more to do, of which class, and how long it took."""

    task: SteppedTask
    more: bool
    background: bool
    took_s: float


class Workers:
    """`count` daemon threads; `submit` never blocks."""

    def __init__(self, *, count: int) -> None:
        self._queue: FairQueue[SteppedTask] = FairQueue(workers=count)
        self._changed = threading.Condition()
        self._begun = 0
        """Steps that were begun, ever."""
        self._are_short = False
        """Whether the step that ended last was short."""
        self._stopping = False
        self._shared: dict[SteppedTask, tuple[WorkerShare, float]] = {}
        """The steps of shares that are in flight, and when each began."""
        self._hanging: set[SteppedTask] = set()
        self.failure: BaseException | None = None
        self._numbers = itertools.count()
        self._threads = [self._thread() for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, *tasks: SteppedTask, share: WorkerShare | None = None) -> None:
        """Queue a step of each of these."""
        with self._changed:
            for task in tasks:
                self._queue.put(task, background=task.in_background, group=share)
            if self._shared:
                self._replace_those_that_hang()
            if self._queue.is_ready:
                self._changed.notify(min(2, len(tasks)))  # Wake two: one works, the other watches it.

    def discard(self, task: SteppedTask) -> None:
        """Run no further step of `task`; one in flight still ends."""
        with self._changed:
            self._queue.discard(task)

    def end_share(self, share: WorkerShare, *, timeout_s: float) -> None:
        """Run no further step of a share, and wait for those in flight."""
        with self._changed:
            share.has_ended = True
            self._queue.discard_group(share)
            self._changed.wait_for(lambda: not self._queue.running(share), timeout_s)

    def stop(self, *, timeout_s: float) -> None:
        """End the threads after the steps in flight, waiting `timeout_s` for all of them together."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=f"worker-{next(self._numbers)}", daemon=True)

    def _replace_those_that_hang(self) -> None:
        """Replace each hanging thread by a new one. It runs when there is work, so when it matters."""
        since_s = time.monotonic() - HANGS_AFTER_S
        for task in [task for task, (_, began_s) in self._shared.items() if began_s < since_s]:
            if task not in self._hanging:
                self._hanging.add(task)
                self._queue.hang(task)
                thread = self._thread()
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        ended: Ended | None = None
        while (task := self._next(ended)) is not None:
            began_s = time.perf_counter()
            try:
                more, background = task.step(), task.in_background
            except BaseException as error:
                log.exception("a step failed unexpectedly", extra={"action": "worker-failed"})
                if not self._failed(task, error):
                    return
                more, background = False, False
            ended = Ended(task, more, background, time.perf_counter() - began_s)

    def _failed(self, task: SteppedTask, error: BaseException) -> bool:
        """Note a bug. Return whether the workers continue: only the share with the bug ends."""
        with self._changed:
            share, _ = self._shared.get(task, (None, 0.0))
            if share is not None:
                share.failure = share.failure or error
                self._queue.discard_group(share)
                return True
            self.failure = self.failure or error
            self._stopping = True
            self._changed.notify_all()
            return False

    def _next(self, ended: Ended | None) -> SteppedTask | None:
        """Report a finished step, and wait for the next. Wake another worker for the rest, unless one is enough."""
        with self._changed:
            if ended is not None and self._done(ended):
                return None
            seen = -1
            while not self._stopping:
                found = self._queue.take() if seen == self._begun or not self._one_is_enough else None
                if found is not None:
                    self._begun += 1
                    share = self._queue.group_of(found)
                    if isinstance(share, WorkerShare):
                        self._shared[found] = (share, time.monotonic())
                    if self._queue.is_ready and not self._one_is_enough:
                        self._changed.notify()
                    return found
                seen = self._begun
                self._changed.wait(HELP_AFTER_S if self._queue.is_ready else None)
            return None

    def _done(self, ended: Ended) -> bool:
        """Report a finished step; return whether its thread ends, too, because another replaced it."""
        self._queue.done(ended.task, more=ended.more, background=ended.background)
        self._are_short = ended.took_s < SHORT_STEP_S
        share, _ = self._shared.pop(ended.task, (None, 0.0))
        if share is not None and share.has_ended:
            self._changed.notify_all()  # another thread waits for the last of its steps
        if ended.task not in self._hanging:
            return False
        self._hanging.remove(ended.task)
        self._threads.remove(threading.current_thread())
        if self._queue.is_ready:
            self._changed.notify()
        return True

    @property
    def _one_is_enough(self) -> bool:
        """Whether the worker that tails now should do the waiting steps, too."""
        return self._are_short and self._queue.tails_only


class WorkerShare:
    """One application's share of the workers. It waits at most one step for each other application."""

    def __init__(self, workers: Workers) -> None:
        self.failure: BaseException | None = None
        self.has_ended = False
        self._workers = workers

    def start(self) -> None:
        """Do nothing: the process starts the workers."""

    def submit(self, *tasks: SteppedTask) -> None:
        if self.failure is None and not self.has_ended:
            self._workers.submit(*tasks, share=self)

    def discard(self, task: SteppedTask) -> None:
        self._workers.discard(task)

    def stop(self, *, timeout_s: float) -> None:
        """Take no further step, and wait for those in flight."""
        self._workers.end_share(self, timeout_s=timeout_s)


PREFETCH_FLOOR_MS = 25.0
PREFETCH_MS_PER_TASK = 2.0
"""Interval of polls for the next version's file, per task: a poll costs a stat or a listing; this bounds them to a few
percent of a core.
"""

LOOKS_AT_REST = 5
"""Number of `retry_ms` between two passes while every replica shows the end: its cost grows with the tasks."""


class WorkSchedule:
    """The schedule that hands steps to `workers`. A replica that failed is tried again every `retry_ms`."""

    def __init__(self, workers: Steps, *, retry_ms: float) -> None:
        self.workers = workers
        self._retry_ms = retry_ms
        self._next_prefetch_ms = 0.0
        self._next_retry_ms = 0.0
        self._looked_at: tuple[int, list[TaskReplica]] | None = None
        """The end and the replicas of the last pass; None before it."""

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
        # One pass for all checks: its cost grows with the tasks, and `behind` is the most expensive check.
        for replica in replicas:
            if retry:
                replica.check_stall(self._retry_ms)
            behind, view = replica.behind, replica.view
            shows_end = view is not None and view.version == end_version
            is_at_rest = is_at_rest and shows_end and not behind and replica.error is None
            if view is not None and (behind or replica.progress.is_limited):
                _learn_next(history, view.version, end_version)
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


def _learn_next(history: CommitHistory, version: int, end_version: int) -> None:
    """Read the commit time after a version, once: lookups compute the time lag from it."""
    if version < end_version and not history.is_commit_time_learned(version + 1):
        history.learn_commit_time(version + 1)


def prefetch_interval_ms(tasks: int) -> float:
    """Return the interval between two polls for the next version's files."""
    return max(PREFETCH_FLOOR_MS, PREFETCH_MS_PER_TASK * tasks)
