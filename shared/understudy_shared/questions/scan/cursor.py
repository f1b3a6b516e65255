"""The cursor of a scan: the version that its first page was read from, and the key the last page ended with (pure).

It is bound to application, lineage, store, question and principal, so that no page answers another question than the
one before it. It grants nothing: its sender may ask for that place directly. Its checksum is for accidents.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import Final

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.reads.tokens import BadCursorError, LineageChangedError, decode_token, encode_token

PREFIX: Final = "sc1."

MAX_SCAN_CURSOR_CHARS: Final = 4 * 1024 * 1024
"""Above the cursor of a key of a mebibyte. Those of usual keys have about 300; a body takes longer ones than a URL."""

_FIX: Final = "Send the `next_cursor` of an answer, unchanged, with the same question; or begin without one"


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """A cursor. `after` are the bytes with which the stored keys of the last key that was looked at begin, None before
    the first key of the partition. `counted` is the number of rows on the pages before.
    """

    application: str
    lineage: str
    store: str
    version: int
    committed_at_us: int | None
    partition: int
    after: bytes | None
    question: str
    counted: int = 0

    def encode(self) -> str:
        """Return the token: `sc1.` and URL-safe base64 of a JSON array."""
        after = None if self.after is None else base64.b64encode(self.after).decode()
        fields = [
            self.application,
            self.lineage,
            self.store,
            self.version,
            self.committed_at_us,
            self.partition,
            after,
            self.question,
            self.counted,
        ]
        return encode_token(PREFIX, fields, has_checksum=True)

    def require_of(self, application: str, lineage: str, store: str, question: str) -> None:
        """Raise BadCursorError unless the cursor continues this question, and LineageChangedError where the checkpoint
        was re-created since.
        """
        if self.application != application:
            raise _other(f"the cursor is of the application {clipped(self.application)}, not of {application!r}")
        if self.store != store:
            raise _other(f"the cursor is of the store {clipped(self.store)}, not of {store!r}")
        if self.lineage != lineage:
            raise LineageChangedError(
                f"the cursor is of lineage {clipped(self.lineage)}, and this store is of {lineage}",
                where="cursor",
                fix="Begin without a cursor: the checkpoint was re-created",
            )
        if self.question != question:
            raise _other("the cursor is of another question, or of another principal")


def decode_scan_cursor(token: object) -> ScanCursor:
    """Parse a token; BadCursorError says why it is not one."""
    return decode_token(token, PREFIX, MAX_SCAN_CURSOR_CHARS, _cursor_of, partial(_bad, token))


def _cursor_of(fields: object) -> ScanCursor | None:
    match fields:
        case [
            str(application),
            str(lineage),
            str(store),
            int(version),
            int() | None as time_us,
            int(partition),
            str() | None as after,
            str(question),
            int(counted),
            str(),
        ] if bool not in map(type, fields):
            if not all(0 <= number <= CEILING for number in (version, partition, counted)):
                return None
            place = None if after is None else base64.b64decode(after, validate=True)
            return ScanCursor(application, lineage, store, version, time_us, partition, place, question, counted)
    return None


def _bad(token: object, why: str) -> BadCursorError:
    return BadCursorError(f"{clipped(token)} is not a cursor of a scan: {why}", where="cursor", fix=_FIX)


def _other(what: str) -> BadCursorError:
    return BadCursorError(what, where="cursor", fix=_FIX)
