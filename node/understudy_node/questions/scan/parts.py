"""A part of a page of a scan: the rows of one version of one partition, from a key on, in short steps.

Rows come in the order of their keys, or in that of columns. Then one pass keeps ranks, no more of them than the page
has rows, and prints the rows at its end.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Iterator
from time import monotonic
from typing import Final

import orjson

from understudy_node.engine.scans import after_prefix, slices
from understudy_node.questions.scan.rows import RowMaker, ScannedKey, key_of, keys_after
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.long_reads import STAYS, Asker
from understudy_shared.questions.scan.page import Access, PartPage, Place, Room, Stamp


class ExportRows:
    """The rows of a part of an export, added one by one as a scan prints them: here as lines of NDJSON."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, row: bytes) -> None:
        self._pieces.append(b'{"row":%b}\n' % row)

    def finish(self) -> Generator[None, None, None]:
        """Do what is left to do, in steps."""
        yield from ()

    def payload(self) -> bytes:
        return b"".join(self._pieces)


COUNTED_BYTES: Final = 64 * 1024
"""Size of the records that are counted without a break, in a fraction of a millisecond."""


def scan_part(  # noqa: PLR0917  # the last two have defaults
    maker: RowMaker,
    reading: Reading,
    place: Place,
    room: Room,
    asker: Asker = STAYS,
    rows: ExportRows | None = None,
) -> Generator[None, None, PartPage]:
    """Read the rows of a partition after a place, as far as there is room; for an export into `rows`. It yields
    wherever it may be interrupted, and ends when the reader has left.

    A page has progress: it looks at one key at least. Where it is full, it goes on to the next row, to see whether
    there is one.
    """
    if maker.prefix is not None and maker.prefix.whole is not None:
        return (yield from _sought(maker, maker.prefix.whole, reading, place, rows))
    if maker.counts_records:
        return (yield from _counted(maker, reading, place, room, asker))
    printed: list[bytes] = []
    add = printed.append if rows is None else rows.add
    # One loop with all its branches, because it runs for each key: calls between them would cost every scan.
    found, looked_at, size_bytes, after = 0, 0, 0, place.after
    is_end = True
    starts = (b"",) if maker.starts is None else maker.starts
    for key in keys_after(maker.reader, reading.view, place.after, starts):
        if looked_at and (monotonic() >= room.until_s or asker.is_gone):
            if room.is_confined and room.is_empty and not found:
                raise ProblemError(_TOO_MANY)
            is_end = False
            break
        row = maker.row(key, reading, place.partition)
        looked_at += 1
        if row is None:
            after = after if room.is_confined else key.own
            yield
            continue
        is_first = room.is_empty and not found
        if room.rows is not None and (found == room.rows or (size_bytes + len(row) > room.bytes and not is_first)):
            looked_at -= 1
            is_end = False
            break
        found += 1
        if row:
            add(row)
            size_bytes += len(row) + 1
        after = key.own
        yield
    if rows is not None:
        yield from rows.finish()
    payload = b",".join(printed) if rows is None else rows.payload()
    return _part(reading.view, payload, found, looked_at, maker.access, next_after=after, is_end=is_end)


def _counted(
    maker: RowMaker, reading: Reading, place: Place, room: Room, asker: Asker
) -> Generator[None, None, PartPage]:
    """Count records, a thousand at a time."""
    found, after, is_end = 0, place.after, True
    for records in _records_behind(maker.reader, reading.view, after):
        if found and (monotonic() >= room.until_s or asker.is_gone):
            is_end = False
            break
        found += len(records) // 2
        after = records[-2]
        yield
    return _part(reading.view, b"", found, found, maker.access, next_after=after, is_end=is_end)


def _records_behind(reader: StoreReader, view: TaskView, after: bytes | None) -> Iterator[list[bytes]]:
    first = reader.first_bytes(view)
    start = first if after is None else after_prefix(after)
    if first is None or start is None:
        return iter(())
    return slices(view.stores[reader.store.store_name], start, after_prefix(first), slice_bytes=COUNTED_BYTES)


def _sought(
    maker: RowMaker, key: bytes, reading: Reading, place: Place, rows: ExportRows | None
) -> Generator[None, None, PartPage]:
    """Return the row of the one key that a prefix of all key columns names."""
    row = None
    if maker.prefix is not None and maker.prefix.may_be_in(place.partition) and place.after is None:
        (said,) = maker.reader.find_many([key], reading, place.partition, maker.selection)
        row = maker.found(key, said)
    found = int(row is not None)
    payload = row or b""
    if rows is not None:
        if row:
            rows.add(row)
        yield from rows.finish()
        payload = rows.payload()
    return _part(reading.view, payload, found, found, "seek", next_after=None, is_end=True)


def _part(
    view: TaskView,
    payload: bytes,
    found: int,
    looked_at: int,
    access: Access,
    *,
    next_after: bytes | None,
    is_end: bool,
) -> PartPage:
    after = None if is_end else next_after
    return PartPage(payload, found, looked_at, after, is_end, stamp_of(view), view.committed_at_us, access)


def stamp_of(view: TaskView) -> Stamp:
    """Return the members of an answer that are the same for all partitions of a version, and the marks of this one."""
    members: dict[str, object] = orjson.loads(b"{%b,%b}" % (view.stamp, view.seal))
    members.pop("partition")
    return members


_TOO_MANY = Problem(
    ProblemType.DEADLINE,
    "the deadline passed before the next key that the credential covers was found among all keys of a partition",
    where="prefix",
    fix="Send a prefix of all key columns, or use a credential that may scan the whole store",
)


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
    asker: Asker = STAYS,
    *,
    print_row: PrintRow | None = None,
) -> Generator[None, None, PartPage]:
    """Read the first rows after a rank, the place's `after`. It yields wherever it may be interrupted. `print_row`
    prints them in place of the maker. Raises a deadline problem when the time is over before all keys were looked at.
    """
    print_row = maker.row if print_row is None else print_row
    first = FirstRanks(room.rows or 1, place.after, is_reversed=maker.order is not None and maker.order.is_reversed)
    starts = (b"",) if maker.starts is None else maker.starts
    made = RankedPart(room, place.after)
    for key in keys_after(maker.reader, reading.view, None, starts):
        if made.looked_at and (monotonic() >= room.until_s or asker.is_gone):
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
        """End the part here, because its time is over. Raises a deadline problem for a confined reader instead: the
        place would show where other keys are.
        """
        if self.room.is_confined:
            raise ProblemError(TOO_MANY)
        self.is_end = False

    def pass_over(self, rank: bytes) -> None:
        """Move past a rank that is not wanted, unless the reader is confined."""
        self.after = self.after if self.room.is_confined else rank

    def take(self, rank: bytes, row: bytes) -> bool:
        """Take a row, or only count it if the question counts; return whether there was room for it."""
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
        after = None if self.is_end else self.after
        of = (self._found, self.looked_at, after, self.is_end, stamp, view.committed_at_us)
        return PartPage(b",".join(self._rows), *of, access, tuple(self._ranks))


class FirstRanks:
    """The first ranks of a pass after `after`: as many as there is room for, and one more, to see if there is one."""

    def __init__(self, rows: int, after: bytes | None, *, is_reversed: bool = False) -> None:
        self._rows, self._after, self._is_reversed = rows, after, is_reversed
        self._kept: list[ByRank] = []
        self._size_bytes = 0

    def wants(self, rank: bytes) -> bool:
        """Whether to keep a rank: it comes after `after`, and, once the room is full, before the last kept rank."""
        after, kept = self._after, self._kept
        is_behind = after is None or (rank < after if self._is_reversed else rank > after)
        if not is_behind or len(kept) <= self._rows:
            return is_behind
        return rank > kept[0][0] if self._is_reversed else rank < kept[-1][0]

    def add(self, rank: bytes, own: bytes) -> bytes | None:
        """Keep a rank that is wanted; return the rank that it displaces, if any. Raises a problem if the ranks are too
        long together.
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
        return len(self._kept) > self._rows

    def in_order(self) -> list[ByRank]:
        """Return the ranks that there is room for, in order."""
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
