"""The watched keys of a partition as a router knows them by one feed of a node, for all who watch them (pure).

The events of a feed are held until the position that covers them, and then count at once: so a watcher gets that
position with the last of them. They count earlier where a key has a second one, so that quick watchers get both.

When a feed ends, another replica resumes after the last position. What it sends again is left out, by the versions of
the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from understudy_shared.questions.watch.choice import UNSENT, WatchedKey
from understudy_shared.questions.watch.events import HopEvent, KeyEvent, key_event
from understudy_shared.questions.watch.shared_keys import SharedKey, SharedPart
from understudy_shared.reads.tokens import Position, decode_position

COUNTED_AT_ONCE: Final = 200
"""Number of events that count in one turn of the event loop: under 1 ms."""


class FeedKey(SharedKey):
    """A key of a feed. It `is_ready` when its value is known at the version that the feed shows.

    `since` is the version of its first value, UNSENT before it. `head` is the number of bytes in the data of its event
    that do not depend on the version. `number` is its own in the feed; UNSENT without one. `changes_before` is the
    number of changes before those that came behind version `ahead_of` of the feed.
    """

    __slots__ = ("ahead_of", "changes_before", "head", "is_ready", "number", "row", "since")

    def __init__(self, row: bytes, printed: bytes) -> None:
        super().__init__(printed)
        self.row = row
        self.head = 0
        self.is_ready = False
        self.number = self.since = self.ahead_of = UNSENT
        self.changes_before = 0


class _Held(NamedTuple):
    missed: HopEvent | None
    event: HopEvent | None


class HeardFeed(SharedPart):
    """The keys of a partition, and the version up to which all of their changes are known."""

    __slots__ = ("_held", "_lineage", "_next", "_numbers", "_unready", "keys", "tail")

    def __init__(self, lineage: str) -> None:
        super().__init__(UNSENT, "")
        self.keys: dict[bytes, FeedKey] = {}
        """The keys by their bytes as the codec encodes them."""
        self.tail = b""
        """JSON of the age and origin of the version, which ends each answer."""
        self._lineage = lineage
        self._numbers: dict[int, FeedKey] = {}
        self._next = 0
        self._held: dict[FeedKey, _Held] = {}
        self._unready: set[FeedKey] = set()

    @property
    def after(self) -> Position | None:
        """The position behind which another replica goes on; None before the first."""
        return decode_position(self.position) if self.position else None

    def begin(self) -> tuple[list[FeedKey], list[FeedKey]]:
        """Begin with another feed. Return the keys that it resumes, and those of which it sends the value."""
        self._numbers.clear()
        self._held.clear()
        self._unready.clear()
        known: list[FeedKey] = []
        new: list[FeedKey] = []
        for key in self.keys.values():
            key.number = UNSENT
            if not key.is_ready:
                key.since, key.version, key.jumped_to = UNSENT, 0, 0
            (known if key.is_ready else new).append(key)
        return known, new

    def number(self, keys: Sequence[FeedKey]) -> int:
        """Give keys their numbers in the feed, one after another. Return the first."""
        first = self._next
        for key in keys:
            key.number = self._next
            self._numbers[self._next] = key
            self._next += 1
        return first

    def drop(self, keys: Sequence[FeedKey]) -> list[int]:
        """Forget keys. Return their numbers in the feed."""
        numbers = []
        for key in keys:
            if self.keys.get(key.row) is key:
                del self.keys[key.row]
            self._held.pop(key, None)
            self._unready.discard(key)
            if self._numbers.pop(key.number, None) is not None:
                numbers.append(key.number)
        return numbers

    def heard(self, event: HopEvent) -> Iterator[list[FeedKey]]:
        """Take in an event. Yield the keys that have news by it, once for each time at which their watchers are to be
        sent what they are then; and now and then no keys, in slices of long work. Raises ValueError for what no node
        sends.
        """
        key = self._numbers.get(event.at)
        if key is not None:
            if self._is_second(key, event):
                changed: list[FeedKey] = []
                yield from self._count(changed)
                yield changed
            before = self._held.get(key)
            if event.kind == KeyEvent.COALESCED:
                self._held[key] = _Held(event, None)
            else:
                self._held[key] = _Held(None if before is None else before.missed, event)
        if event.position is not None:
            position = decode_position(event.position)
            if position.lineage != self._lineage:
                raise ValueError(f"the feed is of lineage {position.lineage}, not {self._lineage}")
            changed = []
            yield from self._count(changed)
            if position.version > self.version:
                self.version, self.position, self.tail = position.version, event.position, event.tail
            if position.version >= self.version:  # else it is of a replica that is behind what was heard before
                changed += self._made_ready()
            yield changed

    def first_event(self, key: SharedKey) -> bytes:
        assert isinstance(key, FeedKey), "its own"
        data = key.event.partition(b"data: ")[2].rstrip(b"\n")
        return key_event(KeyEvent.SNAPSHOT, data if key.version > self.version else data[: key.head] + self.tail)

    def changes_shown(self, key: WatchedKey) -> int:
        assert isinstance(key, FeedKey), "its own"
        return key.changes_before if key.ahead_of == self.version else key.changes

    def _is_second(self, key: FeedKey, event: HopEvent) -> bool:
        """Whether an event is not about the same change as the one that is held."""
        before = self._held.get(key)
        return before is not None and (before.event is not None or event.kind == KeyEvent.COALESCED)

    def _count(self, changed: list[FeedKey]) -> Iterator[list[FeedKey]]:
        """Let all held events count, and add their keys to those that have changed. Yield no keys after each slice."""
        held, self._held = self._held, {}
        for counted, (key, (missed, event)) in enumerate(held.items(), 1):
            if key.ahead_of != self.version:
                key.ahead_of, key.changes_before = self.version, key.changes
            if self._has_news(key, missed, event):
                changed.append(key)
            if counted % COUNTED_AT_ONCE == 0:
                yield []

    def _has_news(self, key: FeedKey, missed: HopEvent | None, event: HopEvent | None) -> bool:
        if missed is not None:
            data = orjson.loads(missed.text.partition(b"data: ")[2])
            first, last, changes = data["from"], data["to"], data["changes"]
            if last > key.version and (changes is None or first <= key.version):
                key.jumped_to = max(key.jumped_to, last)
            elif last > key.version:
                key.changes += changes
        if event is None:
            return missed is not None
        if event.kind == KeyEvent.SNAPSHOT:
            if key.since != UNSENT:
                return False
            key.version = key.since = event.version
            self._unready.add(key)
        elif event.version <= key.version:
            return missed is not None
        else:
            key.changed(event.version, len(event.text))
        key.kind, key.event, key.head = KeyEvent(event.kind), event.text, event.head
        key.size = len(event.text)
        return True

    def _made_ready(self) -> list[FeedKey]:
        """Make keys ready whose value is known by now. Return them."""
        ready = list(self._unready)
        self._unready.clear()
        for key in ready:
            key.is_ready = True
        return ready
