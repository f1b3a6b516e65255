"""Merges the events of several nodes for one watcher (pure): nothing twice, and no position before what it covers.

Each node sends its events in order, and now and then the position up to which they are complete. The watcher gets the
least position of all partitions. A node that takes over goes on behind that of its partitions, so it may send again
what the one before had sent: that is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from understudy_shared.reads.position import Position, decode_position
from understudy_shared.reads.watch import UNSENT
from understudy_shared.reads.watch_events import HopEvent, KeyEvent, version_event, with_id


class MergedWatch:
    """One watcher. `partitions` are those of its keys, by index; it goes on behind `after`."""

    def __init__(self, partitions: Sequence[int], after: Position | None) -> None:
        begin = UNSENT if after is None else after.version
        self._partitions = partitions
        self._sent = [begin] * len(partitions)
        self._reached: dict[int, Position | None] = dict.fromkeys(partitions, after)
        self._told = begin

    def behind(self, partitions: Collection[int]) -> Position | None:
        """Return the position behind which a node goes on with these partitions; None: with the present values."""
        reached = [self._reached[partition] for partition in partitions]
        known = [each for each in reached if each is not None]
        return min(known, key=lambda each: each.version) if len(known) == len(reached) else None

    def begin_anew(self, partitions: Collection[int]) -> None:
        """Forget what was sent of these partitions: it belongs to another history."""
        for partition in partitions:
            self._reached[partition] = None
        self._sent = [
            UNSENT if partition in partitions else sent
            for partition, sent in zip(self._partitions, self._sent, strict=True)
        ]
        self._told = UNSENT

    def heard(self, keys: Sequence[int], partitions: Collection[int], event: HopEvent) -> bytes:
        """Return what the watcher is sent of an event; nothing if it was sent that. `keys` are the indexes of the keys
        that the node was asked for, `partitions` theirs. Raises BadPositionError.
        """
        is_new = event.kind != "version"
        if event.at >= 0:
            key = keys[event.at]
            is_new = event.version > self._sent[key]
            if is_new and event.kind != KeyEvent.COALESCED:
                self._sent[key] = event.version
        if event.kind == "reset":
            self.begin_anew(partitions)
        if event.position is not None:
            self._note(partitions, decode_position(event.position))
        news = self._news()
        if is_new:
            return with_id(event.text, None if news is None else news.encode())
        return b"" if news is None else version_event(news.version, news.encode())

    def _note(self, partitions: Collection[int], position: Position) -> None:
        for partition in partitions:
            before = self._reached[partition]
            if before is None or before.lineage != position.lineage or before.version < position.version:
                self._reached[partition] = position

    def _news(self) -> Position | None:
        """Return the least position of all partitions, once."""
        least = self.behind(self._reached.keys())
        if least is None or least.version <= self._told:
            return None
        self._told = least.version
        return least
