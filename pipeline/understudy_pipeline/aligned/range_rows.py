"""Makes Spark's rows of the records of one range: on executors, or in the planner for a spool that Spark reads itself.

They depend only on the range, its records and the options, so that a replayed batch is the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from understudy_pipeline.aligned.poison import UndecodableError
from understudy_pipeline.aligned.rows import RowOptions, Times, output_rows, with_effective_times
from understudy_pipeline.inputs.protocol import Range
from understudy_pipeline.inputs.records import NO_TIME_MS

ROWS = 10_000
"""Most rows of one Arrow batch for Spark. Fewer rows cost more calls; many more gain nothing."""

COALESCE_BYTES = 1 << 20
"""Most bytes of small Arrow batches that are copied into one. Larger ones are passed on as they are."""


class RangeRows:
    """The conversion of one range, whose records come batch by batch in log order."""

    def __init__(
        self, span: Range, options: RowOptions, *, rank: int, batch: int, stream_time_ms: int = NO_TIME_MS
    ) -> None:
        """Begin at the start of the range. `rank` is that of its topic, `batch` the number of the batch."""
        self._span = span
        self._options = options
        self._rank, self._batch, self._stream_time_ms = rank, batch, stream_time_ms
        self._undecodable = options.topic_undecodable.get(span.partition.topic, options.undecodable)
        self._times = Times(span.start.time_ms)
        self._aside: list[pa.RecordBatch] = []

    def convert(self, records: pa.RecordBatch) -> pa.RecordBatch | None:
        """Convert records (`ROW_SCHEMA`) without their poison records; None if no record is left.

        Raises UndecodableError where poison records are refused.
        """
        rows, effective_ms, poison, self._times = with_effective_times(
            records,
            self._times,
            max_jump_ms=self._options.max_timestamp_jump_ms,
            undecodable=self._undecodable,
        )
        if poison.num_rows:
            if self._undecodable in ("fail", "partition-time"):
                raise _undecodable_error(self._span, poison)
            if self._undecodable == "aside":
                self._aside.append(poison)
        if not rows.num_rows:
            return None
        return output_rows(
            rows,
            self._span.partition,
            self._options,
            batch=self._batch,
            rank=self._rank,
            effective_ms=effective_ms,
            stream_time_ms=self._stream_time_ms,
        )

    @property
    def dead_letters(self) -> pa.RecordBatch | None:
        """The poison records so far that are to be written aside; None if there are no such records."""
        return concat(self._aside) if self._aside else None


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each batch costs Spark some 0.5 ms, whatever its size."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + len(batch) > ROWS or size + batch.nbytes > COALESCE_BYTES):
            yield concat(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
    if held:
        yield concat(held)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema: at least one."""
    if len(batches) == 1:
        return batches[0]
    # `combine_chunks` makes more than one batch only if a column reaches 2 GiB.
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _undecodable_error(span: Range, poison: pa.RecordBatch) -> UndecodableError:
    topic, partition = span.partition
    return UndecodableError(
        "a record has no usable timestamp",
        where=f"topic {topic}, partition {partition}, offset {poison.column('offset')[0].as_py()}",
        fix="Correct the option timestamp, or set undecodable to 'skip', 'aside', 'keep' or, behind a first timestamp, "
        "'partition-time', and start the query again",
    )
