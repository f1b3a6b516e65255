"""A part of an export, made slice by slice of many rows, each column at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple, Protocol

from understudy_node.engine.scans import after_prefix, slices
from understudy_node.engine.view import View
from understudy_node.questions.export.bulk.cells import AnyCells, UnfitRowsError
from understudy_node.questions.export.bulk.table import Projection
from understudy_node.questions.export.bulk_parts import MadePart
from understudy_shared.questions.scan.page import Room

PIECES: Final = 8
"""Number of pieces in which a full part is made: little more is printed of long rows than there is room for."""

HasLeft = Callable[[], bool]
"""A function that says whether the reader of a part has left."""


class PartCancelledError(Exception):
    """The reader has left, and does not want the part any more."""


class PartPiece(NamedTuple):
    """Some rows in their form, and about how many bytes of the part they take."""

    made: object
    rows: int
    size_bytes: int


class Form(Protocol):
    """A form of rows."""

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        """Print rows. Raises UnfitRowsError for those that have to be printed one by one."""

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        """Return the bytes of a part, of what was made of its slices."""


def stays() -> bool:
    """Say that the reader is there."""
    return False


def fast_part(  # noqa: PLR0917  # the last has a default
    table: Projection, form: Form, view: View, after: bytes | None, room: Room, has_left: HasLeft = stays
) -> MadePart:
    """Make the part behind the key `after`. Raises UnfitRowsError if its first rows have to be read one by one, and
    PartCancelledError.
    """
    pieces: list[PartPiece] = []
    assert room.rows, "a part has room for a row"
    found = size_bytes = 0
    is_end = True
    for records in _behind(view, after, room.bytes // PIECES):
        if has_left():
            raise PartCancelledError
        if found and (found == room.rows or monotonic() >= room.until_s):
            is_end = False
            break
        wanted = records[: 2 * (room.rows - found)]
        try:
            fitting = _fitting(table, form, wanted, room.bytes - size_bytes, must=not found)
        except UnfitRowsError:
            if not found:
                raise
            fitting = None  # the next part begins with them
        if fitting is None:
            is_end = False
            break
        pieces.append(fitting)
        found += fitting.rows
        size_bytes += fitting.size_bytes
        after = records[2 * fitting.rows - 2]
        if 2 * fitting.rows < len(records):
            is_end = False
            break
    return MadePart(form.payload(pieces), found, found, None if is_end else after, is_end)


def _behind(view: View, after: bytes | None, slice_bytes: int) -> Iterator[list[bytes]]:
    start = None if after is None else after_prefix(after)
    if after is not None and start is None:
        return iter(())  # nothing is behind it
    return slices(view, start, slice_bytes=slice_bytes)


def _fitting(table: Projection, form: Form, records: list[bytes], room_bytes: int, *, must: bool) -> PartPiece | None:
    """Print the first rows, as many as fit; None where the first alone does not, unless it `must` be there."""
    while count := len(records) // 2:
        piece = form.piece(table.cells(records), count)
        if piece.size_bytes <= room_bytes or (must and count == 1):
            return piece
        # Rows are about equally long: most often the next try fits.
        records = records[: 2 * max(min(count - 1, count * room_bytes // piece.size_bytes), 1 if must else 0)]
    return None
