"""The calls between routers and nodes about snapshot leases: agree on a version, hold, end and list leases (pure: bytes
in, bytes out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.plausible import CEILING
from understudy_shared.reads.hop_fields import BadHopError, object_of, text
from understudy_shared.reads.tokens import BadPositionError, Position, SnapshotLease, decode_lease, decode_position

SHOWN_PATH: Final = "/internal/v1/snapshots/shown"
HOLD_PATH: Final = "/internal/v1/snapshots/hold"
RELEASE_PATH: Final = "/internal/v1/snapshots/release"
LIST_PATH: Final = "/internal/v1/snapshots/list"

RETRY_AFTER: Final = "retry_after_s"
"""The member of a problem with its Retry-After, so that a router can pass it on."""

MAX_LEASES_PER_CALL: Final = 1000
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
"""Limit on a reply: a thousand leases, or the versions of some ten thousand partitions."""


class ReplicaVersion(NamedTuple):
    """The version that a replica of a partition serves."""

    store: str
    partition: int
    version: int
    committed_at_us: int | None


class ShownCall(NamedTuple):
    """A request for the versions that a node serves of some stores."""

    application: str
    lineage: str
    stores: tuple[str, ...]
    min_position: Position | None

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        position = None if self.min_position is None else self.min_position.encode()
        return orjson.dumps({**self._asdict(), "min_position": position})


def decode_shown_call(body: bytes) -> ShownCall:
    """Parse a request. Raises BadHopError."""
    fields = object_of(body)
    try:
        return ShownCall(
            text(fields, "application"),
            text(fields, "lineage"),
            _texts(fields["stores"]),
            _position(fields["min_position"]),
        )
    except KeyError as error:
        raise BadHopError(f"the call has no {error}") from None


def encode_shown(shown: Iterable[ReplicaVersion]) -> bytes:
    """Return the JSON of a reply: the versions that a node serves."""
    return orjson.dumps({"shown": list(map(tuple, shown))})


def decode_shown(body: bytes) -> tuple[ReplicaVersion, ...]:
    """Parse a reply. Raises BadHopError."""
    shown = object_of(body).get("shown")
    if not isinstance(shown, list):
        raise BadHopError("the reply shows no list of versions")
    return tuple(map(_shown, shown))


class LeasesCall(NamedTuple):
    """Leases to hold or to end, opened for the tasks of `stores`. `is_renewal`: a forgotten lease is held again."""

    application: str
    lineage: str
    leases: tuple[SnapshotLease, ...]
    stores: tuple[str, ...] = ()
    is_renewal: bool = False

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps({**self._asdict(), "leases": [each.encode() for each in self.leases]})


def decode_leases_call(body: bytes) -> LeasesCall:
    """Parse a request. Raises BadHopError."""
    fields = object_of(body)
    try:
        tokens = _texts(fields["leases"])
        if not 0 < len(tokens) <= MAX_LEASES_PER_CALL:
            raise BadHopError(f"the call has no list of 1 to {MAX_LEASES_PER_CALL} leases")
        return LeasesCall(
            text(fields, "application"),
            text(fields, "lineage"),
            tuple(map(decode_lease, tokens)),
            _texts(fields["stores"]),
            fields["is_renewal"] is True,
        )
    except KeyError as error:
        raise BadHopError(f"the call has no {error}") from None
    except BadPositionError as error:
        raise BadHopError(error.what) from None


def decode_listed(body: bytes) -> list[Mapping[str, Any]]:
    """Parse the reply with the leases that a node holds. Raises BadHopError."""
    listed = object_of(body).get("snapshots")
    if not isinstance(listed, list) or not all(_is_listed(each) for each in listed):
        raise BadHopError("the reply has no list of snapshots")
    return listed


_NUMBERS: Final = ("version", "ttl_s", "tasks", "extra_bytes", "disk_bytes")


def _is_listed(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and all(type(entry.get(name)) is int for name in _NUMBERS)
        and all(isinstance(entry.get(name), str) for name in ("id", "expires_at"))
    )


def _shown(entry: object) -> ReplicaVersion:
    match entry:
        case [str(store), int(partition), int(version), int() | None as time_us] if bool not in map(type, entry):
            if 0 <= partition <= CEILING and 0 <= version <= CEILING:
                return ReplicaVersion(store, partition, version, time_us)
    raise BadHopError("an entry of the reply does not name the version of a partition")


def _position(token: object) -> Position | None:
    if token is None:
        return None
    try:
        return decode_position(str(token))
    except BadPositionError as error:
        raise BadHopError(error.what) from None


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise BadHopError("the leases or the stores of the call are not a list of texts")
