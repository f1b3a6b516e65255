"""The source of a watcher at a node: the replicas of the node, and for what it missed the checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, NamedTuple

from understudy_node.questions.scan.versions import reading_at
from understudy_node.questions.watch.hub import WatchHub
from understudy_node.questions.watch.resumed import CatchingUp
from understudy_node.questions.watch.watched_task import NodeKey, WatchedTask, changes_of
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.watch.service import WatchQuestion
from understudy_shared.questions.watch.shared_keys import CaughtUp
from understudy_shared.questions.watch.streams import WatchStream, WatchStreams
from understudy_shared.questions.watch.watcher import Joined, WatchSource
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.tokens import Position

WAIT_MS: Final = 3_000
"""Longest time that a watcher waits until a replica has the version that the watcher has seen."""

LOOK_AGAIN_S: Final = 0.005


class WatcherParts(NamedTuple):
    """The parts that all watchers of a node share. `learn` reads when the version of a position was committed."""

    hub: WatchHub
    streams: WatchStreams
    catching_up: CatchingUp
    learn: Callable[[Position], Awaitable[None]]

    async def require(self, reader: StoreReader, partitions: Sequence[int], after: Position) -> None:
        """Wait until each partition has the version of a position. Raises the problem of one that does not."""
        await self.learn(after)
        bound = Bound(min_position=after, wait_ms=WAIT_MS)
        for partition in partitions:
            await reading_at(reader, partition, bound)

    async def compared(self, task: WatchedTask, version: int) -> None:
        """Wait until keys are compared with a version that their replica has: their changes up to it count before."""
        until_s = monotonic() + WAIT_MS / 1000
        while task.version < version and monotonic() < until_s:  # noqa: ASYNC110  # rare, and short
            await asyncio.sleep(LOOK_AGAIN_S)


class NodeSource(WatchSource):
    """The keys of the replicas of a store."""

    __slots__ = ("_reader", "_shared")

    def __init__(self, shared: WatcherParts, reader: StoreReader) -> None:
        self._shared, self._reader = shared, reader

    @property
    def lineage(self) -> str:
        return self._reader.lineage

    @property
    def json_name(self) -> bytes:
        return self._reader.json_name

    async def join(self, asked: WatchQuestion, stream: WatchStream, joined: list[Joined]) -> bool:
        is_reset = asked.after is not None and not await self._is_own(asked, asked.after)
        for partition, indexes in asked.by_partition().items():
            reading = await reading_at(self._reader, partition, NO_BOUND)
            task = self._shared.hub.join(self._reader, partition, asked.selection, reading.view)
            keys: list[NodeKey] = []
            joined.append(Joined(task, keys, indexes))
            step = self._reader.keys_at_once
            for start in range(0, len(indexes), step):
                few = [asked.keys[index] for index in indexes[start : start + step]]
                for key in task.join([(key.row, key.printed) for key in few]):
                    key.users.add(stream)
                    keys.append(key)
                await asyncio.sleep(0)
        if asked.after is not None and not is_reset:
            for each in joined:
                assert isinstance(each.part, WatchedTask), "its own"
                await self._shared.compared(each.part, asked.after.version)
        return is_reset

    async def _is_own(self, asked: WatchQuestion, after: Position) -> bool:
        """Whether a position is of this history. Waits until each partition has that version. Raises the problem of one
        that does not.
        """
        if after.lineage != self._reader.lineage:
            return False
        try:
            await self._shared.require(self._reader, list(asked.by_partition()), after)
        except ProblemError as error:
            if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                raise
            return False
        return True

    async def since(self, joined: Joined, after: Position) -> CaughtUp:
        task, keys = joined.part, joined.keys
        assert isinstance(task, WatchedTask), "its own"
        found = await self._shared.catching_up.since(task, keys, after.version)
        changes = changes_of(task.reader, task.replica, [key.printed for key in keys], found.entries)
        return CaughtUp(changes, found.reached, found.last, found.counts)

    def leave(self, joined: Joined, stream: WatchStream) -> None:
        assert isinstance(joined.part, WatchedTask), "its own"
        self._shared.hub.leave(joined.part, joined.keys, stream)
