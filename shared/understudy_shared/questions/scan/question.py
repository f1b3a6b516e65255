"""A question about all keys of a store: which rows, or how many; and the cursor for its next page (pure).

All pages of one list answer the same question, and its digest is in their cursors. The number of rows and the way they
are printed may differ from page to page.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, Literal

import orjson

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.questions.lookup.windows import WindowsOf
from understudy_shared.questions.scan.where import RawTerm
from understudy_shared.reads.tokens import BadCursorError, OtherLineageError, decode_token, encode_token

PREFIX: Final = "sc1."

MAX_SCAN_CURSOR_CHARS: Final = 4 * 1024 * 1024
"""Limit on a cursor: enough for a key of 1 MiB. A usual cursor has about 300 characters. One that is too long for a URL
fits in a body.
"""

_FIX: Final = "Send the `next_cursor` of an answer, unchanged, with the same question; or begin without one"


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """The version of the first page, and the key at the end of the last one.

    It is bound to application, lineage, store, question and principal, so all pages answer the same question. It grants
    nothing: its sender could ask for that place directly. Its checksum catches only accidents.

    `after` is the beginning of the stored keys of the last key that was read; None before the first key of the
    partition. `counted` is the number of rows on earlier pages.
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
        """Raise BadCursorError unless the cursor continues this question, and OtherLineageError if the checkpoint was
        re-created since.
        """
        if self.application != application:
            raise _other(f"the cursor is of the application {clipped(self.application)}, not of {application!r}")
        if self.store != store:
            raise _other(f"the cursor is of the store {clipped(self.store)}, not of {store!r}")
        if self.lineage != lineage:
            raise OtherLineageError(
                f"the cursor is of lineage {clipped(self.lineage)}, and this store is of {lineage}",
                where="cursor",
                fix="Begin without a cursor: the checkpoint was re-created",
            )
        if self.question != question:
            raise _other("the cursor is of another question, or of another principal")


def decode_scan_cursor(token: object) -> ScanCursor:
    """Parse a token. Raises BadCursorError, with the reason."""
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


ScanOperation = Literal["scan", "count", "export", "windows"]

MAX_SCAN_ROWS: Final = 1_000
"""Limit on the rows of a page, and its default."""

MAX_SCAN_BYTES: Final = 1024 * 1024
"""Size at which a page ends, before the row that would exceed it, unless that is its only one."""

MAX_FIELDS: Final = 256

MAX_ORDER_CHARS: Final = 1024
"""Limit on the name of the column that orders."""


@dataclass(frozen=True, slots=True)
class ScanQuestion:
    """The wanted rows: of one `partition`, or of all; with leading key columns equal to `prefix`, which is parsed JSON;
    matched by `where`. `fields` names the value and result columns to show; None: all. Without `include_expired`,
    elements that have surely expired are left out, as in a lookup.

    `low` and `high` limit the first key column, as texts as in a path: `low` is inclusive, `high` exclusive. `order` is
    `key` or the name of a column; None: the order in which keys are stored. `reverse` reverses the order.
    """

    operation: ScanOperation = "scan"
    partition: int | None = None
    prefix: tuple[object, ...] = ()
    where: tuple[RawTerm, ...] = ()
    fields: tuple[str, ...] | None = None
    include_expired: bool = True
    low: str | None = None
    high: str | None = None
    order: str | None = None
    reverse: bool = False
    windows: WindowsOf | None = None
    """The key whose windows are requested. The range then limits their starts, or all of their moments."""

    @property
    def is_filtered(self) -> bool:
        return bool(self.prefix or self.where) or self.has_range

    @property
    def is_ordered(self) -> bool:
        """Whether its rows are ordered by columns. Windows are ordered by their starts."""
        return self.order is not None or self.windows is not None

    @property
    def has_range(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def names_columns(self) -> bool:
        """Whether it names columns: in comparisons, a range, an order, or those to show."""
        return bool(self.where) or self.fields is not None or self.has_range or self.order is not None

    def members(self) -> dict[str, object]:
        """Return its members as JSON; those that are not given are left out."""
        found: dict[str, object] = {"operation": self.operation}
        if self.partition is not None:
            found["partition"] = self.partition
        if self.prefix:
            found["prefix"] = list(self.prefix)
        if self.where:
            found["where"] = [each.form() for each in self.where]
        if self.fields is not None:
            found["fields"] = list(self.fields)
        if not self.include_expired:
            found["include_expired"] = False
        given = (("from", self.low), ("to", self.high), ("order", self.order))
        found |= {name: value for name, value in given if value is not None}
        if self.windows is not None:
            found["windows"] = {"key": list(self.windows.key), "by": self.windows.by}
        return {**found, "reverse": True} if self.reverse else found

    def digest(self, asker: str) -> str:
        """Return the digest of the question and the asker. A cursor has it in place of the question itself."""
        said = orjson.dumps([asker, self.members()], option=orjson.OPT_SORT_KEYS)
        return blake2b(said, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A request for one page. `bounds` are the parameters of its bound, as in a lookup."""

    question: ScanQuestion
    limit: int = MAX_SCAN_ROWS
    cursor: ScanCursor | None = None
    explain: bool = False
    longs_as_text: bool = False
    is_estimate: bool = False
    bounds: Mapping[str, object] = field(default_factory=dict)
