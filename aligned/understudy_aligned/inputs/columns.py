"""Builds record batches in `ROW_SCHEMA` for inputs whose records have no headers (pure: no I/O)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy_aligned.inputs.arrays import lengths, numbers, optional_numbers, to_numpy
from understudy_aligned.inputs.records import ROW_SCHEMA, Chunk, TopicPartition, record_size
from understudy_aligned.inputs.time_reading import value_times_ms
from understudy_aligned.inputs.timestamps import END_TIME_MS, LEAST_TIME_MS, TimestampRule


def rows(
    *, offsets: pa.StringArray, ordinal: int, times: pa.Int64Array, keys: pa.BinaryArray | None, values: pa.BinaryArray
) -> pa.RecordBatch:
    """Make a record batch whose records are numbered from `ordinal` on."""
    count = len(values)
    return pa.record_batch(
        [
            offsets,
            numbers(np.arange(ordinal, ordinal + count, dtype=np.int64)),
            times,
            pa.nulls(count, pa.binary()) if keys is None else keys,
            values,
            pa.nulls(count, ROW_SCHEMA.field("headers").type),
            pa.nulls(count, pa.int32()),
        ],
        schema=ROW_SCHEMA,
    )


def chunk_of(partition: TopicPartition, batch: pa.RecordBatch) -> Chunk:
    """Make a chunk with the sizes of its records, which have no headers."""
    return Chunk(partition, batch, _sizes(partition.topic, batch))


def times_in_values(rule: TimestampRule, values: Sequence[bytes | None]) -> pa.Int64Array:
    """Read timestamps from a field of the values; null where the field has no usable one."""
    return optional_numbers(value_times_ms(rule, values))


def within_years(times: pa.Int64Array) -> pa.Int64Array:
    """Replace times outside the range of Spark's timestamps by null."""
    times_ms = to_numpy(times, null=END_TIME_MS)
    return numbers(times_ms, nulls=(times_ms < LEAST_TIME_MS) | (times_ms >= END_TIME_MS))


def _sizes(topic: str, batch: pa.RecordBatch) -> NDArray[np.int64]:
    return lengths(batch.column("key")) + lengths(batch.column("value")) + record_size(topic, None, None)
