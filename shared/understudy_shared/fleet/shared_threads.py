"""Threads for blocking calls that several applications share: no application can keep them all.

The requests of an application may begin a call while it has fewer of them than threads are free. So one whose storage
hangs keeps half of the threads, two keep two thirds, and there are always some for the next. What is done in the
background is little, and takes a thread at once: an application must be able to end.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

APPLICATION: ContextVar[str] = ContextVar("application", default="")
"""The application that answers this request; empty for all other work of the process."""


class _Call(NamedTuple):
    """A blocking call that waits for a thread."""

    future: Future[Any]
    run: Callable[[], Any]


class SharedThreads(ThreadPoolExecutor):
    """The pool. Calls of a request wait for the share of its application; all others take any thread."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._count = count
        self._lock_of_shares = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Call]] = {}
        """The calls that wait, by application; the one that waits longest for its turn comes first."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        application = APPLICATION.get()
        if not application:
            return super().submit(fn, *args, **kwargs)
        call = _Call(Future(), partial(fn, *args, **kwargs))
        with self._lock_of_shares:
            self._waiting.setdefault(application, deque()).append(call)
        self._begin_what_may()
        return call.future

    def waiting(self, application: str) -> int:
        """Return how many calls of an application wait for a thread."""
        return len(self._waiting.get(application, ()))

    def _begin_what_may(self) -> None:
        while (found := self._next()) is not None:
            application, call = found
            try:
                super().submit(self._run, application, call)
            except RuntimeError as error:  # the pool was shut down
                self._ended(application)
                call.future.set_exception(error)

    def _next(self) -> tuple[str, _Call] | None:
        """Take the call that may begin now; None: each application that waits has its share."""
        with self._lock_of_shares:
            free = self._count - self._running.total()
            for application, calls in self._waiting.items():
                if self._running[application] < free:
                    call = calls.popleft()
                    del self._waiting[application]
                    if calls:
                        self._waiting[application] = calls  # behind the others
                    self._running[application] += 1
                    return application, call
        return None

    def _run(self, application: str, call: _Call) -> None:
        try:
            if call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.run())
                except BaseException as error:
                    call.future.set_exception(error)
        finally:
            self._ended(application)
            self._begin_what_may()

    def _ended(self, application: str) -> None:
        with self._lock_of_shares:
            self._running[application] -= 1
            if not self._running[application]:
                del self._running[application]
