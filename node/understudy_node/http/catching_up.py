"""Watchers that go on behind a version: what they missed is read from the checkpoint, once for all of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from understudy_node.stores.key_changes import KeyChange, KeyChanges, SeenKey, read_changes
from understudy_node.stores.watched_task import NodeKey, WatchedTask
from understudy_shared.base.errors import MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.http.problems import ProblemError, ProblemType, problem_of

PASS_S: Final = 2.0
"""Time after which a pass over the versions ends: what is missing is another one."""

PATIENCE_S: Final = 10.0
"""Time for which a pass is asked for again while too many histories are read."""

RETRY_S: Final = 0.2


class CaughtUp(NamedTuple):
    """The changes that a watcher missed, up to version `reached`; and the counts of changes of its keys at the version
    up to which they were asked for.
    """

    entries: Sequence[KeyChange]
    reached: int
    last: int
    counts: Sequence[int]


class _Asked(NamedTuple):
    keys: Sequence[NodeKey]
    version: int
    answer: asyncio.Future[CaughtUp]


class CatchingUp:
    """The passes over the versions of watched partitions: one at a time of each, shared by those who wait for it."""

    def __init__(self) -> None:
        self.passes = 0
        self._asked: dict[WatchedTask, list[_Asked]] = {}
        self._running: dict[WatchedTask, asyncio.Task[None]] = {}

    async def since(self, task: WatchedTask, keys: Sequence[NodeKey], version: int) -> CaughtUp:
        """Return what changed of some keys behind a version. Raises the problem of one that is gone."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CaughtUp] = loop.create_future()
        self._asked.setdefault(task, []).append(_Asked(keys, version, answer))
        if task not in self._running:
            self._running[task] = loop.create_task(self._run(task), name="read what watchers missed")
        return await answer

    async def _run(self, task: WatchedTask) -> None:
        try:
            while asked := self._asked.pop(task, []):
                await self._answered(task, [each for each in asked if not each.answer.done()])
        finally:
            del self._running[task]

    async def _answered(self, task: WatchedTask, asked: Sequence[_Asked]) -> None:
        """Read once for all who wait, up to the version that is compared now."""
        last = task.version
        counts = [[key.changes for key in each.keys] for each in asked]
        behind = [each for each in asked if each.version < last]
        try:
            found = await self._read(task, behind, last) if behind else KeyChanges([], last)
        except UnderstudyError as error:
            self._refuse(asked, error)
            return
        except Exception as error:
            self._refuse(asked, error)
            raise
        of = _by_asker(behind, found.entries)
        for each, count in zip(asked, counts, strict=True):
            if not each.answer.done():
                entries = of.get(id(each), [])
                each.answer.set_result(CaughtUp(entries, max(found.reached, each.version), last, count))

    async def _read(self, task: WatchedTask, asked: Sequence[_Asked], last: int) -> KeyChanges:
        seen = [SeenKey(key.row, each.version) for each in asked for key in each.keys]
        self.passes += 1
        until_s = monotonic() + PATIENCE_S
        while True:
            work = partial(read_changes, task.reader, task.replica, task.selection, seen, last, monotonic() + PASS_S)
            try:
                return await asyncio.wrap_future(task.replica.in_thread(work))
            except (MissingVersionError, VanishedError):  # Spark purged it, perhaps in this moment
                retained = await asyncio.to_thread(task.replica.retained)
                raise ProblemError(task.replica.origin.as_gone(retained)) from None
            except ProblemError as error:
                if problem_of(error).type is not ProblemType.OVERLOADED or monotonic() >= until_s:
                    raise
            await asyncio.sleep(RETRY_S)

    def _refuse(self, asked: Sequence[_Asked], error: Exception) -> None:
        for each in asked:
            if not each.answer.done():
                each.answer.set_exception(error)


def _by_asker(asked: Sequence[_Asked], entries: Sequence[KeyChange]) -> dict[int, list[KeyChange]]:
    """Return the changes of each asker, with the indexes of its own keys."""
    owners = [(each, index) for each in asked for index in range(len(each.keys))]
    found: dict[int, list[KeyChange]] = {}
    for entry in entries:
        each, index = owners[entry.at]
        found.setdefault(id(each), []).append(entry._replace(at=index))
    return found
