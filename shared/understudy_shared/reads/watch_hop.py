"""The call by which a router watches keys at a node (pure). The reply is a stream of the events of `watch_events`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, BadBoundError
from understudy_shared.reads.hop_fields import BadHopError, StoreOfHop, object_of, store_of_hop, text
from understudy_shared.reads.position import BadPositionError, Position, decode_position
from understudy_shared.reads.selection import Selection

PATH: Final = "/internal/v1/watch"


class WatchKey(NamedTuple):
    """A key that is watched: its partition, its bytes as the codec encodes it, and its JSON."""

    partition: int
    row: bytes
    printed: bytes


@dataclass(frozen=True, slots=True)
class WatchHop(StoreOfHop):
    """A watch of a router, of keys that `layout` placed and encoded. It goes on behind the position `after`."""

    keys: Sequence[WatchKey]
    after: Position | None
    selection: Selection

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps(
            {
                **self.store_members(),
                "keys": [key_field(key) for key in self.keys],
                "after": None if self.after is None else self.after.encode(),
                "selection": self.selection.fields(),
            }
        )


def decode_watch_hop(body: bytes) -> WatchHop:
    """Parse a watch of a router. Raises BadHopError."""
    fields = object_of(body)
    try:
        keys, after, selection = fields["keys"], fields["after"], fields["selection"]
        if not isinstance(keys, list) or not 0 < len(keys) <= MAX_BATCH_KEYS or not isinstance(selection, dict):
            raise BadHopError(f"the hop has no list of up to {MAX_BATCH_KEYS} keys, or no selection")
        return WatchHop(
            *store_of_hop(fields),
            [read_key(each) for each in keys],
            None if after is None else decode_position(text(fields, "after")),
            parse_bound(selection).selection,
        )
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None
    except (BadPositionError, BadBoundError) as error:
        raise BadHopError(f"the hop's position or selection does not parse: {error.what}") from None


def key_field(key: WatchKey) -> list[object]:
    """Return a key as calls have it."""
    return [key.partition, base64.b64encode(key.row).decode(), key.printed.decode()]


def read_key(value: Any) -> WatchKey:
    """Parse a key of a call. Raises BadHopError."""
    match value:
        case [int(partition), str(row), str(printed)]:
            try:
                return WatchKey(partition, base64.b64decode(row, validate=True), printed.encode())
            except binascii.Error as error:
                raise BadHopError(f"the row of a key is not base64: {error}") from None
    raise BadHopError("a key of the hop is not its partition, its row and its JSON")
