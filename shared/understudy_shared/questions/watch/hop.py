"""The calls between a router and a node about watched keys, and the router's copy of a watched partition (pure).

A router opens one stream, a feed, for each watched partition, and adds and drops keys while it is open. Events of a
feed are buffered until the position that covers them arrives, and then applied together, so a watcher gets that
position with the last of them. A second event of the same key applies the buffer early: fast watchers get both.

When a feed ends, another replica resumes after the last position. Repeated events are recognised by the versions of
the keys, and left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.questions.watch.choice import UNSENT, SharedKey, SharedPart, WatchedKey
from understudy_shared.questions.watch.events import HopEvent, KeyEvent, key_event
from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, BadBoundError, Selection
from understudy_shared.reads.hop_fields import BadHopError, StoreOfHop, object_of, store_of_hop, text, whole
from understudy_shared.reads.tokens import BadPositionError, Position, decode_position

OPEN_PATH: Final = "/internal/v1/watch/feed"
KEYS_PATH: Final = "/internal/v1/watch/feed/keys"
MISSED_PATH: Final = "/internal/v1/watch/missed"

MAX_FED_KEYS: Final = 500
"""Limit on the keys of a call: they are checked and read beside lookups."""

MAX_NAME_CHARS: Final = 64


class WatchKey(NamedTuple):
    """A key that is watched: its partition, its bytes as the codec encodes it, and its JSON."""

    partition: int
    row: bytes
    printed: bytes


@dataclass(frozen=True, slots=True)
class FedPartition(StoreOfHop):
    """A partition of a store that a router watches, by the layout that placed and encoded its keys."""

    partition: int
    selection: Selection

    def fields(self) -> dict[str, object]:
        """Return its fields in a call."""
        return {
            **self.store_members(),
            "partition": self.partition,
            "selection": self.selection.fields(),
        }


@dataclass(frozen=True, slots=True)
class FeedHop:
    """A request to open a feed. The feed resumes after `after`, once `goes_on_with` keys were added to it."""

    of: FedPartition
    name: str
    after: Position | None
    goes_on_with: int

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        after = None if self.after is None else self.after.encode()
        return orjson.dumps({**self.of.fields(), "name": self.name, "after": after, "goes_on_with": self.goes_on_with})


@dataclass(frozen=True, slots=True)
class FeedKeysHop:
    """Keys to add to a feed, numbered from `first` on, and the numbers of keys to drop. With `goes_on`, only changes
    after the position of the feed are sent for the added keys; else their values are sent first.
    """

    name: str
    first: int
    keys: Sequence[WatchKey]
    goes_on: bool
    dropped: Sequence[int]

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        keys = [_key_field(key) for key in self.keys]
        return orjson.dumps(
            {"name": self.name, "first": self.first, "keys": keys, "goes_on": self.goes_on, "dropped": self.dropped}
        )


@dataclass(frozen=True, slots=True)
class MissedHop:
    """A request for the changes of keys after a position, up to version `last`. The reply has events with their
    positions, and ends with a `version` event: the reply is complete up to that version.
    """

    of: FedPartition
    keys: Sequence[WatchKey]
    after: Position
    last: int

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        keys = [_key_field(key) for key in self.keys]
        return orjson.dumps({**self.of.fields(), "keys": keys, "after": self.after.encode(), "last": self.last})


def decode_feed_hop(body: bytes) -> FeedHop:
    """Parse a request to open a feed. Raises BadHopError."""
    fields = object_of(body)
    try:
        after = None if fields["after"] is None else _position(text(fields, "after"))
        return FeedHop(_partition(fields), _name(fields), after, whole(fields, "goes_on_with"))
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def decode_feed_keys(body: bytes) -> FeedKeysHop:
    """Parse the keys of a feed. Raises BadHopError."""
    fields = object_of(body)
    try:
        dropped, goes_on = fields["dropped"], fields["goes_on"]
        if not isinstance(dropped, list) or not all(type(each) is int for each in dropped) or type(goes_on) is not bool:
            raise BadHopError("`dropped` is not a list of numbers, or `goes_on` is neither true nor false")
        keys = _keys(fields, MAX_FED_KEYS)
        return FeedKeysHop(_name(fields), whole(fields, "first"), keys, goes_on, dropped)
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def decode_missed_hop(body: bytes) -> MissedHop:
    """Parse a request for missed changes. Raises BadHopError."""
    fields = object_of(body)
    try:
        keys = _keys(fields, MAX_BATCH_KEYS)
        return MissedHop(_partition(fields), keys, _position(text(fields, "after")), whole(fields, "last"))
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def _partition(fields: dict[str, Any]) -> FedPartition:
    selection = fields["selection"]
    if not isinstance(selection, dict):
        raise BadHopError("the hop has no selection")
    try:
        selected = parse_bound(selection).selection
    except BadBoundError as error:
        raise BadHopError(f"the hop's selection does not parse: {error.what}") from None
    return FedPartition(
        *store_of_hop(fields),
        whole(fields, "partition"),
        selected,
    )


def _name(fields: dict[str, Any]) -> str:
    name = text(fields, "name")
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise BadHopError(f"the name of a feed has {len(name)} characters, not 1 to {MAX_NAME_CHARS}")
    return name


def _keys(fields: dict[str, Any], most: int) -> list[WatchKey]:
    keys = fields["keys"]
    if not isinstance(keys, list) or len(keys) > most:
        raise BadHopError(f"the hop has no list of up to {most} keys")
    return [_read_key(each) for each in keys]


def _key_field(key: WatchKey) -> list[object]:
    """Return a key in the form that calls use."""
    return [key.partition, base64.b64encode(key.row).decode(), key.printed.decode()]


def _read_key(value: Any) -> WatchKey:
    """Parse a key of a call. Raises BadHopError."""
    match value:
        case [int(partition), str(row), str(printed)]:
            try:
                return WatchKey(partition, base64.b64decode(row, validate=True), printed.encode())
            except binascii.Error as error:
                raise BadHopError(f"the row of a key is not base64: {error}") from None
    raise BadHopError("a key of the hop is not its partition, its row and its JSON")


def _position(token: str) -> Position:
    try:
        return decode_position(token)
    except BadPositionError as error:
        raise BadHopError(f"the hop's position does not parse: {error.what}") from None


COUNTED_AT_ONCE: Final = 200
"""Number of events that are applied in one turn of the event loop: under 1 ms."""


class FeedKey(SharedKey):
    """A key of a feed. It `is_ready` when its value is known at the version that the feed shows.

    `since` is the version of its first value, UNSENT before that arrives. The first `head` bytes in the data of its
    event do not depend on the version. `number` is its number in the feed, UNSENT without one. `changes_before` is the
    number of changes up to version `ahead_of` of the feed; `changes` counts later ones, too.
    """

    __slots__ = ("ahead_of", "changes_before", "head", "is_ready", "number", "row", "since")

    def __init__(self, row: bytes, printed: bytes) -> None:
        super().__init__(printed)
        self.row = row
        self.head = 0
        self.is_ready = False
        self.number = self.since = self.ahead_of = UNSENT
        self.changes_before = 0


class _HeldKey(NamedTuple):
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
        """JSON of the age and origin of the version. Each first event ends with it."""
        self._lineage = lineage
        self._numbers: dict[int, FeedKey] = {}
        self._next = 0
        self._held: dict[FeedKey, _HeldKey] = {}
        self._unready: set[FeedKey] = set()

    @property
    def after(self) -> Position | None:
        """The position after which another replica resumes; None before the first one."""
        return decode_position(self.position) if self.position else None

    def begin(self) -> tuple[list[FeedKey], list[FeedKey]]:
        """Start over with another feed. Return the keys that it resumes, and the keys whose values it must send."""
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
        """Give keys consecutive numbers in the feed. Return the first number."""
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
        """Apply an event. Yield the changed keys each time their watchers must send before the next change is applied,
        and an empty list between slices of long work. Raises ValueError for an event that no node sends.
        """
        key = self._numbers.get(event.at)
        if key is not None:
            if self._is_second(key, event):
                changed: list[FeedKey] = []
                yield from self._count(changed)
                yield changed
            before = self._held.get(key)
            if event.kind == KeyEvent.COALESCED:
                self._held[key] = _HeldKey(event, None)
            else:
                self._held[key] = _HeldKey(None if before is None else before.missed, event)
        if event.position is not None:
            position = decode_position(event.position)
            if position.lineage != self._lineage:
                raise ValueError(f"the feed is of lineage {position.lineage}, not {self._lineage}")
            changed = []
            yield from self._count(changed)
            if position.version > self.version:
                self.version, self.position, self.tail = position.version, event.position, event.tail
            if position.version >= self.version:  # else this replica still lags behind the previous one
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
        """Whether a key has a buffered event, and this one is about another change."""
        before = self._held.get(key)
        return before is not None and (before.event is not None or event.kind == KeyEvent.COALESCED)

    def _count(self, changed: list[FeedKey]) -> Iterator[list[FeedKey]]:
        """Apply the buffered events, and add their keys to `changed`. Yield an empty list after each slice."""
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
        """Mark the keys as ready whose value is known by now. Return them."""
        ready = list(self._unready)
        self._unready.clear()
        for key in ready:
            key.is_ready = True
        return ready
