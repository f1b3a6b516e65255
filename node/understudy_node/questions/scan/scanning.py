"""A part of a page of a scan: the rows of one version of one partition, from a key on, in short steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import monotonic
from typing import Final

import orjson

from understudy_node.engine.scans import after_prefix, slices
from understudy_node.questions.scan.keys import keys_after
from understudy_node.questions.scan.part_encoding import Gathered, JsonRows
from understudy_node.questions.scan.rows import RowMaker
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.page import Access, PartPage, Place, Room, Stamp

COUNTED_BYTES: Final = 64 * 1024
"""Size of the records that are counted without a break, in a fraction of a millisecond."""


def scan_part(  # noqa: PLR0917  # the last two have defaults
    maker: RowMaker,
    reading: Reading,
    place: Place,
    room: Room,
    has_left: Callable[[], bool] = lambda: False,
    rows: Gathered | None = None,
) -> Generator[None, None, PartPage]:
    """Read the rows of a partition behind a place, as far as there is room, into `rows`. It yields wherever it may be
    interrupted, and ends when the reader has left.

    A page has progress: it looks at one key at least. Where it is full, it goes on to the next row, to see whether
    there is one.
    """
    if maker.prefix is not None and maker.prefix.whole is not None:
        return (yield from _sought(maker, maker.prefix.whole, reading, place, rows or JsonRows()))
    if maker.counts_records:
        return (yield from _counted(maker, reading, place, room, has_left))
    rows = rows or JsonRows()
    # One loop with all its branches, because it runs for each key: calls between them would cost every scan.
    found, looked_at, size_bytes, after = 0, 0, 0, place.after
    is_end = True
    starts = (b"",) if maker.starts is None else maker.starts
    for key in keys_after(maker.reader, reading.view, place.after, starts):
        if looked_at and (monotonic() >= room.until_s or has_left()):
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
            rows.add(row)
            size_bytes += len(row) + 1
        after = key.own
        yield
    yield from rows.finish()
    return _part(reading.view, rows, found, looked_at, maker.access, next_after=after, is_end=is_end)


def _counted(
    maker: RowMaker, reading: Reading, place: Place, room: Room, has_left: Callable[[], bool]
) -> Generator[None, None, PartPage]:
    """Count records, a thousand at a time."""
    found, after, is_end = 0, place.after, True
    for records in _records_behind(maker.reader, reading.view, after):
        if found and (monotonic() >= room.until_s or has_left()):
            is_end = False
            break
        found += len(records) // 2
        after = records[-2]
        yield
    return _part(reading.view, JsonRows(), found, found, maker.access, next_after=after, is_end=is_end)


def _records_behind(reader: StoreReader, view: TaskView, after: bytes | None) -> Iterator[list[bytes]]:
    first = reader.first_bytes(view)
    start = first if after is None else after_prefix(after)
    if first is None or start is None:
        return iter(())
    return slices(view.stores[reader.store.store_name], start, after_prefix(first), slice_bytes=COUNTED_BYTES)


def _sought(
    maker: RowMaker, key: bytes, reading: Reading, place: Place, rows: Gathered
) -> Generator[None, None, PartPage]:
    """Return the row of the one key that a prefix of all key columns names."""
    row = None
    if maker.prefix is not None and maker.prefix.may_be_in(place.partition) and place.after is None:
        (said,) = maker.reader.find_many([key], reading, place.partition, maker.selection)
        row = maker.found(key, said)
    found = int(row is not None)
    if row:
        rows.add(row)
    yield from rows.finish()
    return _part(reading.view, rows, found, found, "seek", next_after=None, is_end=True)


def _part(
    view: TaskView,
    rows: Gathered,
    found: int,
    looked_at: int,
    access: Access,
    *,
    next_after: bytes | None,
    is_end: bool,
) -> PartPage:
    after = None if is_end else next_after
    return PartPage(rows.payload(), found, looked_at, after, is_end, stamp_of(view), view.committed_at_us, access)


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
