"""One watcher at a node: the keys that it joins, what it missed, and the events that it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from understudy_node.http.catching_up import CatchingUp, CaughtUp
from understudy_node.http.scan_versions import reading_at
from understudy_node.http.watch_hub import WatchHub
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.watched_task import NodeKey, WatchedTask, kind_of, position_of
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.position import Position
from understudy_shared.reads.watch import Batch, Telling, Watch
from understudy_shared.reads.watch_events import (
    KEEP_ALIVE,
    KeyEvent,
    at_key,
    coalesced_event,
    reset_event,
    version_event,
    with_id,
)
from understudy_shared.reads.watch_hop import WatchKey
from understudy_shared.server.watch_sending import PIECE_BYTES, Events
from understudy_shared.server.watch_streams import WatchStream, WatchStreams
from understudy_shared.server.watches import WatchQuestion

WAIT_MS: Final = 3_000
"""Longest time that a watcher waits until a replica has the version that the watcher has seen."""


class WatcherParts(NamedTuple):
    """The parts that all watchers of a node share. `learn` reads when the version of a position was committed."""

    hub: WatchHub
    streams: WatchStreams
    catching_up: CatchingUp
    learn: Callable[[Position], Awaitable[None]]


class Watcher:
    """One watcher: its keys, each with its partition, and what it is sent."""

    __slots__ = ("_asked", "_is_router", "_joined", "_keys", "_reader", "_shared", "_stream")

    def __init__(
        self, shared: WatcherParts, reader: StoreReader, asked: WatchQuestion, stream: WatchStream, *, is_router: bool
    ) -> None:
        self._shared, self._reader, self._asked, self._stream = shared, reader, asked, stream
        self._is_router = is_router
        self._keys: list[tuple[NodeKey, WatchedTask]] = []
        self._joined: list[tuple[WatchedTask, list[NodeKey]]] = []

    async def events(self) -> Events:
        """Yield the events, from the first on at once."""
        try:
            after, is_reset = await self._go_on_behind(self._asked.after)
            await self._join()
            if is_reset:
                yield reset_event(self._reader.lineage)
            watch = Watch(self._keys, None if after is None else after.version)
            if after is not None:
                async with aclosing(self._missed(watch, after.version)) as missed:
                    async for piece in missed:
                        yield piece
            is_due = True
            while True:
                self._stream.require_open()
                batch = watch.take(PIECE_BYTES, wants_position=is_due)
                if batch.tellings or is_due:
                    yield self._encoded(batch)
                else:
                    await self._stream.wait()
                is_due = self._stream.is_quiet
        finally:
            for task, keys in self._joined:
                self._shared.hub.leave(task, keys, self._stream)

    async def _go_on_behind(self, after: Position | None) -> tuple[Position | None, bool]:
        """Return the position to go on behind, and whether what was seen belongs to another history. Waits until each
        partition has that version. Raises the problem of one that does not.
        """
        if after is None:
            return None, False
        if after.lineage != self._reader.lineage:
            return None, True
        await self._shared.learn(after)
        bound = Bound(min_position=after, wait_ms=WAIT_MS)
        try:
            for partition in {key.partition for key in self._asked.keys}:
                await reading_at(self._reader, partition, bound)
        except ProblemError as error:
            if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                raise
            return None, True
        return after, False

    async def _join(self) -> None:
        """Join the keys' partitions. Raises the problem of one that cannot be read."""
        asked, hub = self._asked, self._shared.hub
        at: dict[bytes, tuple[NodeKey, WatchedTask]] = {}
        for partition, keys in _by_partition(asked.keys).items():
            reading = await reading_at(self._reader, partition, NO_BOUND)
            task = hub.join(self._reader, partition, asked.selection, reading.view)
            joined: list[NodeKey] = []
            self._joined.append((task, joined))
            step = self._reader.keys_at_once
            for start in range(0, len(keys), step):
                few = keys[start : start + step]
                for key in task.join([(key.row, key.printed) for key in few]):
                    key.users.add(self._stream)
                    joined.append(key)
                    at[key.row] = (key, task)
                await asyncio.sleep(0)
        self._keys = [at[key.row] for key in asked.keys]

    async def _missed(self, watch: Watch, version: int) -> Events:
        """Yield the changes behind a version that are not compared any more, up to those that are."""
        indexes = {id(key): index for index, (key, _) in enumerate(self._keys)}
        for task, keys in self._joined:
            reached, last = version, task.version
            while reached < last:
                found = await self._shared.catching_up.since(task, keys, reached)
                reached, last = found.reached, found.last
                yield self._encoded_changes(task, keys, found, indexes)
                for key, count in zip(keys, found.counts, strict=True):
                    watch.was_sent(indexes[id(key)], reached, count)

    def _encoded_changes(
        self, task: WatchedTask, keys: Sequence[NodeKey], found: CaughtUp, indexes: Mapping[int, int]
    ) -> bytes:
        texts: list[bytes] = []
        for entry in found.entries:
            key = keys[entry.at]
            event = self._shown(task.changed_event(key.printed, entry.members, entry.view))
            self._shared.streams.events[kind_of(entry.members)] += 1
            position = position_of(task.reader, entry.view) if len(self._keys) == 1 else None
            texts.append(self._at(indexes[id(key)], entry.view.version) + with_id(event, position))
        return b"".join(texts) or KEEP_ALIVE

    def _encoded(self, batch: Batch) -> bytes:
        if not batch.tellings:
            return KEEP_ALIVE if batch.position is None else self._version(batch.position)
        texts = [self._encoded_telling(each) for each in batch.tellings]
        return b"".join([*(with_id(text, None) for text in texts[:-1]), with_id(texts[-1], batch.position)])

    def _encoded_telling(self, telling: Telling) -> bytes:
        """Return the events of a key, the last one without its end."""
        key, task = self._keys[telling.at]
        events, missed = self._shared.streams.events, telling.missed
        version = task.version if telling.is_first else key.version
        at = self._at(telling.at, version)
        coalesced = b""
        if missed is not None:
            self._shared.streams.coalesced += missed.changes or 0
            events[KeyEvent.COALESCED] += 1
            name = self._reader.json_name
            coalesced = self._at(telling.at, missed.first) + coalesced_event(name, key.printed, *missed)
            if not telling.tells_value:
                return coalesced
            coalesced = with_id(coalesced, None)
        if telling.is_first:
            events[KeyEvent.SNAPSHOT] += 1
            return at + self._shown(task.first_event(key))
        events[kind_of(key.members)] += 1
        return coalesced + at + self._shown(key.event)

    def _version(self, position: str) -> bytes:
        return version_event(min(task.version for task, _ in self._joined), position)

    def _at(self, index: int, version: int) -> bytes:
        return at_key(index, version) if self._is_router else b""

    def _shown(self, event: bytes) -> bytes:
        """Return an event with its whole numbers as the reader wants them."""
        if not self._asked.longs_as_text:
            return event
        head, _, data = event.partition(b"data: ")
        return b"%bdata: %b" % (head, longs_as_text(data))


def _by_partition(keys: Sequence[WatchKey]) -> dict[int, list[WatchKey]]:
    found: dict[int, list[WatchKey]] = {}
    for key in keys:
        found.setdefault(key.partition, []).append(key)
    return found
