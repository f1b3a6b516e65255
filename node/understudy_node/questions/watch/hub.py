"""The watched partitions of a node: new versions are compared with what is watched, and watchers of changes are woken.

Worker threads only put a published version into its partition's queue. Everything else happens on the event loop, in
slices, beside lookups and never as a part of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from understudy_node.generations import Generation
from understudy_node.questions.watch.watched_task import NodeKey, WatchedTask
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import StoreName
from understudy_shared.questions.watch.events import EndReason
from understudy_shared.questions.watch.shared_keys import SharedKey
from understudy_shared.questions.watch.streams import WatchEndedError, WatchStream, slices_of
from understudy_shared.reads.bounds import Selection

log = logging.getLogger(__name__)

_Place = tuple[str, int, Selection]


class WatchHub:
    """The watched partitions of the generation that is served. `generation` returns it."""

    def __init__(self, generation: Callable[[], Generation | None]) -> None:
        self._generation = generation
        self._seen: Generation | None = None
        self._tasks: dict[_Place, WatchedTask] = {}
        self._followers: dict[_Place, Callable[[TaskView], None]] = {}
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._reads_before = 0
        """Number of keys that were read for partitions that are watched no more."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def reads(self) -> int:
        """Number of keys that were read because they are watched."""
        return self._reads_before + sum(task.reads for task in self._tasks.values())

    def changed(self) -> None:
        """Look whether another generation is served now; called from any thread after each publication."""
        if self._tasks and self._generation() is not self._seen:
            self._wake()

    def join(self, reader: StoreReader, partition: int, selection: Selection, view: TaskView) -> WatchedTask:
        """Return the watched partition of a store, which shows `view` or a later version. Raises WatchEndedError if the
        store is read in another way by now.
        """
        if self._generation() is not self._seen:
            self._look()
        if self._seen is None or self._seen.readers.get(reader.store.name) is not reader:
            raise WatchEndedError(EndReason.MOVED)
        place = (reader.store.name, partition, selection)
        task = self._tasks.get(place)
        if task is None:
            task = self._tasks[place] = WatchedTask(reader, partition, selection, view)
            self._follow(place, task)
        return task

    def leave(self, task: WatchedTask, keys: Iterable[SharedKey], stream: WatchStream) -> None:
        """Take a watcher from its keys, and the partition away with its last one."""
        for key in keys:
            task.leave(key, stream)
        place = (task.reader.store.name, task.partition, task.selection)
        if not task.keys and not task.feeds and self._tasks.get(place) is task:
            self._drop(place)

    def _follow(self, place: _Place, task: WatchedTask) -> None:
        self._loop = asyncio.get_running_loop()
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="compare watched keys")

        def follow(view: TaskView) -> None:
            task.waiting.append(view)
            self._wake()

        self._followers[place] = follow
        task.replica.followers += (follow,)
        view = task.replica.view
        if view is not None and view.version > task.version:
            follow(view)  # published before it was followed

    def _drop(self, place: _Place) -> None:
        task, follow = self._tasks.pop(place), self._followers.pop(place)
        task.replica.followers = tuple(each for each in task.replica.followers if each is not follow)
        self._reads_before += task.reads

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def stop(self) -> None:
        """Stop to compare."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    # ---- new versions

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._generation() is not self._seen:
                self._look()
            for task in list(self._tasks.values()):
                try:
                    await self._compare(task)
                except Exception:
                    log.exception("watched keys could not be compared", extra={"action": "watch-compare-failed"})
                    self._end(task, EndReason.UNAVAILABLE)

    async def _compare(self, task: WatchedTask) -> None:
        while task.waiting:
            for changed in task.compare(task.waiting.popleft()):
                await self._tell(changed)
                await asyncio.sleep(0)
            for stream in task.feeds.values():  # routers hear of each version
                cast(WatchStream, stream).wake()

    async def _tell(self, changed: Sequence[NodeKey]) -> None:
        """Wake the watchers of changed keys, a slice in a turn of the loop."""
        if not changed:
            return
        streams = {cast(WatchStream, stream) for key in changed for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                stream.wake()
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Go on with partitions that another generation serves in the same way, and end the watches of others."""
        before, generation = self._seen, self._generation()
        self._seen = generation
        is_same = (
            before is not None
            and generation is not None
            and generation.description is before.description
            and generation.aliases is before.aliases
        )
        for place, task in list(self._tasks.items()):
            reader = generation.readers.get(StoreName(place[0])) if generation is not None and is_same else None
            if reader is not None and reader.replicas.get(task.partition) is task.replica:
                task.reader = reader
            else:
                self._end(task, EndReason.MOVED)

    def _end(self, task: WatchedTask, reason: EndReason) -> None:
        """End the watches of a partition. Who comes back gets another one."""
        place = (task.reader.store.name, task.partition, task.selection)
        if self._tasks.get(place) is task:
            self._drop(place)
        users = {stream for key in task.keys.values() for stream in key.users}
        for stream in users.union(task.feeds.values()):
            cast(WatchStream, stream).end(reason)
