"""Watchers that go on behind a version: what they missed is read from the checkpoint, once for all of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from understudy_node.questions.watch.key_changes import KeyChanges, SeenKey, read_changes
from understudy_node.questions.watch.watched_task import KeyChange, NodeKey, WatchedTask
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.http.problems import ProblemError, ProblemType, problem_of
from understudy_shared.questions.watch.shared_keys import SharedKey
from understudy_shared.reads.bounds import Selection

PASS_S: Final = 2.0
"""Time after which a pass over the versions ends: what is missing is another one."""

PATIENCE_S: Final = 10.0
"""Time for which a pass is asked for again while too many histories are read."""

RETRY_S: Final = 0.2


class Passed(NamedTuple):
    """The changes that a watcher missed, up to version `reached`; and the counts of changes of its keys at version
    `last`, up to which they were asked for.
    """

    entries: list[KeyChange]
    reached: int
    last: int
    counts: list[int]


class _Asked(NamedTuple):
    keys: Sequence[SharedKey]
    version: int
    answer: asyncio.Future[Passed]


class CatchingUp:
    """The passes over the versions of watched partitions: one at a time of each, shared by those who wait for it."""

    def __init__(self) -> None:
        self.passes = 0
        self._asked: dict[WatchedTask, list[_Asked]] = {}
        self._running: dict[WatchedTask, asyncio.Task[None]] = {}

    async def since(self, task: WatchedTask, keys: Sequence[SharedKey], version: int) -> Passed:
        """Return what changed of some keys behind a version. Raises the problem of one that is gone."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Passed] = loop.create_future()
        self._asked.setdefault(task, []).append(_Asked(keys, version, answer))
        if task not in self._running:
            self._running[task] = loop.create_task(self._run(task), name="read what watchers missed")
        return await answer

    async def read(
        self, reader: StoreReader, replica: TaskReplica, selection: Selection, seen: Sequence[SeenKey], last: int
    ) -> KeyChanges:
        """Read what changed of some keys in one pass. Raises the problem of a version that is gone."""
        self.passes += 1
        until_s = monotonic() + PATIENCE_S
        while True:
            work = partial(read_changes, reader, replica, selection, seen, last, monotonic() + PASS_S)
            try:
                return await asyncio.wrap_future(replica.in_thread(work))
            except (MissingVersionError, VanishedError):  # Spark purged it, perhaps in this moment
                retained = await asyncio.to_thread(replica.retained)
                raise ProblemError(replica.origin.as_gone(retained)) from None
            except ProblemError as error:
                if problem_of(error).type is not ProblemType.OVERLOADED or monotonic() >= until_s:
                    raise
            await asyncio.sleep(RETRY_S)

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
        wanted = _wanted_by(behind)
        seen = [SeenKey(key.row, version) for key, version in wanted]
        try:
            found = KeyChanges([], last)
            if seen:
                found = await self.read(task.reader, task.replica, task.selection, seen, last)
        except UnderstudyError as error:
            self._refuse(asked, error)
            return
        except Exception as error:
            self._refuse(asked, error)
            raise
        of = _by_asker(list(wanted.values()), found.entries)
        for each, count in zip(asked, counts, strict=True):
            if not each.answer.done():
                entries = of.get(id(each), [])
                each.answer.set_result(Passed(entries, max(found.reached, each.version), last, count))

    def _refuse(self, asked: Sequence[_Asked], error: Exception) -> None:
        for each in asked:
            if not each.answer.done():
                each.answer.set_exception(error)


_Owner = tuple[_Asked, int]


def _wanted_by(asked: Sequence[_Asked]) -> dict[tuple[NodeKey, int], list[_Owner]]:
    """Return each key and version that is asked for once, with who asks for it and as which of its keys."""
    wanted: dict[tuple[NodeKey, int], list[_Owner]] = {}
    for each in asked:
        for index, key in enumerate(each.keys):
            assert isinstance(key, NodeKey), "its own"
            wanted.setdefault((key, each.version), []).append((each, index))
    return wanted


def _by_asker(owners: Sequence[Sequence[_Owner]], entries: Sequence[KeyChange]) -> dict[int, list[KeyChange]]:
    """Return the changes of each asker, with the indexes of its own keys."""
    found: dict[int, list[KeyChange]] = {}
    for entry in entries:
        for each, index in owners[entry.at]:
            found.setdefault(id(each), []).append(entry._replace(at=index))
    return found
