"""A page of rows in the order of columns: the first rows of each partition, merged.

Rows are not stored in that order, so each page looks at every key again; what it holds is bounded by the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room, ScanPage
from understudy_shared.questions.scan.question import MAX_SCAN_BYTES

Ranked = tuple[bytes, bytes]
"""A row, behind the bytes by which it is ordered."""


async def read_ordered_page(
    start: Place,
    partitions: Sequence[int],
    read_part: ReadPart,
    *,
    limit: int,
    until_s: float,
    is_reversed: bool,
    is_confined: bool = False,
) -> ScanPage:
    """Read a page of the first `limit` rows behind `start`, whose `after` is the rank of a row, of all partitions."""
    page, best = ScanPage(), list[Ranked]()
    end: bytes | None = None
    """The rank behind which there are rows that are not here."""
    for partition in partitions:
        room = Room(limit, MAX_SCAN_BYTES, until_s, is_empty=True, is_confined=is_confined)
        part = await read_part(Place(partition, start.after), room)
        page.add(partition, part)
        best = sorted([*best, *_ranked(part)], reverse=is_reversed)
        if not part.is_end and part.after is not None:
            end = part.after if end is None else max(end, part.after) if is_reversed else min(end, part.after)
        shown = [each for each in best if end is None or (each[0] >= end if is_reversed else each[0] <= end)]
        best = _fitting(shown, limit)
        if len(best) < len(shown):
            end = best[-1][0]
    page.rows = [row for _, row in best]
    page.found = len(best)
    if end is not None:
        page.next = Place(partitions[0], end)
    return page


def _ranked(part: PartPage) -> Iterator[Ranked]:
    """Yield the rows of a part. They are joined by commas."""
    at = 0
    for rank, size in part.ranks:
        yield rank, part.rows[at : at + size]
        at += size + 1


def _fitting(rows: Sequence[Ranked], limit: int) -> list[Ranked]:
    """Return the first rows that fit into a page: one of any size does."""
    found: list[Ranked] = []
    size_bytes = 0
    for rank, row in rows[:limit]:
        size_bytes += len(row) + 1
        if found and size_bytes > MAX_SCAN_BYTES:
            break
        found.append((rank, row))
    return found
