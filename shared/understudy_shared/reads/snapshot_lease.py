"""The token of a snapshot lease: the version that nodes keep, and for how long after each use (pure).

It is accepted wherever `snapshot` takes a position token, and reads what that position reads, so it grants nothing and
is not sealed: its checksum is for accidents. It needs no table in a router, and survives every restart.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Final

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.position import MAX_TOKEN_CHARS, BadPositionError, Position, decode_position
from understudy_shared.reads.tokens import decode_token, encode_token

PREFIX: Final = "ul1."
DEFAULT_TTL_S: Final = 60
MAX_TTL_S: Final = 900
"""A reader who needs longer goes on to use it: each use renews."""

MAX_LEASE_ID_CHARS: Final = 32

_FIX: Final = "Send the `snapshot` of an answer of POST /v1/snapshots, or the `position` of any answer, unchanged"


@dataclass(frozen=True, slots=True)
class SnapshotLease:
    """A lease. `lease_id` tells leases of one version apart; who knows it may end the lease."""

    position: Position
    lease_id: str
    ttl_s: int

    def encode(self) -> str:
        """Return the token: `ul1.` and URL-safe base64 of a JSON array."""
        at = self.position
        fields = [at.application_id, at.lineage, at.version, at.committed_at_us, self.lease_id, self.ttl_s]
        return encode_token(PREFIX, fields, has_checksum=True)


def new_lease(position: Position, ttl_s: int) -> SnapshotLease:
    """Return a lease of a version with an id that cannot be guessed."""
    return SnapshotLease(position, secrets.token_urlsafe(9), ttl_s)


def decode_snapshot(token: str) -> tuple[Position, SnapshotLease | None]:
    """Parse the token of a lease or of a position. Return its version, and the lease. Raises BadPositionError."""
    if not token.startswith(PREFIX):
        return decode_position(token), None
    lease = decode_lease(token)
    return lease.position, lease


def decode_lease(token: str) -> SnapshotLease:
    """Parse the token of a lease; BadPositionError says why it is not one."""
    return decode_token(token, PREFIX, MAX_TOKEN_CHARS, _lease_of, partial(_bad, token))


def _lease_of(fields: object) -> SnapshotLease | None:
    match fields:
        case [
            str(application),
            str(lineage),
            int(version),
            int() | None as time_us,
            str(lease_id),
            int(ttl_s),
            str(),
        ] if bool not in map(type, fields):
            if 0 <= version <= CEILING and 1 <= ttl_s <= MAX_TTL_S and 0 < len(lease_id) <= MAX_LEASE_ID_CHARS:
                position = Position(ApplicationId(application), Lineage(lineage), version, time_us)
                return SnapshotLease(position, lease_id, ttl_s)
    return None


def _bad(token: str, why: str) -> BadPositionError:
    return BadPositionError(f"{clipped(token)} is not a snapshot: {why}", where="snapshot", fix=_FIX)
