"""The part of a key's elements that an answer holds: a page of a long list, without expired elements (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from understudy_shared.reads.cursor import PageCursor

MAX_PAGE_ELEMENTS: Final = 1_000
"""Limit on the elements of one answer, and their number by default. As many as keys of a batch: printing them holds the
event loop.
"""


class ElementPlace(NamedTuple):
    """The number of an element of a key, and the bytes by which a version finds it: empty for the first element, or
    where elements are found by their number.
    """

    number: int = 0
    start: bytes = b""


FIRST_PLACE: Final = ElementPlace()


@dataclass(frozen=True, slots=True)
class Selection:
    """`limit` is for the elements of one key; without `include_expired`, elements that have surely expired are left
    out. `place`, at or before the cursor's offset, is known at the node that issued the cursor.
    """

    limit: int = MAX_PAGE_ELEMENTS
    cursor: PageCursor | None = None
    include_expired: bool = True
    place: ElementPlace = FIRST_PLACE

    @property
    def offset(self) -> int:
        """The number of elements on the pages before."""
        return 0 if self.cursor is None else self.cursor.offset

    def fields(self) -> dict[str, object]:
        """Return the parameters that it was made of; unset ones are left out."""
        fields: dict[str, object] = {} if self.limit == MAX_PAGE_ELEMENTS else {"limit": self.limit}
        if self.cursor is not None:
            fields["cursor"] = self.cursor.encode()
        return fields if self.include_expired else {**fields, "include_expired": False}


EVERYTHING: Final = Selection()
