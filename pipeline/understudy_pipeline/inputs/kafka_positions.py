"""Where an input stands in each partition: pure, no broker and no clock.

A log's end says nothing about records: behind the last one that a reader gets there may be commit markers, aborted
records and records that compaction removed. So an end counts as reached either by a record or by the broker's word
that the fetch at this position found nothing more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from understudy_pipeline.inputs.records import Chunk, Cursor


@dataclass(slots=True)
class FetchPosition:
    """Of one partition."""

    ahead: int
    """The least offset that the next record from the broker can have."""

    ended: int = -1
    """The highest offset at which the broker said that the log ended: there are no records from `ahead` to it."""

    buffered: deque[Chunk] = field(default_factory=deque)
    """Records before `ahead` that nobody asked for yet."""

    @property
    def buffered_records(self) -> int:
        """Records that were read and not handed out."""
        return sum(chunk.rows.num_rows for chunk in self.buffered)

    def buffer(self, chunk: Chunk) -> None:
        """Records that came from the broker."""
        self.buffered.append(chunk)
        self.ahead = chunk.rows["ordinal"][-1].as_py() + 1

    def take(self, count: int) -> list[Chunk]:
        """The next `count` records at most, to be handed out."""
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
        """The broker said that the log ended here, for a reader that had come to here."""
        self.ended = max(self.ended, offset)

    def lag(self, end: int) -> int:
        """Records behind what was handed out, in a log that ends at `end`. Markers not yet passed count as records."""
        return self.buffered_records + max(0, end - max(self.ahead, self.ended))


def next_offset(cursor: Cursor) -> int | None:
    """Where a reader goes on behind it; None at the beginning, whatever that is by then."""
    return int(cursor.offset) + 1 if cursor.offset else None


def end_cursor(end: int) -> Cursor:
    """For a reader that wants what is written at `end` and behind it."""
    return Cursor(offset=str(end - 1), ordinal=end)
