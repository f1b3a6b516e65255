"""Server-sent events of watches (pure): how nodes write them, and how routers read them.

An event is a list of fields, one per line, and ends with an empty line. Clients ignore fields that the standard does
not name. Nodes send two of these to routers: `at` names the key and the version of an event, and `tail` has the members
that all keys of a version share.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import orjson

MEDIA_TYPE: Final = "text/event-stream"
KEEP_ALIVE: Final = b": there is no news\n\n"
"""A comment that shows client and proxies that the stream lives."""

MIN_RETRY_MS: Final = 1_000
MAX_RETRY_MS: Final = 5_000
"""Limits of the random time after which a client reconnects, so that not all of them reconnect at once."""


class KeyEvent(StrEnum):
    """The events that are about a key."""

    SNAPSHOT = "snapshot"
    """The value at the beginning of a watch."""
    VALUE = "value"
    DELETED = "deleted"
    COALESCED = "coalesced"
    """The number of skipped changes, sent before the value that they led to."""


class EndReason(StrEnum):
    """The reason why a service ends a watch."""

    STOPPING = "stopping"
    MOVED = "moved"
    FORBIDDEN = "forbidden"
    UNAVAILABLE = "unavailable"

    @property
    def detail(self) -> str:
        return _DETAILS[self]


_DETAILS = {
    EndReason.STOPPING: "this service stops: connect again, with the last event id",
    EndReason.MOVED: "the key is served elsewhere, or in another way: connect again, with the last event id",
    EndReason.FORBIDDEN: "the credential does not count any more, or does not cover these keys any more",
    EndReason.UNAVAILABLE: "no replica can continue with these keys now: connect again, with the last event id",
}


def key_event(kind: KeyEvent, data: bytes) -> bytes:
    """Write an event without its last line, so that an id can follow."""
    return b"event: %b\ndata: %b\n" % (kind.encode(), data)


def coalesced_event(store: bytes, key: bytes, first: int, last: int, changes: int | None) -> bytes:
    """Write the event that reports skipped changes of a key. `store` and `key` are JSON."""
    data = b'{"store":%b,"key":%b,"from":%d,"to":%d,"changes":%b}'
    count = b"null" if changes is None else b"%d" % changes
    return key_event(KeyEvent.COALESCED, data % (store, key, first, last, count))


def with_id(event: bytes, position: str | None) -> bytes:
    """End an event, with the position up to which everything was sent."""
    return event + b"\n" if position is None else b"%bid: %b\n\n" % (event, position.encode())


def version_text(version: int, position: str) -> bytes:
    """Write the event that says that all changes up to a version were sent, without its last line."""
    return b"event: version\ndata: %b\n" % orjson.dumps({"version": version, "position": position})


def version_event(version: int, position: str) -> bytes:
    """Write the event that says that all changes up to a version were sent."""
    return with_id(version_text(version, position), position)


def reset_event(lineage: str) -> bytes:
    """Write the event that tells the client to drop the positions it has: the history was replaced."""
    detail = "the history that the position refers to is gone: what follows begins anew"
    return b"event: reset\ndata: %b\n\n" % orjson.dumps({"lineage": lineage, "detail": detail})


def end_event(reason: EndReason, retry_ms: int) -> bytes:
    """Write the last event of a watch that the service ends."""
    return b"event: end\nretry: %d\ndata: %b\n\n" % (
        retry_ms,
        orjson.dumps({"reason": reason.value, "detail": reason.detail}),
    )


class HopEvent(NamedTuple):
    """An event from a node: its kind, the text to pass on (without id and last line), and the key that it is about.

    `at` is the index of the key, and `version` the version of its value; both are -1 in other events. `position` is the
    id of the event. In a feed, the first `head` bytes of the data do not depend on the version; `tail` belongs to the
    position.
    """

    kind: str
    text: bytes
    at: int
    version: int
    position: str | None
    head: int = 0
    tail: bytes = b""


def at_key(index: int, version: int) -> bytes:
    """Return the field that names the key and the version of an event."""
    return b"at: %d %d\n" % (index, version)


def at_fed_key(number: int, version: int, head: int) -> bytes:
    """Return the same field for a feed, with the number of bytes of data that do not depend on the version."""
    return b"at: %d %d %d\n" % (number, version, head)


def with_tail(event: bytes, position: str, tail: bytes) -> bytes:
    """End an event of a feed with the position up to which everything was sent, and the position's age and origin."""
    return with_id(b"%btail: %b\n" % (event, tail), position)


def read_event(block: bytes) -> HopEvent | None:
    """Parse an event without its empty line; return None for a comment. Raises ValueError for a malformed event."""
    kind, index, version, position, head, tail = "", -1, -1, None, 0, b""
    kept: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b":"):
            continue
        name, _, value = line.partition(b": ")
        if name == b"at":
            first, second, *third = value.split(b" ")
            index, version, head = int(first), int(second), int(third[0]) if third else 0
        elif name == b"tail":
            tail = value
        elif name == b"id":
            position = value.decode("ascii")
        else:
            kind = value.decode("ascii") if name == b"event" else kind
            kept.append(line)
    if not kept:
        return None
    if not kind:
        raise ValueError(f"an event without a name: {block[:80]!r}")
    return HopEvent(kind, b"\n".join(kept) + b"\n", index, version, position, head, tail)
