"""Decides which events one watcher gets next: a watcher of keys, a router's feed, or a watcher of a prefix (pure).

A watcher has no queue. For each key it remembers the last version that was sent, and the next event carries the current
value. Skipped values are only counted. All watchers of a key share one `WatchedKey`.

Rule: `take` decides about events and position at once, from the same moment. So a position, which says that all changes
up to it were sent, never overtakes an event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.questions.watch.events import KeyEvent, coalesced_event, key_event

UNSENT = -1
"""The version of a key before anything was sent of it."""


class WatchedKey:
    """The last change of a key, shared by its watchers. It may be ahead of its partition while other keys are not.

    `version` is the version of the last change, `changes` the number of changes since the key is watched. `jumped_to`
    is the version up to which changes may be unknown, because a replica jumped there; 0 without a jump.
    """

    __slots__ = ("changes", "jumped_to", "size", "version")

    def __init__(self) -> None:
        self.version = 0
        self.changes = 0
        self.jumped_to = 0
        self.size = 0
        """Size of the event that tells the present value, in bytes."""

    def changed(self, version: int, size: int) -> None:
        """Record that a version changed the key."""
        self.version, self.size = version, size
        self.changes += 1


class WatchedPart:
    """A watched partition. Its keys show all changes up to `version`; `position` is the token of that version."""

    __slots__ = ("position", "version")

    def __init__(self, version: int, position: str) -> None:
        self.version = version
        self.position = position

    def changes_shown(self, key: WatchedKey) -> int:
        """Return the number of changes of a key up to `version`: all of them, if no key is ahead."""
        return key.changes


class Missed(NamedTuple):
    """The skipped changes of a key: those in versions `first` to `last`. The value at `last` is sent, if it differs.

    `changes` is their number; None where it is not known.
    """

    first: int
    last: int
    changes: int | None


class Telling(NamedTuple):
    """The events due for the key at index `at`. The skipped changes come first, then the value if `tells_value`."""

    at: int
    is_first: bool
    missed: Missed | None
    tells_value: bool


class EventBatch(NamedTuple):
    """The events to send next. `position` is the token of the version that is complete once they are sent; None while
    more is left to send, or if that position was sent before.
    """

    tellings: list[Telling]
    position: str | None


class KeyWatcher:
    """One watcher of `keys`, each with its partition. It starts after version `after`, or from the current values."""

    __slots__ = ("_changes", "_keys", "_parts", "_position_version", "_versions")

    def __init__(self, keys: Sequence[tuple[WatchedKey, WatchedPart]], after: int | None = None) -> None:
        self._keys: Sequence[tuple[WatchedKey, WatchedPart]] | Mapping[int, tuple[WatchedKey, WatchedPart]] = keys
        self._parts = tuple(dict.fromkeys(part for _, part in keys))
        self._versions: list[int] | dict[int, int] = [UNSENT if after is None else after] * len(keys)
        self._changes: list[int] | dict[int, int] = [part.changes_shown(key) for key, part in keys]
        self._position_version = UNSENT if after is None else after

    def __repr__(self) -> str:
        return f"KeyWatcher({len(self._keys)} keys, after {self._position_version})"

    def was_sent(self, index: int, version: int, changes: int) -> None:
        """Record that all changes of a key up to a version were sent. `changes` was its count at that version."""
        self._versions[index], self._changes[index] = version, changes

    def take(self, max_bytes: int, *, wants_position: bool) -> EventBatch:
        """Return what to send now, the oldest changes first: up to `max_bytes` of values, but at least one. With
        `wants_position`, also return a new position if no key has changed.
        """
        due = self._due()
        tellings: list[Telling] = []
        size = 0
        for _, index in due:
            if tellings and size + self._keys[index][0].size > max_bytes:
                return EventBatch(tellings, None)
            size += self._keys[index][0].size
            tellings.append(self._tell(index))
        return EventBatch(tellings, self._news() if tellings or wants_position else None)

    def _candidates(self) -> Iterable[int]:
        """Return the indexes of all keys that may have unsent changes."""
        return range(len(self._keys))

    def _due(self) -> list[tuple[int, int]]:
        """Return (version of the last change, index) for each key with unsent changes, in that order."""
        keys, versions, changes, due = self._keys, self._versions, self._changes, []
        for index in self._candidates():
            key, sent = keys[index][0], versions[index]
            if sent == UNSENT or key.jumped_to > sent:
                due.append((max(key.version, key.jumped_to), index))
            elif key.changes != changes[index]:
                if key.version > sent:
                    due.append((key.version, index))
                else:  # sent already, when the watcher caught up with what it had missed
                    changes[index] = key.changes
        if len(due) > 1:
            due.sort()
        return due

    def _tell(self, index: int) -> Telling:
        key, part = self._keys[index]
        sent, unsent = self._versions[index], key.changes - self._changes[index]
        self._changes[index] = key.changes
        if sent == UNSENT:
            self._versions[index] = max(part.version, key.version)
            return Telling(index, is_first=True, missed=None, tells_value=True)
        last = max(key.version, key.jumped_to)
        self._versions[index] = last
        missed = None
        if key.jumped_to > sent:
            missed = Missed(sent + 1, last, None)
        elif unsent > 1:
            missed = Missed(sent + 1, last, unsent - 1)
        return Telling(index, is_first=False, missed=missed, tells_value=unsent > 0 and key.version > sent)

    def _news(self) -> str | None:
        """Return the position of the partition with the least version, unless it was returned before."""
        behind = min(self._parts, key=lambda part: part.version)
        if behind.version <= self._position_version:
            return None
        self._position_version = behind.version
        return behind.position


class SharedKey(WatchedKey):
    """A watched key: its JSON, and the event with its current value, without the last line."""

    __slots__ = ("event", "kind", "printed", "users")

    def __init__(self, printed: bytes) -> None:
        super().__init__()
        self.printed = printed
        self.event = b""
        self.kind = KeyEvent.SNAPSHOT
        self.users: set[object] = set()
        """The streams of its watchers."""


class SharedPart(WatchedPart, ABC):
    """The watched keys of a partition."""

    __slots__ = ()

    @abstractmethod
    def first_event(self, key: SharedKey) -> bytes:
        """Return the event with the current value of a key for a new watcher, without its last line."""


class MissedChange(NamedTuple):
    """A change that a watcher missed, of the key at index `at`. `position` is the token of its version."""

    at: int
    version: int
    kind: KeyEvent
    event: bytes
    position: str


class CaughtUp(NamedTuple):
    """The changes that a watcher missed, up to version `reached`. They were requested up to version `last`; `counts`
    has the number of changes of each key at that version.
    """

    entries: list[MissedChange]
    reached: int
    last: int
    counts: list[int]


class FeedWatch(KeyWatcher):
    """One feed of a partition. Its cost grows with changes, not with keys: `changed` names the keys that changed."""

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
        """Numbers of the keys that may have unsent changes."""
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
        """Add a key. All of its changes up to version `after` were sent; None: nothing was sent."""
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
        """Record that these keys have changed. Keys that are not in this feed are ignored."""
        numbers = self._numbers
        self._maybe.update(numbers[key] for key in keys if key in numbers)

    def _tell(self, index: int) -> Telling:
        self._has_told = True
        return super()._tell(index)

    def _news(self) -> str | None:
        """Return the position if it is new, or if events were sent since the last one: the router waits for it."""
        has_told, self._has_told = self._has_told, False
        news = super()._news()
        return self._part.position if has_told else news

    def _candidates(self) -> Iterable[int]:
        return tuple(self._maybe)

    def _due(self) -> list[tuple[int, int]]:
        due = super()._due()
        self._maybe = {number for _, number in due}
        return due


MAX_REMEMBERED: Final = 10_000
"""Number of keys whose values are remembered, as digests. Above it, values that did not change may be sent again."""

_NOT_SAID: Final = ("version", "partition")
"""Members of a change that are not about its value."""


class _UnsentChanges(NamedTuple):
    """The unsent changes of a key: the version of the first one, their number, and the last one."""

    first: int
    changes: int
    kind: KeyEvent
    data: dict[str, Any]


class PrefixWatch:
    """The state of one watcher of a prefix: what was sent to it. `knows_all`: that includes every existing key."""

    def __init__(self, store: str, *, knows_all: bool) -> None:
        self.told: Counter[KeyEvent] = Counter()
        """Number of events by kind."""
        self.coalesced = 0
        """Number of skipped changes."""
        self._store = store
        self._json_name = orjson.dumps(store)
        self._knows_all = knows_all
        self._digests: dict[bytes, bytes] = {}
        self._pending: dict[bytes, _UnsentChanges] = {}

    def present(self, row: Mapping[str, Any], partition: int, stamp: Mapping[str, object]) -> bytes:
        """Return the event for a key that exists at the beginning, without its last line."""
        found = {} if "problem" in row else {"found": True}
        self._remember(orjson.dumps(row["key"]), {**found, **row})
        self.told[KeyEvent.SNAPSHOT] += 1
        data = {"store": self._store, **found, **row, "partition": partition, **stamp}
        return key_event(KeyEvent.SNAPSHOT, orjson.dumps(data))

    def changed(self, change: dict[str, Any], committed_at: str | None, position: str) -> None:
        """Add a change, in the form that `/changes` has."""
        key = orjson.dumps(change["key"])
        is_found = change.get("found") is not False
        if is_found:
            if not self._remember(key, change):
                return
        elif self._digests.pop(key, None) is None and self._knows_all:
            return  # Spark also writes deletes of keys that do not exist
        kind = KeyEvent.VALUE if is_found else KeyEvent.DELETED
        data = {"store": self._store, **change, "committed_at": committed_at, "position": position}
        before = self._pending.get(key)
        first, count = (change["version"], 1) if before is None else (before.first, before.changes + 1)
        self._pending[key] = _UnsentChanges(first, count, kind, data)

    @property
    def pending(self) -> int:
        """The number of keys with unsent changes."""
        return len(self._pending)

    def tell(self) -> Iterator[bytes]:
        """Yield the events for all pending changes, without their last lines."""
        pending, self._pending = self._pending, {}
        for key, (first, count, kind, data) in pending.items():
            if count > 1:
                self.told[KeyEvent.COALESCED] += 1
                self.coalesced += count - 1
                yield coalesced_event(self._json_name, key, first, data["version"], count - 1)
            self.told[kind] += 1
            yield key_event(kind, orjson.dumps(data))

    def _remember(self, key: bytes, change: Mapping[str, Any]) -> bool:
        """Remember the value of a key. Return whether it differs from the one before."""
        said = orjson.dumps({name: each for name, each in change.items() if name not in _NOT_SAID})
        digest = blake2b(said, digest_size=12).digest()
        if self._digests.get(key) == digest:
            return False
        if len(self._digests) >= MAX_REMEMBERED and key not in self._digests:
            self._digests.clear()
            self._knows_all = False
        self._digests[key] = digest
        return True
