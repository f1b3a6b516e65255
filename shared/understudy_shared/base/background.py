"""Work on the event loop: background tasks with an owner, and long work in slices of a millisecond.

A bare asyncio task that raises is silent until it is collected. Rule: every task is started by a supervisor, so that
the service turns unready when one dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Generator, Iterable
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0

CANCEL_AGAIN_S = 0.5
"""The wait before a task is cancelled again: `asyncio.wait_for` of Python 3.11, which redis-py uses, loses a
cancellation that comes as its work is done.
"""


async def shielded(task: asyncio.Future[T]) -> T:
    """Wait for a task that continues when its waiter is cancelled. `asyncio.shield` of Python 3.14 logs what the task
    raises then as an error, although its waiter has gone.
    """
    task.add_done_callback(_look_at)
    await asyncio.wait({task})
    return task.result()


def _look_at(task: asyncio.Future[Any]) -> None:
    """Tell asyncio that the error of a task is known."""
    if not task.cancelled():
        task.exception()


class Supervisor:
    """The background tasks of one service. `failure` names the first that died, and its error; None while all live."""

    def __init__(self) -> None:
        self.failure: tuple[str, BaseException] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until `stop`; its end before that is a failure. Names are used once."""
        assert name not in self._tasks, f"two background tasks are called {name!r}"
        task = asyncio.get_running_loop().create_task(self._watch(name, work), name=name)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it was never awaited
        self._tasks[name] = task

    @property
    def dead(self) -> str | None:
        """The reason why the service must end; None while it runs."""
        return None if self.failure is None else f"background task {self.failure[0]!r} died: {self.failure[1]!r}"

    async def stop(self) -> None:
        """Cancel all, in reverse order of start, and wait for their ends for a bounded time."""
        self._stopping = True
        late: Collection[asyncio.Task[None]] = list(reversed(self._tasks.values()))
        clock = asyncio.get_running_loop().time
        end_s = clock() + STOP_TIMEOUT_S
        while late and (left_s := end_s - clock()) > 0:
            for task in late:
                task.cancel()
            _, late = await asyncio.wait(late, timeout=min(left_s, CANCEL_AGAIN_S))
        self._tasks.clear()

    async def _watch(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            if not self._stopping:
                raise RuntimeError("it ended")
        except GeneratorExit:
            raise  # its loop is gone
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the task itself was cancelled; otherwise something it awaited was, which is a failure
            self.failure = self.failure or (name, error)
            log.exception("background task %s died", name, extra={"action": "task-died"})


SLICE_S = 0.001


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Return the result of work that yields wherever it may be interrupted."""
    until_s = perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found
        if perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = perf_counter() + SLICE_S


async def sliced(things: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield the things in order, those of one slice at a time."""
    made: list[T] = []
    until_s = perf_counter() + SLICE_S
    for each in things:
        made.append(each)
        if perf_counter() >= until_s:
            yield made
            await asyncio.sleep(0)  # a consumer may take a list without giving way to other tasks
            made = []
            until_s = perf_counter() + SLICE_S
    if made:
        yield made
