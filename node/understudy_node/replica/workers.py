"""The threads that run steps: a fixed number of workers over one fair queue.

Short tailing steps are left to one worker, because they compute: a second thread would only take the interpreter's lock
from the first, and waking it costs as much as a step. The others join as soon as a step is long, or does not end: then
it waits for files, and waiting can be shared.

A step that raises an unexpected exception is a bug: it is stored in `failure`, the workers stop, and the node turns
unready instead of running on with replicas that silently stall.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from understudy_node.replica.fair_queue import FairQueue

log = logging.getLogger(__name__)

SHORT_STEP_S = 0.002
"""Time up to which a step is short: a usual commit takes a tenth of it; reading a remote file takes longer."""

HELP_AFTER_S = 0.005
"""Time for which a second worker watches the first before it joins."""


class SteppedTask(Hashable, Protocol):
    """A task that can be advanced by one bounded step."""

    @property
    def restoring(self) -> bool: ...

    def step(self) -> bool:
        """Do one bounded piece of work; True when there is more to do right now."""


class Ended(NamedTuple):
    """A step that ended: whether there is more to do, of which class, and how long it took."""

    task: SteppedTask
    more: bool
    restoring: bool
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
        self.failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name=f"worker-{n}", daemon=True) for n in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, *tasks: SteppedTask) -> None:
        """Queue a step of each of these."""
        with self._changed:
            for task in tasks:
                self._queue.put(task, restoring=task.restoring)
            if self._queue.is_ready:
                self._changed.notify(min(2, len(tasks)))  # Wake two: one works, the other watches it.

    def discard(self, task: SteppedTask) -> None:
        """Run no further step of `task`; one in flight still ends."""
        with self._changed:
            self._queue.discard(task)

    def stop(self, *, timeout_s: float) -> None:
        """End the threads after the steps in flight, waiting `timeout_s` for all of them together."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _run(self) -> None:
        ended: Ended | None = None
        while (task := self._next(ended)) is not None:
            began_s = time.perf_counter()
            try:
                more, restoring = task.step(), task.restoring
            except BaseException as error:
                log.exception("a step failed unexpectedly", extra={"action": "worker-failed"})
                with self._changed:
                    self.failure = self.failure or error
                    self._stopping = True
                    self._changed.notify_all()
                return
            ended = Ended(task, more, restoring, time.perf_counter() - began_s)

    def _next(self, ended: Ended | None) -> SteppedTask | None:
        """Report the step that ended and wait for the next. A worker that leaves work behind wakes another one, unless
        it is enough alone.
        """
        with self._changed:
            if ended is not None:
                self._queue.done(ended.task, more=ended.more, restoring=ended.restoring)
                self._are_short = ended.took_s < SHORT_STEP_S
            seen = -1
            while not self._stopping:
                found = self._queue.take() if seen == self._begun or not self._one_is_enough else None
                if found is not None:
                    self._begun += 1
                    if self._queue.is_ready and not self._one_is_enough:
                        self._changed.notify()
                    return found
                seen = self._begun
                self._changed.wait(HELP_AFTER_S if self._queue.is_ready else None)
            return None

    @property
    def _one_is_enough(self) -> bool:
        """Whether the worker that tails now should do the waiting steps, too."""
        return self._are_short and self._queue.tails_only
