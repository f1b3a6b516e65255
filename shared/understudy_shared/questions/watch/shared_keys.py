"""Watched keys with the events that tell of them, made once for all of their watchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from understudy_shared.questions.watch.choice import WatchedKey, WatchedPart
from understudy_shared.questions.watch.events import KeyEvent


class SharedKey(WatchedKey):
    """A watched key: its JSON, and the event that tells its present value, without its last line."""

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
        """Return the event that tells a new watcher the present value of a key, without its last line."""


class Change(NamedTuple):
    """A change of the key with this index that its watcher missed: its version, its event, and the token of it."""

    at: int
    version: int
    kind: KeyEvent
    event: bytes
    position: str


class CaughtUp(NamedTuple):
    """The changes that a watcher missed, up to version `reached`; and the counts of changes of its keys at version
    `last`, up to which they were asked for.
    """

    entries: list[Change]
    reached: int
    last: int
    counts: list[int]
