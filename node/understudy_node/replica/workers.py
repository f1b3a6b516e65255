"""The threads that run steps: a fixed number of workers over one fair queue.

A step that raises an unexpected exception is a bug: it is kept in `failure`, the workers stop, and the node turns
unready instead of running on with replicas that silently stall.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from typing import Protocol

from understudy_node.replica.fair_queue import FairQueue

log = logging.getLogger(__name__)


class Steps(Hashable, Protocol):
    """A task that can be advanced by one bounded step."""

    @property
    def restoring(self) -> bool: ...

    def step(self) -> bool:
        """Do one bounded piece of work; True when there is more to do right now."""


class Workers:
    """`count` daemon threads; `submit` never blocks."""

    def __init__(self, *, count: int) -> None:
        self._queue: FairQueue[Steps] = FairQueue(workers=count)
        self._changed = threading.Condition()
        self._stopping = False
        self.failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name=f"worker-{n}", daemon=True) for n in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, *tasks: Steps) -> None:
        """Queue a step of each of these."""
        with self._changed:
            for task in tasks:
                self._queue.put(task, restoring=task.restoring)
            if self._queue.is_ready:
                self._changed.notify()

    def discard(self, task: Steps) -> None:
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
        ended: tuple[Steps, bool, bool] | None = None
        while (task := self._next(ended)) is not None:
            try:
                more, restoring = task.step(), task.restoring
            except BaseException as error:
                log.exception("a step failed unexpectedly", extra={"action": "worker-failed"})
                with self._changed:
                    self.failure = self.failure or error
                    self._stopping = True
                    self._changed.notify_all()
                return
            ended = (task, more, restoring)

    def _next(self, ended: tuple[Steps, bool, bool] | None) -> Steps | None:
        """Report the step that ended and wait for the next. A worker that leaves work behind wakes another one."""
        with self._changed:
            if ended is not None:
                task, more, restoring = ended
                self._queue.done(task, more=more, restoring=restoring)
            while not self._stopping:
                found = self._queue.take()
                if found is not None:
                    if self._queue.is_ready:
                        self._changed.notify()
                    return found
                self._changed.wait()
            return None
