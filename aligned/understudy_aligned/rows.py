"""Rows in exactly the Arrow schema that Spark expects, made of the records of ranges (pure).

They are made on executors, or in the planner for a spool that Spark reads itself. They depend only on the ranges, their
records and the options, so that a replayed batch is the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import (
    NO_TIME_MS,
    ROW_SCHEMA,
    TopicPartition,
    booleans,
    data_bytes,
    effective_times_ms,
    is_null,
    numbers,
    partition_times_ms,
    repeated_texts,
    running_maxima,
    scalar,
    to_numpy,
    with_partition_times,
)
from understudy_aligned.options import AlignedOptions, Undecodable
from understudy_shared.base.errors import UnderstudyError

_KAFKA_DDL = """
    key binary, value binary, topic string, partition int, offset {offset}, timestamp timestamp, timestampType int
"""
_HEADERS_DDL = "headers array<struct<key: string, value: binary>>"
_STREAM_TIME_DDL = "stream_time timestamp"
_ORDER_DDL = """
    merge_order struct<batch: bigint, effective_ms: bigint, topic_rank: int, partition: int, ordinal: bigint>
"""

_MERGE_ORDER = pa.struct(
    [
        ("batch", pa.int64()),
        ("effective_ms", pa.int64()),
        ("topic_rank", pa.int32()),
        ("partition", pa.int32()),
        ("ordinal", pa.int64()),
    ]
)

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The options that executors need to make rows."""

    max_timestamp_jump_ms: int | None = None
    undecodable: Undecodable = "fail"
    topic_undecodable: Mapping[str, Undecodable] = field(default_factory=dict)
    undecodable_path: Path | None = None
    include_headers: bool = False
    include_stream_time: bool = False
    long_offsets: bool = False

    @classmethod
    def of(cls, options: AlignedOptions) -> RowOptions:
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})


def spark_schema(options: RowOptions) -> str:
    """Return the source's schema as DDL: the columns of Spark's Kafka source, and ours after them.

    Sorting all rows of a query by `merge_order` gives the order of delivery. With `long_offsets` offsets are numbers,
    as Kafka's are.
    """
    kafka = _KAFKA_DDL.format(offset="bigint" if options.long_offsets else "string")
    ours = [_HEADERS_DDL] if options.include_headers else []
    ours += [_STREAM_TIME_DDL] if options.include_stream_time else []
    return ", ".join([kafka, *ours, _ORDER_DDL])


def arrow_schema(options: RowOptions) -> pa.Schema:
    """Return the Arrow schema that Spark derives from `spark_schema`. Spark refuses rows with any other."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64() if options.long_offsets else pa.string()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
    ours = [("headers", _HEADERS)] if options.include_headers else []
    ours += [("stream_time", _TIMESTAMP)] if options.include_stream_time else []
    return pa.schema([*fields, *ours, ("merge_order", _MERGE_ORDER)])


class RecordSource(NamedTuple):
    """The partition from which the next `records` records come. `rank` is that of its topic."""

    place: TopicPartition
    rank: int
    records: int


class TimedRecords(NamedTuple):
    """Records (`ROW_SCHEMA`) with their effective times, source by source."""

    sources: Sequence[RecordSource]
    records: pa.RecordBatch
    effective_ms: NDArray[np.int64]


def output_rows(
    parts: Sequence[TimedRecords], options: RowOptions, *, batch: int, stream_time_ms: int = NO_TIME_MS
) -> pa.RecordBatch:
    """Convert at least one part to one batch of rows, part by part. `stream_time` is null without a time."""
    rows = concat([part.records for part in parts])
    sources = [source for part in parts for source in part.sources]
    counts = [source.records for source in sources]
    partition = _repeated([source.place.partition for source in sources], counts, np.int32)
    order = [
        _repeated([batch], [rows.num_rows], np.int64),
        numbers(np.concatenate([part.effective_ms for part in parts])),
        _repeated([source.rank for source in sources], counts, np.int32),
        partition,
        rows.column("ordinal"),
    ]
    columns = [
        rows.column("key"),
        rows.column("value"),
        repeated_texts([source.place.topic for source in sources], counts),
        partition,
        rows.column("ordinal" if options.long_offsets else "offset"),  # Kafka's offsets are its ordinals
        pc.multiply(rows.column("timestamp_ms"), scalar(1000, pa.int64())).cast(_TIMESTAMP),
        rows.column("timestamp_type"),
        *([rows.column("headers").cast(_HEADERS)] if options.include_headers else []),
        *([_stream_times(stream_time_ms, rows.num_rows)] if options.include_stream_time else []),
        pa.StructArray.from_arrays(order, fields=list(_MERGE_ORDER)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(options))


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema: at least one."""
    if len(batches) == 1:
        return batches[0]
    # `combine_chunks` makes more than one batch only if a column reaches 2 GiB.
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class Times(NamedTuple):
    """The progress of a reader of one partition within a batch: the partition time, and the last effective time."""

    partition_ms: int
    effective_ms: int = NO_TIME_MS


def with_effective_times(
    rows: pa.RecordBatch, times: Times, *, max_jump_ms: int | None, undecodable: Undecodable = "fail"
) -> tuple[pa.RecordBatch, NDArray[np.int64], pa.RecordBatch, Times]:
    """Split off poison records, unless `undecodable` keeps them or gives them a time, and compute effective times.

    Returns the other records, their effective times, the poison records, and the times after all.
    """
    stamps = rows.column("timestamp_ms")
    if not len(stamps):
        return rows, np.empty(0, np.int64), rows, times
    partition_ms = partition_times_ms(stamps, time_ms=times.partition_ms, max_jump_ms=max_jump_ms)
    known_ms, poison = to_numpy(stamps, null=NO_TIME_MS), is_null(stamps)
    if undecodable == "partition-time" and poison.any():
        known_ms = with_partition_times(known_ms, partition_ms)
        poison = known_ms == NO_TIME_MS
        rows = rows.set_column(rows.schema.get_field_index("timestamp_ms"), "timestamp_ms", numbers(known_ms))
    effective_ms = effective_times_ms(known_ms, partition_ms, begin_ms=times.effective_ms)
    after = Times(int(partition_ms[-1]), int(effective_ms[-1]))
    if undecodable == "keep" or not poison.any():
        return rows, effective_ms, rows.slice(0, 0), after
    return rows.filter(booleans(~poison)), effective_ms[~poison], rows.filter(booleans(poison)), after


def _repeated(values: Sequence[int], counts: Sequence[int], kind: type[np.signedinteger[Any]]) -> pa.Array:
    return numbers(np.repeat(np.array(values, kind), counts))


def _stream_times(time_ms: int, count: int) -> pa.Array:
    if time_ms == NO_TIME_MS:
        return pa.nulls(count, _TIMESTAMP)
    return numbers(np.full(count, time_ms * 1000, np.int64), kind=_TIMESTAMP)


_TIMESTAMP_AT, _KEY_AT, _VALUE_AT, _HEADERS_AT = map(
    ROW_SCHEMA.get_field_index, ("timestamp_ms", "key", "value", "headers")
)

ROWS = 10_000
"""Most rows of one Arrow batch for Spark. Fewer rows cost more calls; many more gain nothing."""

COALESCE_BYTES = 1 << 20
"""Most bytes of small Arrow batches that are copied into one. Larger ones are passed on as they are."""


class UndecodableError(UnderstudyError):
    """A record has no usable timestamp, and `undecodable` is `fail`, or `partition-time` before the first timestamp."""


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

    def part(self, records: pa.RecordBatch) -> TimedRecords | None:
        """Return records (`ROW_SCHEMA`) without their poison records; None if no record is left.

        Raises UndecodableError for a poison record that ends the query.
        """
        rows, effective_ms, poison, self.times = with_effective_times(
            records, self.times, max_jump_ms=self._max_jump_ms, undecodable=self._undecodable
        )
        if poison.num_rows:
            if self._undecodable in ("fail", "partition-time"):
                raise _undecodable_error(self.span, poison)
            if self._undecodable == "aside":
                self._aside.append(poison)
        return TimedRecords([self.source(rows.num_rows)], rows, effective_ms) if rows.num_rows else None

    def source(self, count: int) -> RecordSource:
        """Return the source of the next `count` records: this range's partition."""
        return RecordSource(self.span.partition, self._rank, count)

    @property
    def dead_letters(self) -> pa.RecordBatch | None:
        """The poison records so far that are to be written aside; None if there are no such records."""
        return concat(self._aside) if self._aside else None


class Slice(NamedTuple):
    """Consecutive rows of a batch. Other slices may share the batch: its rows are never copied to cut them out."""

    batch: pa.RecordBatch
    first: int
    rows: int

    @classmethod
    def whole(cls, records: pa.RecordBatch) -> Slice:
        return cls(records, 0, records.num_rows)

    @property
    def records(self) -> pa.RecordBatch:
        """The rows as a batch of their own, without a copy."""
        return self.batch if self.rows == self.batch.num_rows else self.batch.slice(self.first, self.rows)


Piece = tuple[RangeRows, Slice]
"""Records of a range. They follow those of the range's previous piece."""


class _Run(NamedTuple):
    """Pieces that lie side by side in a batch."""

    pieces: list[Piece]
    records: pa.RecordBatch


def joined_rows(
    pieces: Iterable[Piece], options: RowOptions, *, batch: int, stream_time_ms: int = NO_TIME_MS
) -> Iterator[pa.RecordBatch]:
    """Convert pieces in their order, and join small ones: a record batch costs 0.1 ms here and some 0.5 ms in Spark,
    whatever its size. `batch` is the number of Spark's batch.
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
    """Group neighbouring pieces, so that hundreds of small ones of a spooled batch are measured and copied together."""
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


def _parts(runs: Sequence[_Run], options: RowOptions) -> Sequence[TimedRecords]:
    """Compute effective times: for all pieces at once if no record is poison and no timestamp is held back."""
    records = concat([run.records for run in runs])
    pieces = [piece for run in runs for piece in run.pieces]
    stamps = records.column(_TIMESTAMP_AT)
    if options.max_timestamp_jump_ms is not None or stamps.null_count:
        return [part for rows, each in pieces if (part := rows.part(each.records)) is not None]
    counts = [each.rows for _, each in pieces]
    reached_ms, begins_ms = running_maxima(to_numpy(stamps), counts), []
    for (rows, _), last_ms in zip(pieces, reached_ms[np.cumsum(counts) - 1].tolist(), strict=True):
        partition_ms, effective_ms = rows.times
        begins_ms.append(effective_ms)
        rows.times = Times(max(partition_ms, last_ms), max(effective_ms, last_ms))
    sources = [rows.source(count) for (rows, _), count in zip(pieces, counts, strict=True)]
    return [TimedRecords(sources, records, np.maximum(reached_ms, np.repeat(begins_ms, counts)))]


def large_bytes(records: pa.RecordBatch) -> int:
    """Return the bytes of keys, values and headers: only these columns can be large."""
    headers = records.column(_HEADERS_AT)
    size = 0 if headers.null_count == len(headers) else headers.nbytes
    return size + data_bytes(records.column(_KEY_AT)) + data_bytes(records.column(_VALUE_AT))


def _undecodable_error(span: Range, poison: pa.RecordBatch) -> UndecodableError:
    topic, partition = span.partition
    return UndecodableError(
        "a record has no usable timestamp",
        where=f"topic {topic}, partition {partition}, offset {poison.column('offset')[0].as_py()}",
        fix="Correct the option timestamp, or set undecodable to 'skip', 'aside', 'keep' or, after a first timestamp, "
        "'partition-time', and start the query again",
    )
