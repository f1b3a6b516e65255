"""The question about all keys of a store: which rows, or how many (pure).

The question is what the pages of one list have in common; its digest is in their cursors. How many rows a page has, and
how they are printed, may differ from page to page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal

import orjson

from understudy_shared.questions.lookup.windows import WindowsOf
from understudy_shared.questions.scan.cursor import ScanCursor
from understudy_shared.questions.scan.where import RawTerm

ScanOperation = Literal["scan", "count", "export", "windows"]

MAX_SCAN_ROWS: Final = 1_000
"""Limit on the rows of a page, and their number by default."""

MAX_SCAN_BYTES: Final = 1024 * 1024
"""Size at which a page ends, before the row that would exceed it, unless that is its only one."""

MAX_FIELDS: Final = 256

MAX_ORDER_CHARS: Final = 1024
"""Limit on the name of the column that orders."""


@dataclass(frozen=True, slots=True)
class ScanQuestion:
    """The rows that are wanted: of one `partition`, or of all; those whose leading key columns have the values of
    `prefix`, which is parsed JSON; those that `where` matches. `fields` names the value and result columns to show;
    None: all. Without `include_expired`, elements that have surely expired are left out, as in a lookup.

    `low` and `high` are bounds of the first key column, texts as in a path: the first belongs to the range, the last
    does not. `order` is `key`, or the name of a column; `reverse` turns it around. None: the order in
    which keys are stored.
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
    """The key whose windows are asked for. Then the range is that of their starts, or of all their moments."""

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves rows out."""
        return bool(self.prefix or self.where) or self.has_range

    @property
    def is_ordered(self) -> bool:
        """Whether its rows come in the order of columns; windows come in that of their starts."""
        return self.order is not None or self.windows is not None

    @property
    def has_range(self) -> bool:
        """Whether it has a bound of the first key column."""
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
        """Return the digest of the question of a principal: a cursor does not show the question itself."""
        said = orjson.dumps([asker, self.members()], option=orjson.OPT_SORT_KEYS)
        return blake2b(said, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A request for one page. `bounds` are the parameters of its bound, as a lookup takes them."""

    question: ScanQuestion
    limit: int = MAX_SCAN_ROWS
    cursor: ScanCursor | None = None
    explain: bool = False
    longs_as_text: bool = False
    is_estimate: bool = False
    bounds: Mapping[str, object] = field(default_factory=dict)
