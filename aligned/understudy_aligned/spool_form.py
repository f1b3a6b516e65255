"""Forms of the spool: the records as an input fetched them, or Spark's rows.

Python workers take records and make rows of them, so that the planner's process has less to do. Spark itself can only
take rows: the accelerator jar hands it the file as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import ROW_SCHEMA
from understudy_aligned.offset import SourceOffset
from understudy_aligned.options import AlignedOptions
from understudy_aligned.range_rows import RangeRows, Slice, joined_rows
from understudy_aligned.rows import RowOptions, arrow_schema
from understudy_aligned.subscription import topics_at

RangeRecords = Sequence[tuple[Range, Sequence[pa.RecordBatch]]]
"""The ranges of a batch, with their records."""


class DeadLetters(NamedTuple):
    """Poison records of a range that are to be written aside when the batch runs."""

    span: Range
    poison: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Formed:
    """The contents of a file: a part for each range, and the poison records that are in no part."""

    parts: Sequence[Sequence[pa.RecordBatch]]
    letters: tuple[DeadLetters, ...] = ()


class SpoolForm(Protocol):
    """The form of a planner's spool."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every file."""

    @property
    def joins(self) -> bool:
        """Whether parts may share a record batch."""

    def form(self, ranges: RangeRecords, end: SourceOffset) -> Formed:
        """Form the records of the batch that ends at this offset."""

    def depends_on(self, end: SourceOffset) -> object:
        """Return what a file depends on beside its ranges and the ids of their topics."""


class RecordsForm:
    """Records, from which Python workers make rows."""

    schema = ROW_SCHEMA
    joins = True

    def form(self, ranges: RangeRecords, end: SourceOffset) -> Formed:
        """Take the records as they are."""
        return Formed([records for _, records in ranges])

    def depends_on(self, end: SourceOffset) -> object:
        """Return nothing more."""
        return None


class RowsForm:
    """Rows as Spark gets them, whole record batches. Poison records are handled already."""

    joins = False

    def __init__(self, options: AlignedOptions) -> None:
        self._options = options
        self._rows = RowOptions.of(options)
        self.schema = arrow_schema(self._rows)

    def form(self, ranges: RangeRecords, end: SourceOffset) -> Formed:
        """Convert the records. Raises UndecodableError where poison records are refused."""
        ranks = {topic: rank for rank, topic in enumerate(topics_at(self._options, end))}
        parts, letters = [], []
        for span, records in ranges:
            rows = RangeRows(span, self._rows, rank=ranks[span.partition.topic])
            pieces = ((rows, Slice.whole(each)) for each in records)
            parts.append(list(joined_rows(pieces, self._rows, batch=end.batches, stream_time_ms=end.stream_time_ms)))
            if (poison := rows.dead_letters) is not None:
                letters.append(DeadLetters(span, poison))
        return Formed(parts, tuple(letters))

    def depends_on(self, end: SourceOffset) -> object:
        """Return the number of the batch, the ranks of topics, and the stream time if it is a column."""
        stream_time_ms = end.stream_time_ms if self._rows.include_stream_time else None
        return end.batches, topics_at(self._options, end), stream_time_ms
