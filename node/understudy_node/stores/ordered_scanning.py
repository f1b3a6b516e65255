"""A part of a page of ordered rows: the first of one version of one partition, found in one pass, in short steps.

The pass keeps ranks, not rows: no more of them than the page has rows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final

from understudy_node.replica.readings import Reading
from understudy_node.stores.scan_keys import ScannedKey, key_of, keys_after
from understudy_node.stores.scan_rows import RowMaker
from understudy_node.stores.scanning import stamp_of
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.scan_page import Access, PartPage, Place, Room

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
    looked_at = 0
    for key in keys_after(maker.reader, reading.view, None, starts):
        if looked_at and (monotonic() >= room.until_s or has_left()):
            raise ProblemError(TOO_MANY)
        looked_at += 1
        rank = maker.ranked(key, reading, place.partition, first.wants)
        if rank is not None:
            first.add(rank, key.own)
        yield
    rows: list[bytes] = []
    ranks: list[tuple[bytes, int]] = []
    left, is_end = room.bytes, not first.has_more
    after: bytes | None = None
    for rank, own in first.in_order():
        key = key_of(maker.reader, reading.view, own)
        row = print_row(key, reading, place.partition)
        yield
        if row is None:  # it has expired
            after = rank
            continue
        if rows and len(row) + 1 > left:
            is_end = False
            break
        after = rank
        left -= len(row) + 1
        rows.append(row)
        ranks.append((rank, len(row)))
    access: Access = "seek" if maker.starts is not None else "filtered-pass" if maker.is_filtered else "pass"
    view = reading.view
    after = None if is_end else after
    stamp = stamp_of(view)
    return PartPage(
        b",".join(rows), len(rows), looked_at, after, is_end, stamp, view.committed_at_us, access, tuple(ranks)
    )


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
