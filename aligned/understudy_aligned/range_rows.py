"""Makes Spark's rows of the records of ranges: on executors, or in the planner for a spool that Spark reads itself.

They depend only on the ranges, their records and the options, so that a replayed batch is the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from understudy_aligned.inputs.arrays import data_bytes, to_numpy
from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import NO_TIME_MS, ROW_SCHEMA, running_maxima
from understudy_aligned.poison import UndecodableError
from understudy_aligned.rows import Part, RowOptions, Source, Times, concat, output_rows, with_effective_times

_TIMESTAMP, _KEY, _VALUE, _HEADERS = map(ROW_SCHEMA.get_field_index, ("timestamp_ms", "key", "value", "headers"))

ROWS = 10_000
"""Most rows of one Arrow batch for Spark. Fewer rows cost more calls; many more gain nothing."""

COALESCE_BYTES = 1 << 20
"""Most bytes of small Arrow batches that are copied into one. Larger ones are passed on as they are."""


class RangeRows:
    """The times of one range's records, which come batch by batch in log order, and its poison records."""

    def __init__(self, span: Range, options: RowOptions, *, rank: int) -> None:
        """Begin at the start of the range. `rank` is that of its topic."""
        self.span = span
        self._max_jump_ms = options.max_timestamp_jump_ms
        self._rank = rank
        self._undecodable = options.topic_undecodable.get(span.partition.topic, options.undecodable)
        self.times = Times(span.start.time_ms)
        """The times at the last record so far."""
        self._aside: list[pa.RecordBatch] = []

    def part(self, records: pa.RecordBatch) -> Part | None:
        """Return records (`ROW_SCHEMA`) without their poison records; None if no record is left.

        Raises UndecodableError where poison records are refused.
        """
        rows, effective_ms, poison, self.times = with_effective_times(
            records, self.times, max_jump_ms=self._max_jump_ms, undecodable=self._undecodable
        )
        if poison.num_rows:
            if self._undecodable in ("fail", "partition-time"):
                raise _undecodable_error(self.span, poison)
            if self._undecodable == "aside":
                self._aside.append(poison)
        return Part([self.source(rows.num_rows)], rows, effective_ms) if rows.num_rows else None

    def source(self, count: int) -> Source:
        """Say where so many records come from."""
        return Source(self.span.partition, self._rank, count)

    @property
    def dead_letters(self) -> pa.RecordBatch | None:
        """The poison records so far that are to be written aside; None if there are no such records."""
        return concat(self._aside) if self._aside else None


class Slice(NamedTuple):
    """Rows of a batch that follow one another. Others may share the batch: its rows are never copied to be cut out."""

    batch: pa.RecordBatch
    first: int
    rows: int

    @classmethod
    def whole(cls, records: pa.RecordBatch) -> Slice:
        """Take all rows of a batch."""
        return cls(records, 0, records.num_rows)

    @property
    def records(self) -> pa.RecordBatch:
        """The rows as a batch of their own, which is not copied."""
        return self.batch if self.rows == self.batch.num_rows else self.batch.slice(self.first, self.rows)


Piece = tuple[RangeRows, Slice]
"""Records of a range, which follow those of its piece before."""


class _Run(NamedTuple):
    """Pieces that lie side by side in a batch."""

    pieces: list[Piece]
    records: pa.RecordBatch


def joined_rows(
    pieces: Iterable[Piece], options: RowOptions, *, batch: int, stream_time_ms: int = NO_TIME_MS
) -> Iterator[pa.RecordBatch]:
    """Convert pieces in their order, small ones together: a batch costs 0.1 ms here and some 0.5 ms in Spark, whatever
    its size. `batch` is the number of Spark's batch.
    """
    for runs in _together(pieces):
        parts = _parts(runs, options)
        if parts:
            yield output_rows(parts, options, batch=batch, stream_time_ms=stream_time_ms)


def _together(pieces: Iterable[Piece]) -> Iterator[Sequence[_Run]]:
    held: list[_Run] = []
    rows = size = 0
    for run in _runs(pieces):
        count, more = run.records.num_rows, large_bytes(run.records)
        if held and (rows + count > ROWS or size + more > COALESCE_BYTES):
            yield held
            held, rows, size = [], 0, 0
        held.append(run)
        rows, size = rows + count, size + more
    if held:
        yield held


def _runs(pieces: Iterable[Piece]) -> Iterator[_Run]:
    """Find neighbours: hundreds of small pieces of a spooled batch are neither measured nor copied one by one."""
    held: list[Piece] = []
    end = rows = 0
    for of_range, (batch, first, count) in pieces:
        for begin in range(first, first + count, ROWS):
            piece = Slice(batch, begin, min(ROWS, first + count - begin))
            if held and (held[0][1].batch is not batch or begin != end or rows + piece.rows > ROWS):
                yield _run(held, rows)
                held, rows = [], 0
            held.append((of_range, piece))
            end, rows = begin + piece.rows, rows + piece.rows
    if held:
        yield _run(held, rows)


def _run(pieces: list[Piece], rows: int) -> _Run:
    _, begin = pieces[0]
    return _Run(pieces, begin._replace(rows=rows).records)


def _parts(runs: Sequence[_Run], options: RowOptions) -> Sequence[Part]:
    """Find effective times: of all pieces together, where no record is poison and no timestamp is held back."""
    records = concat([run.records for run in runs])
    pieces = [piece for run in runs for piece in run.pieces]
    stamps = records.column(_TIMESTAMP)
    if options.max_timestamp_jump_ms is not None or stamps.null_count:
        return [part for rows, each in pieces if (part := rows.part(each.records)) is not None]
    counts = [each.rows for _, each in pieces]
    reached_ms, begins_ms = running_maxima(to_numpy(stamps), counts), []
    for (rows, _), last_ms in zip(pieces, reached_ms[np.cumsum(counts) - 1].tolist(), strict=True):
        partition_ms, effective_ms = rows.times
        begins_ms.append(effective_ms)
        rows.times = Times(max(partition_ms, last_ms), max(effective_ms, last_ms))
    sources = [rows.source(count) for (rows, _), count in zip(pieces, counts, strict=True)]
    return [Part(sources, records, np.maximum(reached_ms, np.repeat(begins_ms, counts)))]


def large_bytes(records: pa.RecordBatch) -> int:
    """Return the bytes that can be large."""
    headers = records.column(_HEADERS)
    size = 0 if headers.null_count == len(headers) else headers.nbytes
    return size + data_bytes(records.column(_KEY)) + data_bytes(records.column(_VALUE))


def _undecodable_error(span: Range, poison: pa.RecordBatch) -> UndecodableError:
    topic, partition = span.partition
    return UndecodableError(
        "a record has no usable timestamp",
        where=f"topic {topic}, partition {partition}, offset {poison.column('offset')[0].as_py()}",
        fix="Correct the option timestamp, or set undecodable to 'skip', 'aside', 'keep' or, behind a first timestamp, "
        "'partition-time', and start the query again",
    )
