"""The tokens that clients send back: a prefix, and URL-safe base64 of a JSON array (pure).

A **position** states what a client has seen, and every replica accepts it. One version and its commit time suffice for
a whole application, because every batch advances every task. Tokens merge by maximum; tokens of two lineages do not
merge. The commit time reveals a rewound history: the same version with another commit time is not what the client saw.

A **cursor** states where the next page of a long list begins. It is bound to the store, the key, the lineage and the
version of the first page, because pages of two versions do not make one list. `place` is where the issuing node finds
the next element; only that node can read it.

A **snapshot lease** names the version that nodes keep, and for how long after each use. It is accepted wherever
`snapshot` takes a position, and reads the same data as that position. So it grants nothing and is not sealed; its
checksum only catches accidents. It needs no table in a router, and survives every restart.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol, TypeVar

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import ApplicationId, Lineage


class Token(Protocol):
    """The content of a token."""

    def encode(self) -> str:
        """Return the token."""


T = TypeVar("T", bound=Token)


def encode_token(prefix: str, fields: Sequence[object], *, has_checksum: bool = False) -> str:
    """Return the token of these fields. With `has_checksum`, the last field is a checksum that catches accidents."""
    checksum = [blake2b(json.dumps(fields).encode(), digest_size=6).hexdigest()] if has_checksum else []
    text = json.dumps([*fields, *checksum], separators=(",", ":"), ensure_ascii=False)
    return prefix + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_token(
    token: object,
    prefix: str,
    max_chars: int,
    parse: Callable[[object], T | None],
    bad: Callable[[str], UnderstudyError],
) -> T:
    """Decode a token. `parse` returns None for fields that were never issued; `bad` makes the error from a reason."""
    if not isinstance(token, str) or not token.startswith(prefix) or len(token) > max_chars:
        raise bad(f"it does not begin with {prefix!r}, or is longer than {max_chars} characters")
    try:
        body = token[len(prefix) :]
        found = parse(json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)))
        is_exact = found is not None and found.encode() == token
    except (ValueError, RecursionError) as error:  # bad base64, UTF-8 or JSON are all ValueErrors
        raise bad(f"its body does not decode ({error})") from None
    if found is None or not is_exact:
        raise bad("its fields are not as they were issued")
    return found


POSITION_PREFIX = "us1."
MAX_TOKEN_CHARS = 2048
"""Far above any real token (about 150); a longer one is not parsed."""


class BadPositionError(UnderstudyError):
    """The project did not issue this token, or it was cut."""


class OtherLineageError(UnderstudyError):
    """The token belongs to another history of the application: its versions mean nothing here."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position: `version` was visible; `committed_at_us` is the commit file's modification time, None if purged."""

    application_id: ApplicationId
    lineage: Lineage
    version: int
    committed_at_us: int | None

    def encode(self) -> str:
        fields = [self.application_id, self.lineage, self.version, self.committed_at_us]
        return encode_token(POSITION_PREFIX, fields)

    def merge(self, other: Position) -> Position:
        """Return the later of two positions. Raises `OtherLineageError` if they are not of one history."""
        if (self.application_id, self.lineage) != (other.application_id, other.lineage):
            raise OtherLineageError(
                f"positions of lineage {self.lineage} and {other.lineage} cannot be merged",
                fix="Drop the older token: the checkpoint was re-created",
            )
        if self.version != other.version:
            return max(self, other, key=lambda position: position.version)
        if self.committed_at_us is None or other.committed_at_us is None:
            return self if other.committed_at_us is None else other  # the one with a commit time
        if self.committed_at_us != other.committed_at_us:
            raise OtherLineageError(
                f"version {self.version} was committed twice: the positions are of two histories",
                fix="Drop the older token: the checkpoint was rewound",
            )
        return self


def decode_position(token: str) -> Position:
    """Parse a token. Raises `BadPositionError`, with the reason."""
    return decode_token(token, POSITION_PREFIX, MAX_TOKEN_CHARS, _position_of, partial(_bad_position, token))


def _position_of(fields: object) -> Position | None:
    match fields:
        case [str(application), str(lineage), int(version), int() | None as time_us] if version >= 0:
            if bool not in map(type, fields):
                return Position(ApplicationId(application), Lineage(lineage), version, time_us)
    return None


def _bad_position(token: str, why: str) -> BadPositionError:
    fix = "Send the `position` of an earlier answer, unchanged"
    return BadPositionError(f"{clipped(token)} is not a position token: {why}", where="min_position", fix=fix)


CURSOR_PREFIX: Final = "uc1."
MAX_CURSOR_CHARS: Final = 2048
"""Far above any real cursor (about 200)."""

_CURSOR_FIX: Final = "Send the `next_cursor` of an answer, unchanged, with the same store and key; or begin without one"


class BadCursorError(UnderstudyError):
    """The project did not issue this cursor, or it was cut, or it belongs to another list."""


@dataclass(frozen=True, slots=True)
class PageCursor:
    """A cursor. `key` is the digest of the key's row, `offset` the number of elements on earlier pages, `place` the
    place of the next one, sealed by the issuing node.
    """

    store: str
    lineage: str
    key: str
    version: int
    committed_at_us: int | None
    offset: int
    place: str = ""

    def encode(self) -> str:
        fields = [self.store, self.lineage, self.key, self.version, self.committed_at_us, self.offset]
        fields += [self.place] if self.place else []
        return encode_token(CURSOR_PREFIX, fields)

    def require_of(self, store: str, lineage: str) -> None:
        """Raise BadCursorError unless the cursor belongs to this store and lineage."""
        if self.store != store:
            raise _other_list(f"the cursor is of the store {clipped(self.store)}, not of {store!r}")
        if self.lineage != lineage:
            raise _other_list(f"the cursor is of lineage {clipped(self.lineage)}, and this store is of {lineage}")

    def require_key(self, row: bytes) -> None:
        """Raise BadCursorError unless the cursor belongs to this key. `row` has no provider's prefix."""
        if self.key != key_digest(row):
            raise _other_list("the cursor is of another key")


def key_digest(row: bytes) -> str:
    """Return the digest of a key's row. A key may be too long for a cursor, and confidential."""
    return blake2b(row, digest_size=12).hexdigest()


def decode_cursor(token: object) -> PageCursor:
    """Parse a token. Raises BadCursorError, with the reason."""
    return decode_token(token, CURSOR_PREFIX, MAX_CURSOR_CHARS, _cursor_of, partial(_bad_cursor, token))


def _cursor_of(fields: object) -> PageCursor | None:
    match fields:
        case [str(store), str(lineage), str(key), int(version), int() | None as time_us, int(offset), *rest] if (
            bool not in map(type, fields) and len(rest) <= 1
        ):
            place = rest[0] if rest else ""
            if isinstance(place, str) and 0 <= version <= CEILING and 0 < offset <= CEILING:
                return PageCursor(store, lineage, key, version, time_us, offset, place)
    return None


def _bad_cursor(token: object, why: str) -> BadCursorError:
    return BadCursorError(f"{clipped(token)} is not a cursor: {why}", where="cursor", fix=_CURSOR_FIX)


def _other_list(what: str) -> BadCursorError:
    return BadCursorError(what, where="cursor", fix=_CURSOR_FIX)


LEASE_PREFIX: Final = "ul1."
DEFAULT_TTL_S: Final = 60
MAX_TTL_S: Final = 900
"""Limit on the TTL. A client that needs the lease for longer keeps using it: each use renews it."""

MAX_LEASE_ID_CHARS: Final = 32

_LEASE_FIX: Final = "Send the `snapshot` of an answer of POST /v1/snapshots, or the `position` of any answer, unchanged"


@dataclass(frozen=True, slots=True)
class SnapshotLease:
    """A lease. `lease_id` distinguishes leases of one version; a client that knows it may end the lease."""

    position: Position
    lease_id: str
    ttl_s: int

    def encode(self) -> str:
        at = self.position
        fields = [at.application_id, at.lineage, at.version, at.committed_at_us, self.lease_id, self.ttl_s]
        return encode_token(LEASE_PREFIX, fields, has_checksum=True)


def new_lease(position: Position, ttl_s: int) -> SnapshotLease:
    """Return a lease of a version, with an id that cannot be guessed."""
    return SnapshotLease(position, secrets.token_urlsafe(9), ttl_s)


def decode_snapshot(token: str) -> tuple[Position, SnapshotLease | None]:
    """Parse the token of a lease or of a position. Return its version, and the lease. Raises BadPositionError."""
    if not token.startswith(LEASE_PREFIX):
        return decode_position(token), None
    lease = decode_lease(token)
    return lease.position, lease


def decode_lease(token: str) -> SnapshotLease:
    """Parse the token of a lease. Raises BadPositionError, with the reason."""
    return decode_token(token, LEASE_PREFIX, MAX_TOKEN_CHARS, _lease_of, partial(_bad_lease, token))


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


def _bad_lease(token: str, why: str) -> BadPositionError:
    return BadPositionError(f"{clipped(token)} is not a snapshot: {why}", where="snapshot", fix=_LEASE_FIX)
