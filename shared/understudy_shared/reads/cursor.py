"""The cursor of a long list: where its next page begins, and which list it belongs to (pure).

It is bound to the store, the key, the lineage and the version that the first page was read from: pages of two versions
do not make one list. The commit time catches a rewound history, as in a position. `place` is where the issuing node
finds the next element; only that node can read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.reads.tokens import decode_token, encode_token

PREFIX: Final = "uc1."
MAX_CURSOR_CHARS: Final = 2048
"""Far above any real cursor (about 200)."""

_FIX: Final = "Send the `next_cursor` of an answer, unchanged, with the same store and key; or begin without one"


class BadCursorError(UnderstudyError):
    """The project did not issue this cursor, or it was cut, or it belongs to something else."""


@dataclass(frozen=True, slots=True)
class PageCursor:
    """A cursor. `key` is the digest of the key's row, `offset` the number of elements on the pages before, `place`
    where the next one is, sealed by the issuing node.
    """

    store: str
    lineage: str
    key: str
    version: int
    committed_at_us: int | None
    offset: int
    place: str = ""

    def encode(self) -> str:
        """Return the token: `uc1.` and URL-safe base64 of a JSON array."""
        fields = [self.store, self.lineage, self.key, self.version, self.committed_at_us, self.offset]
        fields += [self.place] if self.place else []
        return encode_token(PREFIX, fields)

    def require_of(self, store: str, lineage: str) -> None:
        """Raise BadCursorError unless the cursor is of this store and lineage."""
        if self.store != store:
            raise _other(f"the cursor is of the store {clipped(self.store)}, not of {store!r}")
        if self.lineage != lineage:
            raise _other(f"the cursor is of lineage {clipped(self.lineage)}, and this store is of {lineage}")

    def require_key(self, row: bytes) -> None:
        """Raise BadCursorError unless the cursor is of this key. `row` is the key's, without the provider's prefix."""
        if self.key != key_digest(row):
            raise _other("the cursor is of another key")


def key_digest(row: bytes) -> str:
    """Return the digest of a key's row: a key is too long for a cursor, and may be confidential."""
    return blake2b(row, digest_size=12).hexdigest()


def decode_cursor(token: object) -> PageCursor:
    """Parse a token; BadCursorError says why it is not one."""
    return decode_token(token, PREFIX, MAX_CURSOR_CHARS, _cursor_of, partial(_bad, token))


def _cursor_of(fields: object) -> PageCursor | None:
    match fields:
        case [str(store), str(lineage), str(key), int(version), int() | None as time_us, int(offset), *rest] if (
            bool not in map(type, fields) and len(rest) <= 1
        ):
            place = rest[0] if rest else ""
            if isinstance(place, str) and 0 <= version <= CEILING and 0 < offset <= CEILING:
                return PageCursor(store, lineage, key, version, time_us, offset, place)
    return None


def _bad(token: object, why: str) -> BadCursorError:
    return BadCursorError(f"{clipped(token)} is not a cursor: {why}", where="cursor", fix=_FIX)


def _other(what: str) -> BadCursorError:
    return BadCursorError(what, where="cursor", fix=_FIX)
