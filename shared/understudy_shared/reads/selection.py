"""Which part of what a key has an answer shall hold: a page of a long list, without what has expired (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from understudy_shared.reads.cursor import Cursor

MAX_PAGE_ELEMENTS: Final = 1_000
"""Most elements of one answer, and how many it has by default. As many as keys of a batch: printing them holds the
event loop.
"""


class Place(NamedTuple):
    """The number of an element of a key, and the bytes by which a version finds it; none for the first, or where
    elements are found by their number.
    """

    number: int = 0
    start: bytes = b""


FIRST_PLACE: Final = Place()


@dataclass(frozen=True, slots=True)
class Selection:
    """`limit` is for the elements of one key; without `include_expired`, elements that have surely expired are left
    out. `place`, at or before the cursor's offset, is known at the node that issued the cursor.
    """

    limit: int = MAX_PAGE_ELEMENTS
    cursor: Cursor | None = None
    include_expired: bool = True
    place: Place = FIRST_PLACE

    @property
    def offset(self) -> int:
        """Elements on the pages before."""
        return 0 if self.cursor is None else self.cursor.offset

    def fields(self) -> dict[str, object]:
        """The parameters that it was made of; what is not set is left out."""
        fields: dict[str, object] = {} if self.limit == MAX_PAGE_ELEMENTS else {"limit": self.limit}
        if self.cursor is not None:
            fields["cursor"] = self.cursor.encode()
        return fields if self.include_expired else {**fields, "include_expired": False}


EVERYTHING: Final = Selection()
