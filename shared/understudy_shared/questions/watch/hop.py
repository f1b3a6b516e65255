"""The calls by which a router feeds its watchers (pure): a stream for each partition that is watched, its keys, and
what watchers missed that come back.

A feed has no keys when it is opened: they are"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

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
    """A feed that is opened. It resumes after `after` with as many keys as `goes_on_with`: those are
    added before its events begin.
    """

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
    """Keys that are added to a feed, numbered from `first` on, and numbers of keys that are dropped. With `goes_on` the
    changes of the keys are sent that come after the position of the feed; else their values come first.
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
    """A question for the changes of keys behind a position, up to version `last`. The reply has events with their
    positions, and ends with a `version`: that up to which it tells all of them.
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
    """Parse a feed that is opened. Raises BadHopError."""
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
    """Parse a question for what watchers missed. Raises BadHopError."""
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
    """Return a key as calls have it."""
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
