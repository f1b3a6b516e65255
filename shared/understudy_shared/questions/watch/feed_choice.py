"""The choice of what a node sends next to the feed of a router: the changes of many keys of one partition (pure).

A router has one feed for each partition that its readers watch. Keys come and go while it is open, each with a number
that the router gives it. What a feed did not take is one change of each key, as for every watcher.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy_shared.questions.watch.choice import UNSENT, Telling, Watch, WatchedKey, WatchedPart
from understudy_shared.questions.watch.shared_keys import SharedKey


class FeedWatch(Watch):
    """One feed of a partition. It costs by changes, not by keys: `changed` says which keys a version has changed."""

    __slots__ = ("_has_told", "_maybe", "_numbers", "_part")

    def __init__(self, part: WatchedPart) -> None:
        super().__init__(())
        self._part = part
        self._parts = (part,)
        self._keys: dict[int, tuple[SharedKey, WatchedPart]] = {}
        self._versions: dict[int, int] = {}
        self._changes: dict[int, int] = {}
        self._numbers: dict[WatchedKey, int] = {}
        self._maybe: set[int] = set()
        """Numbers of the keys that may have changes that were not sent."""
        self._has_told = False

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, number: int) -> SharedKey:
        """Return the key of a number."""
        return self._keys[number][0]

    def numbered(self) -> tuple[list[int], list[SharedKey]]:
        """Return all numbers, and their keys."""
        return list(self._keys), [key for key, _ in self._keys.values()]

    def add(self, number: int, key: SharedKey, after: int | None) -> None:
        """Add a key, of which all changes up to version `after` were sent; None: nothing."""
        self.drop(number)
        if key in self._numbers:  # the router watches it by another number now
            self.drop(self._numbers[key])
        self._keys[number] = (key, self._part)
        self._versions[number] = UNSENT if after is None else after
        self._changes[number] = key.changes
        self._numbers[key] = number
        self._maybe.add(number)

    def drop(self, number: int) -> SharedKey | None:
        """Drop a key and return it; None if no key has that number."""
        found = self._keys.pop(number, None)
        if found is None:
            return None
        del self._versions[number], self._changes[number], self._numbers[found[0]]
        self._maybe.discard(number)
        return found[0]

    def was_sent(self, index: int, version: int, changes: int) -> None:
        if index in self._keys:  # else it was dropped meanwhile
            super().was_sent(index, version, changes)

    def changed(self, keys: Iterable[WatchedKey]) -> None:
        """Take in that these keys, which others may watch, have changed."""
        numbers = self._numbers
        self._maybe.update(numbers[key] for key in keys if key in numbers)

    def _tell(self, index: int) -> Telling:
        self._has_told = True
        return super()._tell(index)

    def _news(self) -> str | None:
        """Return the position, unless nothing was sent since it was returned before: the router waits for it."""
        has_told, self._has_told = self._has_told, False
        news = super()._news()
        return self._part.position if has_told else news

    def _candidates(self) -> Iterable[int]:
        return tuple(self._maybe)

    def _due(self) -> list[tuple[int, int]]:
        due = super()._due()
        self._maybe = {number for _, number in due}
        return due
