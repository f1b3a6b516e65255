"""A page of a scan: gathered from partition after partition, until it is full or its time is over.

Nodes read their own partitions, and routers ask nodes. This module decides for both where a page ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Literal, NamedTuple

import orjson

from understudy_shared.questions.scan.question import MAX_SCAN_BYTES

Access = Literal["seek", "pass", "filtered-pass"]

PAGE_MS: Final = 200
"""Time after which a page ends, with the rows that it has."""

COUNT_MS: Final = 1_000
"""The same for a count. It may take longer, because its answer has no rows that a client waits for."""

Stamp = Mapping[str, object]
"""The members about the version of an answer: `version`, `committed_at`, `watermark`, `position`, `marks`."""


class Place(NamedTuple):
    """The place of a scan in a store: after the keys that begin with `after`; None: before the first key."""

    partition: int
    after: bytes | None = None


class Room(NamedTuple):
    """The room that is left in a page. With 0 `rows` the page is full, and only asks whether there are more rows. With
    None, rows are counted, not shown. `is_empty`: the next row is taken, however long it is. `is_confined`: the client
    must not learn where other keys are, so the page ends right after one of its own rows.
    """

    rows: int | None
    bytes: int
    until_s: float
    is_empty: bool = True
    is_confined: bool = False


class PartPage(NamedTuple):
    """The part of a page that one partition contributes. `rows` are joined by commas, `found` is their number.

    The next part begins after `after`, unless this one reached the end of the partition. `looked_at` counts the keys
    read.
    """

    rows: bytes
    found: int
    looked_at: int
    after: bytes | None
    is_end: bool
    stamp: Stamp
    committed_at_us: int | None
    access: Access
    ranks: tuple[tuple[bytes, int], ...] = ()
    """For each row the bytes that order it, and its size; empty if rows are not ordered."""


ReadPart = Callable[[Place, Room], Awaitable[PartPage]]
"""A function that reads one partition from a place on."""


@dataclass(slots=True)
class ScanPage:
    """A page. `next` is where the next one begins, None at the end."""

    rows: list[bytes] = field(default_factory=list)
    found: int = 0
    looked_at: int = 0
    next: Place | None = None
    stamp: Stamp = field(default_factory=dict)
    committed_at_us: int | None = None
    access: Access = "pass"
    partitions: list[int] = field(default_factory=list)
    """The partitions that this page has read."""

    def add(self, partition: int, part: PartPage) -> None:
        self.looked_at += part.looked_at
        self.committed_at_us, self.access = part.committed_at_us, part.access
        self.partitions.append(partition)
        marks = sorted({*_marks(self.stamp), *_marks(part.stamp)})
        self.stamp = {**part.stamp, **({"marks": marks} if marks else {})}

    def explained(self, *, is_confined: bool) -> dict[str, object]:
        """Return how its rows were found; if `is_confined`, without the members that reveal other keys."""
        shown: dict[str, object] = {"access": self.access, "returned": self.found}
        return shown if is_confined else {**shown, "looked_at": self.looked_at, "partitions": self.partitions}

    def body(self, head: Mapping[str, object], tail: Mapping[str, object], name: str = "rows") -> bytes:
        """Return the answer: the members of `head`, the rows by that name, the members of `tail`."""
        rows = b",".join(self.rows)
        return b'%b,"%b":[%b],%b}\n' % (orjson.dumps(head)[:-1], name.encode(), rows, orjson.dumps(tail)[1:-1])


async def read_page(
    start: Place,
    partitions: Sequence[int],
    read_part: ReadPart,
    *,
    limit: int | None,
    until_s: float,
    is_confined: bool = False,
) -> ScanPage:
    """Read a page of `limit` rows from `start` on; with None, count rows. `partitions` are all partitions of the scan,
    in order.

    A full page checks for one more row, because only then is there a next page.
    """
    page, left = ScanPage(), MAX_SCAN_BYTES
    for partition in partitions[partitions.index(start.partition) :]:
        place = start if partition == start.partition else Place(partition)
        if page.partitions and monotonic() >= until_s:
            page.next = place
            break
        rows = None if limit is None else limit - page.found
        part = await read_part(place, Room(rows, left, until_s, not page.found, is_confined))
        left -= len(part.rows)
        if part.rows:
            page.rows.append(part.rows)
        page.found += part.found
        page.add(partition, part)
        if not part.is_end:
            page.next = Place(partition, part.after)
            break
    return page


def _marks(stamp: Stamp) -> list[str]:
    found = stamp.get("marks", [])
    return list(found) if isinstance(found, list) else []


Ranked = tuple[bytes, bytes]
"""The bytes that order a row, and the row."""


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
    """Read the first `limit` rows of all partitions after `start`. Its `after` is the rank of the last row before.

    Rows are not stored in that order, so each page reads every key again. It keeps no more rows than fit in a page.
    """
    page, best = ScanPage(), list[Ranked]()
    end: bytes | None = None
    """The rank after which rows were left out."""
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
    """Return the first rows that fit into a page. The first row fits whatever its size."""
    found: list[Ranked] = []
    size_bytes = 0
    for rank, row in rows[:limit]:
        size_bytes += len(row) + 1
        if found and size_bytes > MAX_SCAN_BYTES:
            break
        found.append((rank, row))
    return found
