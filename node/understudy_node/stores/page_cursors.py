"""The place in a cursor where the next page of a long key begins: sealed, so that only its issuer trusts it.

A cursor comes from a stranger. Bytes that point into a list or a range of keys could be forged to point between two
elements, and what is there would look like damage of the state. So a place has a seal, by a secret that never leaves
the process. A process that finds no place of its own skips the elements before the page, a bounded number for each
request. It leaves the places of others in the cursor, so that replicas which are asked in turn all get on.
"""

from __future__ import annotations

import base64
import secrets
import struct
from dataclasses import replace
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from understudy_shared.reads.bounds import FIRST_PLACE, ElementPlace
from understudy_shared.reads.tokens import PageCursor

MAX_START_BYTES: Final = 256
"""Limit on a place: a cursor is part of a URL. For a longer key its beginning is enough: the page then skips elements
that share it.
"""

MAX_ISSUERS: Final = 3
"""Number of places in one cursor: those of as many replicas as a task usually has."""

_INDEX: Final = struct.Struct("<Q")
_SEAL_BYTES: Final = 16
_BETWEEN: Final = ","
"""Separator of places: not among the characters of base 85."""


class Places:
    """The sealer of places in cursors, which recognises its own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def put(self, cursor: PageCursor, place: ElementPlace, *, beside: PageCursor | None = None) -> PageCursor:
        """Put this place into the cursor, with those of other issuers in `beside`, the cursor before it."""
        if not place.start:  # elements are found by their number: no place needed
            return cursor
        said = _INDEX.pack(place.number) + place.start[:MAX_START_BYTES]
        own = base64.b85encode(self._seal(cursor, said) + said).decode()
        others = [] if beside is None else [each for each in _parts(beside) if self._known(beside, each) is None]
        return replace(cursor, place=_BETWEEN.join([own, *others][:MAX_ISSUERS]))

    def of(self, cursor: PageCursor) -> ElementPlace:
        """Return the place that this process put there; the first place where the cursor has no place of ours, or one
        behind the offset.
        """
        known = (self._known(cursor, part) for part in _parts(cursor))
        return next((place for place in known if place is not None and place.number <= cursor.offset), FIRST_PLACE)

    def _known(self, cursor: PageCursor, part: str) -> ElementPlace | None:
        try:
            sealed = base64.b85decode(part)
        except ValueError:
            return None
        seal, said = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if len(said) <= _INDEX.size or not compare_digest(seal, self._seal(cursor, said)):
            return None
        return ElementPlace(_INDEX.unpack_from(said)[0], said[_INDEX.size :])

    def _seal(self, cursor: PageCursor, said: bytes) -> bytes:
        """Seal a place. It holds for a key at a version of a store; the offset is the reader's to choose."""
        of = repr((cursor.store, cursor.lineage, cursor.key, cursor.version, cursor.committed_at_us)).encode()
        return blake2b(of + b"\0" + said, key=self._secret, digest_size=_SEAL_BYTES).digest()


def _parts(cursor: PageCursor) -> list[str]:
    return cursor.place.split(_BETWEEN)[:MAX_ISSUERS] if cursor.place else []


OWN_PLACES: Final = Places(secrets.token_bytes(32))
"""The places of this process."""
