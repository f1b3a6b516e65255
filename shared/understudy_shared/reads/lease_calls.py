"""The calls by which routers and nodes agree on the version of a snapshot lease, hold it, end it, and list what is held
(pure: bytes in, bytes out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.printable import clipped
from understudy_shared.reads.hop_fields import BadHopError, object_of, text
from understudy_shared.reads.position import BadPositionError, Position, decode_position
from understudy_shared.reads.snapshot_lease import SnapshotLease, decode_lease

SHOWN_PATH: Final = "/internal/v1/snapshots/shown"
HOLD_PATH: Final = "/internal/v1/snapshots/hold"
RELEASE_PATH: Final = "/internal/v1/snapshots/release"
LIST_PATH: Final = "/internal/v1/snapshots/list"

RETRY_AFTER: Final = "retry_after_s"
"""The member of a problem that has its Retry-After: a router passes it on."""

MAX_LEASES_PER_CALL: Final = 1000
MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
"""Limit on a reply: a thousand leases with their stores, or the versions of some ten thousand partitions."""


class ReplicaVersion(NamedTuple):
    """The version that a replica of a partition shows."""

    store: str
    partition: int
    version: int
    committed_at_us: int | None


class ShownCall(NamedTuple):
    """The question which versions a node shows of some stores."""

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


class ShownReply(NamedTuple):
    """The versions that a node shows. `shared` is the newest version of its leases of the last second."""

    shown: tuple[ReplicaVersion, ...]
    shared: Position | None

    def encode(self) -> bytes:
        """Return the JSON of the reply."""
        shared = None if self.shared is None else self.shared.encode()
        return orjson.dumps({"shown": list(map(tuple, self.shown)), "shared": shared})


def decode_shown_reply(body: bytes) -> ShownReply:
    """Parse a reply. Raises BadHopError."""
    fields = object_of(body)
    try:
        shown = fields["shown"]
        if not isinstance(shown, list):
            raise BadHopError("the reply shows no list of versions")
        return ShownReply(tuple(map(_shown, shown)), _position(fields["shared"]))
    except KeyError as error:
        raise BadHopError(f"the reply has no {error}") from None


class HeldFor(NamedTuple):
    """A lease, for whom it is, and which stores are read by it. `is_newest`: its version was the newest one, so that
    the next lease may share it. A renewal says only the lease.
    """

    lease: SnapshotLease
    holder: str | None = None
    stores: tuple[str, ...] = ()
    is_newest: bool = False


class LeasesCall(NamedTuple):
    """Leases to hold or to end. `is_renewal`: they are used; those that are not held come back."""

    application: str
    lineage: str
    leases: tuple[HeldFor, ...]
    is_renewal: bool = False

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        leases = [(each.lease.encode(), *each[1:]) for each in self.leases]
        return orjson.dumps({**self._asdict(), "leases": leases})


def decode_leases_call(body: bytes) -> LeasesCall:
    """Parse a request. Raises BadHopError."""
    fields = object_of(body)
    try:
        leases = fields["leases"]
        if not isinstance(leases, list) or not 0 < len(leases) <= MAX_LEASES_PER_CALL:
            raise BadHopError(f"the call has no list of 1 to {MAX_LEASES_PER_CALL} leases")
        is_renewal = fields["is_renewal"] is True
        return LeasesCall(text(fields, "application"), text(fields, "lineage"), tuple(map(_held, leases)), is_renewal)
    except KeyError as error:
        raise BadHopError(f"the call has no {error}") from None


def encode_held(retained_for_s: int | None) -> bytes:
    """Return the JSON of a reply: for how long Spark will keep the version, about; None: that is unknown."""
    return orjson.dumps({"retained_for_s": retained_for_s})


def decode_held(body: bytes) -> int | None:
    """Parse a reply. Raises BadHopError."""
    retained_for_s = object_of(body).get("retained_for_s")
    if retained_for_s is None or (type(retained_for_s) is int and 0 <= retained_for_s <= CEILING):
        return retained_for_s
    raise BadHopError(f"retained_for_s is {clipped(retained_for_s)}, not a whole number or null")


def decode_listed(body: bytes) -> list[Mapping[str, Any]]:
    """Parse the reply with the leases that a node holds. Raises BadHopError."""
    listed = object_of(body).get("snapshots")
    if not isinstance(listed, list) or not all(_is_listed(each) for each in listed):
        raise BadHopError("the reply has no list of snapshots")
    return listed


_NUMBERS: Final = ("version", "ttl_s", "age_s", "renewals", "tasks", "extra_bytes", "disk_bytes")


def _is_listed(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and all(type(entry.get(name)) is int for name in _NUMBERS)
        and all(isinstance(entry.get(name), str) for name in ("id", "expires_at"))
    )


def _held(entry: object) -> HeldFor:
    match entry:
        case [str(token), str() | None as holder, list(stores), bool(is_newest)]:
            try:
                return HeldFor(decode_lease(token), holder, _texts(stores), is_newest)
            except BadPositionError as error:
                raise BadHopError(error.what) from None
    raise BadHopError("a lease of the call is no token with its holder and stores")


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


def _texts(value: Sequence[object]) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise BadHopError("the stores of the call are no list of names")
