"""Converts fetched records to rows in exactly the Arrow schema that Spark expects (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy_aligned.inputs.arrays import booleans, is_null, numbers, repeated_texts, scalar, to_numpy
from understudy_aligned.inputs.records import (
    NO_TIME_MS,
    TopicPartition,
    effective_times_ms,
    partition_times_ms,
    with_partition_times,
)
from understudy_aligned.options import AlignedOptions, Undecodable

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
    """Return the source's schema as DDL: the columns of Spark's Kafka source, and ours behind them.

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


class Source(NamedTuple):
    """The partition of so many records. `rank` is that of its topic."""

    place: TopicPartition
    rank: int
    records: int


class Part(NamedTuple):
    """Records (`ROW_SCHEMA`) with their effective times, source by source."""

    sources: Sequence[Source]
    records: pa.RecordBatch
    effective_ms: NDArray[np.int64]


def output_rows(
    parts: Sequence[Part], options: RowOptions, *, batch: int, stream_time_ms: int = NO_TIME_MS
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
