"""The choice of what one watcher of keys is sent next (pure).

A watcher has no queue: of each key it knows the last version that it was sent, and what it is sent next is the present
value. Values that it missed meanwhile are counted. All watchers of a key share one `WatchedKey`.

Rule: `take` decides about events and position at once, from the same moment. So a position, which says that all changes
up to it were sent, never overtakes an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

UNSENT = -1
"""The version of a key of which nothing was sent yet."""


class WatchedKey:
    """The last change of a key, shared by its watchers. It may be ahead of its partition while other keys are not.

    `version` is that of the last change, `changes` the number of changes since the key is watched. `jumped_to` is the
    version up to which changes may be unknown: a replica went there without those in between; 0 without a jump.
    """

    __slots__ = ("changes", "jumped_to", "size", "version")

    def __init__(self) -> None:
        self.version = 0
        self.changes = 0
        self.jumped_to = 0
        self.size = 0
        """Size of the event that tells the present value, in bytes."""

    def changed(self, version: int, size: int) -> None:
        """Take in that a version changed the key."""
        self.version, self.size = version, size
        self.changes += 1


class WatchedPart:
    """A partition that is watched: `version` is the last one whose changes its keys show, `position` its token."""

    __slots__ = ("position", "version")

    def __init__(self, version: int, position: str) -> None:
        self.version = version
        self.position = position

    def changes_shown(self, key: WatchedKey) -> int:
        """Return the number of changes of a key up to `version`: all of them, where no key is ahead."""
        return key.changes


class Missed(NamedTuple):
    """The versions in which changes of a key were not sent, both inclusive; the value at `last`, if it differs, is.

    `changes` is their number; None where it is not known.
    """

    first: int
    last: int
    changes: int | None


class Telling(NamedTuple):
    """The news of the key at an index: the values that the watcher missed, and the present one if `tells_value`."""

    at: int
    is_first: bool
    missed: Missed | None
    tells_value: bool


class Batch(NamedTuple):
    """The news that are sent next. `position` is the token of the version up to which everything was sent with them;
    None while more is left to send, or where it was sent before.
    """

    tellings: list[Telling]
    position: str | None


class Watch:
    """One watcher of `keys`, each with its partition. It begins behind version `after`, or with the present values."""

    __slots__ = ("_changes", "_keys", "_parts", "_position_version", "_versions")

    def __init__(self, keys: Sequence[tuple[WatchedKey, WatchedPart]], after: int | None = None) -> None:
        self._keys: Sequence[tuple[WatchedKey, WatchedPart]] | Mapping[int, tuple[WatchedKey, WatchedPart]] = keys
        self._parts = tuple(dict.fromkeys(part for _, part in keys))
        self._versions: list[int] | dict[int, int] = [UNSENT if after is None else after] * len(keys)
        self._changes: list[int] | dict[int, int] = [part.changes_shown(key) for key, part in keys]
        self._position_version = UNSENT if after is None else after

    def __repr__(self) -> str:
        return f"Watch({len(self._keys)} keys, behind {self._position_version})"

    def was_sent(self, index: int, version: int, changes: int) -> None:
        """Take in that all changes of a key up to a version were sent; `changes` was its count then."""
        self._versions[index], self._changes[index] = version, changes

    def take(self, max_bytes: int, *, wants_position: bool) -> Batch:
        """Return what to send now, the oldest changes first, one value at least and then up to a size. With
        `wants_position` a position is returned even if no key has changed.
        """
        due = self._due()
        tellings: list[Telling] = []
        size = 0
        for _, index in due:
            if tellings and size + self._keys[index][0].size > max_bytes:
                return Batch(tellings, None)
            size += self._keys[index][0].size
            tellings.append(self._tell(index))
        return Batch(tellings, self._news() if tellings or wants_position else None)

    def _candidates(self) -> Iterable[int]:
        """Return the indexes of all keys that may have changes that were not sent."""
        return range(len(self._keys))

    def _due(self) -> list[tuple[int, int]]:
        """Return the keys with changes that were not sent: the version of the last one, and the key's index."""
        keys, versions, changes, due = self._keys, self._versions, self._changes, []
        for index in self._candidates():
            key, sent = keys[index][0], versions[index]
            if sent == UNSENT or key.jumped_to > sent:
                due.append((max(key.version, key.jumped_to), index))
            elif key.changes != changes[index]:
                if key.version > sent:
                    due.append((key.version, index))
                else:  # sent before, with the history that the watcher went on with
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
        """Return the position of the least version of its partitions, unless it was returned before."""
        behind = min(self._parts, key=lambda part: part.version)
        if behind.version <= self._position_version:
            return None
        self._position_version = behind.version
        return behind.position
