"""Fetch positions in each partition (pure: no broker and no clock).

A log's end offset says nothing about records: behind the last visible record there may be commit markers, aborted
records, and offsets that compaction removed. So an end counts as reached either by a record, or by the broker's
end-of-partition event for a fetch at this position.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from understudy_pipeline.inputs.records import Chunk, Cursor


@dataclass(slots=True)
class FetchPosition:
    """The position of one partition, and the records that were fetched and not yet returned."""

    ahead: int
    """The least offset that the next record from the broker can have."""

    ended: int = -1
    """The highest offset of an end-of-partition event: there are no records between `ahead` and it."""

    buffered: deque[Chunk] = field(default_factory=deque)
    """Records before `ahead` that are not returned yet."""

    @property
    def buffered_records(self) -> int:
        """The number of records that are not returned yet."""
        return sum(chunk.rows.num_rows for chunk in self.buffered)

    def buffer(self, chunk: Chunk) -> None:
        """Add records that came from the broker."""
        self.buffered.append(chunk)
        self.ahead = chunk.rows["ordinal"][-1].as_py() + 1

    def take(self, count: int) -> list[Chunk]:
        """Remove and return the next `count` records at most."""
        taken: list[Chunk] = []
        while count > 0 and self.buffered:
            chunk = self.buffered.popleft()
            length = chunk.rows.num_rows
            if length > count:
                self.buffered.appendleft(Chunk(chunk.partition, chunk.rows.slice(count), chunk.sizes[count:]))
                chunk = Chunk(chunk.partition, chunk.rows.slice(0, count), chunk.sizes[:count])
            taken.append(chunk)
            count -= length
        return taken

    def mark_end(self, offset: int) -> None:
        """Note that the broker sent an end-of-partition event at this offset."""
        self.ended = max(self.ended, offset)

    def lag(self, end: int) -> int:
        """Count unreturned records of a log that ends at `end`. Markers that lie ahead count as records."""
        return self.buffered_records + max(0, end - max(self.ahead, self.ended))


def next_offset(cursor: Cursor) -> int:
    """Return the offset behind a cursor. It is 0 at the beginning: what retention took of a new partition is a loss."""
    return int(cursor.offset) + 1 if cursor.offset else 0


def end_cursor(end: int) -> Cursor:
    """Return the cursor of a reader whose next record is at `end` or behind it."""
    return Cursor(offset=str(end - 1), ordinal=end)
