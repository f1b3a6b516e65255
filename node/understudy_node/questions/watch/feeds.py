"""The feeds of routers: of each partition that a router watches one stream, to which it adds keys and drops them.

A feed is sent each version of its partition, so the router knows how far it is without asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Final

from understudy_node.questions.lookup.hop_lookups import MISPLACED
from understudy_node.questions.scan.versions import reading_at
from understudy_node.questions.watch.key_changes import KeyChanges, SeenKey
from understudy_node.questions.watch.watched_task import KeyChange, NodeKey, WatchedTask, changes_of, kind_of
from understudy_node.questions.watch.watcher import WatcherParts
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.watch.choice import Batch, Telling
from understudy_shared.questions.watch.events import (
    KEEP_ALIVE,
    EndReason,
    KeyEvent,
    at_fed_key,
    at_key,
    coalesced_event,
    version_event,
    version_text,
    with_id,
    with_tail,
)
from understudy_shared.questions.watch.feed_choice import FeedWatch
from understudy_shared.questions.watch.hop import FeedHop, FeedKeysHop, MissedHop
from understudy_shared.questions.watch.sending import PIECE_BYTES, Begun, Events, begun
from understudy_shared.questions.watch.shared_keys import SharedKey
from understudy_shared.questions.watch.streams import MAX_WATCHED_KEYS, WatchEndedError, WatchStream
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.reads.tokens import Position

KEYS_S: Final = 10.0
"""Time limit for the keys of a resumed feed."""


NO_FEED: Final = Problem(ProblemType.BAD_REQUEST, "this node has no such feed", "name", "Open it again")


class WatchFeeds:
    """The feeds of a node, by the names that routers give them."""

    def __init__(self, shared: WatcherParts) -> None:
        self.shared = shared
        self.feeds: dict[str, Feed] = {}

    async def begin(self, reader: StoreReader, hop: FeedHop, grants: Callable[[], EndReason | None]) -> Begun:
        """Begin a feed. Raises the problem of one that cannot begin."""
        if hop.name in self.feeds:
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, "there is a feed of this name", "name", "Take another"))
        streams = self.shared.streams
        stream = streams.enter(0, grants)
        return await begun(streams, stream, lambda: Feed(self, reader, hop, stream).events())

    async def change(self, hop: FeedKeysHop) -> None:
        """Add keys to a feed, and drop others. Raises the problem of keys that it cannot have."""
        feed = self.feeds.get(hop.name)
        if feed is None:
            raise ProblemError(NO_FEED)
        await feed.change(hop)

    async def missed(self, reader: StoreReader, hop: MissedHop) -> bytes:
        """Return the events that tell what changed of keys behind a position. Raises the problem of one that is
        gone.
        """
        partition, after, last = hop.of.partition, hop.after, hop.last
        await self.shared.require(reader, [partition], after)
        found = KeyChanges([], last)
        if after.version < last:
            newest = Position(after.application_id, after.lineage, last, None)
            await self.shared.require(reader, [partition], newest)
            seen = [SeenKey(key.row, after.version) for key in hop.keys]
            replica = reader.replicas[partition]
            found = await self.shared.catching_up.read(reader, replica, hop.of.selection, seen, last)
        printed = [key.printed for key in hop.keys]
        texts = [
            at_key(change.at, change.version) + with_id(change.event, change.position)
            for change in changes_of(reader, reader.replicas[partition], printed, found.entries)
        ]
        reached = Position(after.application_id, after.lineage, found.reached, None)
        return b"".join([*texts, version_event(found.reached, reached.encode())])


class Feed:
    """One feed of a router."""

    def __init__(self, feeds: WatchFeeds, reader: StoreReader, hop: FeedHop, stream: WatchStream) -> None:
        self._feeds, self._shared, self._reader, self._hop, self._stream = feeds, feeds.shared, reader, hop, stream
        self._opened: tuple[WatchedTask, FeedWatch] | None = None
        self._going_on = 0
        """Number of keys that were added to resume with."""
        self._has_all = asyncio.Event()

    async def events(self) -> Events:
        """Yield the events, with the first as soon as keys may be added."""
        hop, reader, stream = self._hop, self._reader, self._stream
        partition = hop.of.partition
        try:
            if hop.after is not None:
                await self._shared.require(reader, [partition], hop.after)
            reading = await reading_at(reader, partition, NO_BOUND)
            task = self._shared.hub.join(reader, partition, hop.of.selection, reading.view)
            watch = FeedWatch(task)
            task.feeds[watch] = stream
            self._opened, self._feeds.feeds[hop.name] = (task, watch), self
            yield KEEP_ALIVE
            if hop.after is not None:
                async with aclosing(self._missed(task, watch, hop.after.version)) as missed:
                    async for piece in missed:
                        yield piece
            while True:
                stream.require_open()
                batch = watch.take(PIECE_BYTES, wants_position=True)
                if batch.tellings or batch.position is not None:
                    yield self._encoded(task, watch, batch)
                elif stream.is_quiet:
                    yield KEEP_ALIVE
                else:
                    await stream.wait()
        finally:
            self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            task, watch = opened
            del self._feeds.feeds[self._hop.name]
            task.feeds.pop(watch, None)
            self._shared.hub.leave(task, watch.numbered()[1], self._stream)

    async def change(self, hop: FeedKeysHop) -> None:
        """Add keys, and drop others. Raises the problem of keys that it cannot have."""
        self._drop(hop.dropped)
        keys, streams, step = hop.keys, self._shared.streams, self._reader.keys_at_once
        may_hold, partition = self._reader.store.codec.may_hold, self._hop.of.partition
        if streams.keys + len(keys) > MAX_WATCHED_KEYS:
            what = f"{streams.keys} keys are watched, and {len(keys)} more are above the limit of {MAX_WATCHED_KEYS}"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Ask another service"))
        after = self._hop.after.version if hop.goes_on and self._hop.after is not None else None
        for start in range(0, len(keys), step):
            few = keys[start : start + step]
            if not all(may_hold(partition, key.row, self._reader.partitions) for key in few):
                raise ProblemError(MISPLACED)
            if self._opened is None:
                raise ProblemError(NO_FEED)
            task, watch = self._opened
            for number, key in enumerate(task.join([(key.row, key.printed) for key in few]), hop.first + start):
                key.users.add(self._stream)
                watch.add(number, key, after)
            self._count(len(few))
            self._stream.wake()
            await asyncio.sleep(0)
        if hop.goes_on:
            self._going_on += len(keys)
            if self._going_on >= self._hop.goes_on_with:
                self._has_all.set()

    def _drop(self, numbers: Sequence[int]) -> None:
        if self._opened is None:
            raise ProblemError(NO_FEED)
        task, watch = self._opened
        gone = [key for key in map(watch.drop, numbers) if key is not None]
        for key in gone:
            task.leave(key, self._stream)
        self._count(-len(gone))

    def _count(self, more: int) -> None:
        """Count its keys among those of all watches, until the stream leaves."""
        self._shared.streams.keys += more
        self._stream.keys += more

    async def _missed(self, task: WatchedTask, watch: FeedWatch, after: int) -> Events:
        """Yield the changes behind a version, one version after another, when all keys are there."""
        if self._hop.goes_on_with:
            try:
                async with asyncio.timeout(KEYS_S):
                    await self._has_all.wait()
            except TimeoutError:
                raise WatchEndedError(EndReason.UNAVAILABLE) from None
        await self._shared.compared(task, after)
        numbers, keys = watch.numbered()
        reached, is_whole = after, not keys
        while not is_whole:
            found = await self._shared.catching_up.since(task, keys, reached)
            reached, is_whole = found.reached, found.reached >= found.last
            yield self._encoded_changes(task, numbers, keys, found.entries)
            for number, count in zip(numbers, found.counts, strict=True):
                watch.was_sent(number, reached, count)

    # ---- events

    def _encoded_changes(
        self, task: WatchedTask, numbers: Sequence[int], keys: Sequence[SharedKey], entries: Sequence[KeyChange]
    ) -> bytes:
        printed = [key.printed for key in keys]
        texts: list[bytes] = []
        for _, of_version in groupby(entries, key=lambda entry: entry.view.version):
            some = list(of_version)
            for entry, change in zip(some, changes_of(task.reader, task.replica, printed, some), strict=True):
                self._shared.streams.events[change.kind] += 1
                head = task.head(printed[entry.at], entry.members)
                event = change.event + at_fed_key(numbers[entry.at], change.version, head)
                is_last = entry is some[-1]
                ended = with_tail(event, change.position, task.tail(entry.view)) if is_last else with_id(event, None)
                texts.append(ended)
        return b"".join(texts) or KEEP_ALIVE

    def _encoded(self, task: WatchedTask, watch: FeedWatch, batch: Batch) -> bytes:
        texts = [self._encoded_telling(task, watch, each) for each in batch.tellings]
        if batch.position is None:
            return b"".join(with_id(text, None) for text in texts)
        if not texts:
            texts.append(version_text(task.version, batch.position))
        last = with_tail(texts[-1], batch.position, task.tail(task.view))
        return b"".join([*(with_id(text, None) for text in texts[:-1]), last])

    def _encoded_telling(self, task: WatchedTask, watch: FeedWatch, telling: Telling) -> bytes:
        """Return the events of a key, the last one without its end."""
        key, events, missed = watch.key(telling.at), self._shared.streams.events, telling.missed
        assert isinstance(key, NodeKey), "its own"
        coalesced = b""
        if missed is not None:
            self._shared.streams.coalesced += missed.changes or 0
            events[KeyEvent.COALESCED] += 1
            told = coalesced_event(self._reader.json_name, key.printed, *missed)
            coalesced = told + at_fed_key(telling.at, missed.first, 0)
            if not telling.tells_value:
                return coalesced
            coalesced = with_id(coalesced, None)
        head = task.head(key.printed, key.members)
        if telling.is_first:
            events[KeyEvent.SNAPSHOT] += 1
            return task.first_event(key) + at_fed_key(telling.at, task.version, head)
        events[kind_of(key.members)] += 1
        return coalesced + key.event + at_fed_key(telling.at, key.version, head)
