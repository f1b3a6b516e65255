"""A part of a page of ordered rows: the first of one version of one partition, found in one pass, in short steps.

The pass keeps ranks, not rows: no more of them than the page has rows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final

from understudy_node.questions.scan.keys import ScannedKey, key_of, keys_after
from understudy_node.questions.scan.rows import RowMaker
from understudy_node.questions.scan.scanning import stamp_of
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.page import Access, PartPage, Place, Room, Stamp

MAX_RANK_BYTES: Final = 16 * 1024 * 1024
"""Limit on the ranks that a pass keeps: texts may be long."""

PrintRow = Callable[[ScannedKey, Reading, int], bytes | None]
"""A function from a key, its version and its partition to its row; None for one that is left out."""

ByRank = tuple[bytes, bytes]
"""A rank, and the own bytes of its key."""


def ordered_part(
    maker: RowMaker,
    reading: Reading,
    place: Place,
    room: Room,
    has_left: Callable[[], bool] = lambda: False,
    *,
    print_row: PrintRow | None = None,
) -> Generator[None, None, PartPage]:
    """Read the first rows behind a rank, the place's `after`. It yields wherever it may be interrupted. `print_row`
    prints them in place of the maker. Raises a deadline problem when the time is over before all keys were looked at.
    """
    print_row = maker.row if print_row is None else print_row
    first = FirstRanks(room.rows or 1, place.after, is_reversed=maker.order is not None and maker.order.is_reversed)
    starts = (b"",) if maker.starts is None else maker.starts
    made = RankedPart(room, place.after)
    for key in keys_after(maker.reader, reading.view, None, starts):
        if made.looked_at and (monotonic() >= room.until_s or has_left()):
            raise ProblemError(TOO_MANY)
        made.looked_at += 1
        rank = maker.ranked(key, reading, place.partition, first.wants)
        if rank is not None:
            first.add(rank, key.own)
        yield
    made.is_end = not first.has_more
    for rank, own in first.in_order():
        key = key_of(maker.reader, reading.view, own)
        row = print_row(key, reading, place.partition)
        yield
        if row is None:  # it has expired
            made.after = rank
        elif not made.take(rank, row):
            break
    access: Access = "seek" if maker.starts is not None else "filtered-pass" if maker.is_filtered else "pass"
    return made.part(reading.view, access, stamp_of(reading.view))


class RankedPart:
    """The part of a page whose rows come in the order of ranks, while it is made. `after` is the last rank that was
    looked at.
    """

    def __init__(self, room: Room, after: bytes | None) -> None:
        self.room, self.after = room, after
        self.looked_at = 0
        self.is_end = True
        self._found = 0
        self._left = room.bytes
        self._rows: list[bytes] = []
        self._ranks: list[tuple[bytes, int]] = []

    def stop(self) -> None:
        """End the part where its time is over. Raises the problem of a reader who may not see where other keys are."""
        if self.room.is_confined:
            raise ProblemError(TOO_MANY)
        self.is_end = False

    def pass_over(self, rank: bytes) -> None:
        """Go on behind a rank that is not wanted."""
        self.after = self.after if self.room.is_confined else rank

    def take(self, rank: bytes, row: bytes) -> bool:
        """Take a row, or only count it, without room for rows; return whether there was room for it."""
        if self.room.rows is not None:
            if self._found == self.room.rows or (self._rows and len(row) + 1 > self._left):
                self.is_end = False
                return False
            self._rows.append(row)
            self._ranks.append((rank, len(row)))
            self._left -= len(row) + 1
        self._found += 1
        self.after = rank
        return True

    def part(self, view: TaskView, access: Access, stamp: Stamp) -> PartPage:
        """Return the part."""
        after = None if self.is_end else self.after
        of = (self._found, self.looked_at, after, self.is_end, stamp, view.committed_at_us)
        return PartPage(b",".join(self._rows), *of, access, tuple(self._ranks))


class FirstRanks:
    """The first ranks of a pass behind `after`: as many as there is room for, and one more, to see if there is one."""

    def __init__(self, rows: int, after: bytes | None, *, is_reversed: bool = False) -> None:
        self._rows, self._after, self._is_reversed = rows, after, is_reversed
        self._kept: list[ByRank] = []
        self._size_bytes = 0

    def wants(self, rank: bytes) -> bool:
        """Whether a rank is behind `after`, and before the last of those that are kept, where there is no more room."""
        after, kept = self._after, self._kept
        is_behind = after is None or (rank < after if self._is_reversed else rank > after)
        if not is_behind or len(kept) <= self._rows:
            return is_behind
        return rank > kept[0][0] if self._is_reversed else rank < kept[-1][0]

    def add(self, rank: bytes, own: bytes) -> bytes | None:
        """Keep a rank that is wanted; return the one that gives way to it. Raises a problem of ranks that are too long
        together.
        """
        out = None
        insort(self._kept, (rank, own))
        self._size_bytes += len(rank) + len(own)
        if len(self._kept) > self._rows + 1:
            out, of = self._kept.pop(0 if self._is_reversed else -1)
            self._size_bytes -= len(out) + len(of)
        if self._size_bytes > MAX_RANK_BYTES:
            raise ProblemError(_TOO_LONG)
        return out

    @property
    def has_more(self) -> bool:
        """Whether there are more than there is room for."""
        return len(self._kept) > self._rows

    def in_order(self) -> list[ByRank]:
        """Return what there is room for, first the first."""
        return (self._kept[::-1] if self._is_reversed else self._kept)[: self._rows]


TOO_MANY = Problem(
    ProblemType.DEADLINE,
    "the deadline passed before every key was looked at, which an order takes",
    where="order",
    fix="Narrow the scan by partition, or by a prefix that is sought; or leave out order, and sort the rows",
)

_TOO_LONG = Problem(
    ProblemType.TOO_LARGE,
    f"the values by which these rows are ordered have more than {MAX_RANK_BYTES} bytes together",
    where="order",
    fix="Send a smaller limit, or order by another column",
)
