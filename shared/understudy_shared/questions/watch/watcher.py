"""One watcher at a node or a router: the keys that it joins, what it missed, and the events that it is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.watch.choice import Batch, Telling, Watch
from understudy_shared.questions.watch.events import (
    KEEP_ALIVE,
    KeyEvent,
    coalesced_event,
    reset_event,
    version_event,
    with_id,
)
from understudy_shared.questions.watch.sending import PIECE_BYTES, Events
from understudy_shared.questions.watch.service import WatchQuestion
from understudy_shared.questions.watch.shared_keys import CaughtUp, SharedKey, SharedPart
from understudy_shared.questions.watch.streams import WatchStream, WatchStreams
from understudy_shared.reads.bounds import Refusal
from understudy_shared.reads.tokens import Position


class Joined(NamedTuple):
    """Watched keys of a partition, in the order in which they were asked for, with their places in the question."""

    part: SharedPart
    keys: Sequence[SharedKey]
    indexes: Sequence[int]


class WatchSource(ABC):
    """The source of the keys of one watcher."""

    @property
    @abstractmethod
    def lineage(self) -> str:
        """The history of the checkpoint that is watched."""

    @property
    @abstractmethod
    def json_name(self) -> bytes:
        """The JSON of the store's name."""

    @abstractmethod
    async def join(self, asked: WatchQuestion, stream: WatchStream, joined: list[Joined]) -> bool:
        """Join the keys of a question, and put them into `joined` one partition after another. Return whether its
        position is of another history. Raises the problem of keys or a position that cannot be watched.
        """

    @abstractmethod
    async def since(self, joined: Joined, after: Position) -> CaughtUp:
        """Return what changed of some keys behind a position. Raises the problem of one that is gone."""

    @abstractmethod
    def leave(self, joined: Joined, stream: WatchStream) -> None:
        """Leave keys of a partition."""


class Watcher:
    """One watcher: its keys, each with its partition, and what it is sent."""

    __slots__ = ("_asked", "_joined", "_keys", "_source", "_stream", "_streams")

    def __init__(
        self,
        source: WatchSource,
        streams: WatchStreams,
        asked: WatchQuestion,
        stream: WatchStream,
    ) -> None:
        self._source, self._streams, self._asked, self._stream = source, streams, asked, stream
        self._keys: list[tuple[SharedKey, SharedPart]] = []
        self._joined: list[Joined] = []

    async def events(self) -> Events:
        """Yield the events, from the first on at once."""
        try:
            is_reset = await self._source.join(self._asked, self._stream, self._joined)
            at = {
                index: (key, each.part)
                for each in self._joined
                for key, index in zip(each.keys, each.indexes, strict=True)
            }
            self._keys = [at[index] for index in range(len(at))]
            after = None if is_reset else self._asked.after
            watch = Watch(self._keys, None if after is None else after.version)
            if after is not None:
                try:
                    async with aclosing(self._missed(watch, after)) as missed:
                        async for piece in missed:
                            yield piece
                except ProblemError as error:
                    if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                        raise
                    is_reset, watch = True, Watch(self._keys)
            if is_reset:
                yield reset_event(self._source.lineage)
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
            for joined in self._joined:
                self._source.leave(joined, self._stream)

    async def _missed(self, watch: Watch, after: Position) -> Events:
        """Yield the changes behind a position, up to the version that the partition of each key shows."""
        for joined in self._joined:
            behind, last = after, joined.part.version
            while behind.version < last:
                found = await self._source.since(joined, behind)
                last = found.last
                yield self._encoded_changes(found)
                for index, count in zip(joined.indexes, found.counts, strict=True):
                    watch.was_sent(index, found.reached, count)
                behind = Position(after.application_id, after.lineage, found.reached, None)

    def _encoded_changes(self, found: CaughtUp) -> bytes:
        texts: list[bytes] = []
        for entry in found.entries:
            self._streams.events[entry.kind] += 1
            position = entry.position if len(self._keys) == 1 else None
            texts.append(with_id(self._shown(entry.event), position))
        return b"".join(texts) or KEEP_ALIVE

    def _encoded(self, batch: Batch) -> bytes:
        if not batch.tellings:
            return KEEP_ALIVE if batch.position is None else self._version(batch.position)
        texts = [self._encoded_telling(each) for each in batch.tellings]
        return b"".join([*(with_id(text, None) for text in texts[:-1]), with_id(texts[-1], batch.position)])

    def _encoded_telling(self, telling: Telling) -> bytes:
        """Return the events of a key, the last one without its end."""
        key, part = self._keys[telling.at]
        events, missed = self._streams.events, telling.missed
        coalesced = b""
        if missed is not None:
            self._streams.coalesced += missed.changes or 0
            events[KeyEvent.COALESCED] += 1
            name = self._source.json_name
            coalesced = coalesced_event(name, key.printed, *missed)
            if not telling.tells_value:
                return coalesced
            coalesced = with_id(coalesced, None)
        if telling.is_first:
            events[KeyEvent.SNAPSHOT] += 1
            return self._shown(part.first_event(key))
        events[key.kind] += 1
        return coalesced + self._shown(key.event)

    def _version(self, position: str) -> bytes:
        return version_event(min(each.part.version for each in self._joined), position)

    def _shown(self, event: bytes) -> bytes:
        """Return an event with its whole numbers as the reader wants them."""
        if not self._asked.longs_as_text:
            return event
        head, _, data = event.partition(b"data: ")
        return b"%bdata: %b" % (head, longs_as_text(data))
