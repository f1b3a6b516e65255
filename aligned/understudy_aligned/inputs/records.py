"""Records: their schema, positions, sizes and effective times, and their conversion between Python, NumPy and Arrow.

pyarrow's own converters (`pa.array`, `pa.scalar`, `to_numpy`, and each compute function that is given a Python value)
import pandas at their first call: about a second of CPU in the planner and in each worker, before the first row. So the
source converts by buffers instead. `test_the_first_rows_need_no_pandas` holds it to that.

The *partition time* is the greatest timestamp of a partition up to a record. A record's *effective time* is the
greatest timestamp of its partition up to the record within its batch. Kafka Streams always takes the record with the
least timestamp among the heads of a task's queues (`PartitionGroup`). Sorting a batch by `(effective time, topic rank,
partition, ordinal)` gives the same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Headers = list[tuple[str, bytes | None]]

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_NUMPY_TYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint64(): np.uint64,
    pa.timestamp("us", tz="UTC"): np.int64,
}
_ARROW_TYPES = {np.dtype(numpy): arrow for arrow, numpy in _NUMPY_TYPES.items() if pa.types.is_integer(arrow)}


def numbers(values: NDArray[Any], *, nulls: NDArray[np.bool_] | None = None, kind: pa.DataType = None) -> pa.Array:
    """Build an array of integers; null where `nulls` is set. Its type follows `values`, or is `kind` of that width."""
    validity, null_count = _validity(nulls)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or _ARROW_TYPES[values.dtype], len(values), buffers, null_count)


def optional_numbers(values: Sequence[int | None]) -> pa.Int64Array:
    """Build an array of 64-bit integers from Python's, `None` as null."""
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    return numbers(np.fromiter((value or 0 for value in values), np.int64, len(values)), nulls=nulls)


def booleans(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """Build an array of booleans without nulls, such as a mask."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits], 0)


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Build an array of bytes, `None` as null. Together they are less than 2 GiB, else ValueError."""
    nulls = None
    if None in values:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    data = b"".join(values)  # type: ignore[arg-type]  # no None is left
    offsets = _offsets(values)  # type: ignore[arg-type]
    validity, null_count = _validity(nulls)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, null_count)


def repeated_texts(texts: Sequence[str], counts: Sequence[int]) -> pa.StringArray:
    """Build an array of texts, each repeated so many times. Together they are less than 2 GiB."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum(np.repeat(np.fromiter(map(len, encoded), np.int32, len(encoded)), counts), dtype=np.int32)
    data = b"".join(text * count for text, count in zip(encoded, counts, strict=True))
    buffers = [None, pa.py_buffer(np.concatenate((np.zeros(1, np.int32), ends))), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers, 0)


def header_lists(found: Sequence[Headers | None]) -> pa.ListArray:
    """Build an array of headers, one list for each record; null for a record without headers."""
    pairs = [pair for headers in found for pair in headers or ()]
    keys = binaries([key.encode() for key, _ in pairs]).cast(pa.string())
    items = pa.StructArray.from_arrays(
        [keys, binaries([value for _, value in pairs])], fields=list(_HEADERS.value_type)
    )
    offsets = _offsets([headers or () for headers in found])
    validity, null_count = _validity(np.fromiter((not headers for headers in found), np.bool_, len(found)))
    return pa.Array.from_buffers(_HEADERS, len(found), [validity, pa.py_buffer(offsets)], null_count, children=[items])


def scalar(value: int | str | None, kind: pa.DataType) -> pa.Scalar:
    """Build a value of an integer or string type, for compute functions and `pa.repeat`."""
    if value is None:
        return pa.nulls(1, kind)[0]
    if isinstance(value, str):
        return binaries([value.encode()]).cast(kind)[0]
    return numbers(np.array([value], _NUMPY_TYPES[kind]), kind=kind)[0]


def to_numpy(array: pa.Array, *, null: int = 0) -> NDArray[Any]:
    """Return the values of an array of integers, `null` for null. Without nulls they share its memory."""
    validity, data = array.buffers()
    dtype = _NUMPY_TYPES[array.type]
    if data is None or not len(array):
        return np.full(len(array), null, dtype)
    values: NDArray[Any] = np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
    return np.where(_bits(validity, array), values, dtype(null)) if array.null_count else values


def lengths(array: pa.BinaryArray) -> NDArray[np.int64]:
    """Return the number of bytes of each value, 0 for null."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(len(array), np.int64)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    found = np.diff(ends).astype(np.int64)
    return np.where(is_null(array), 0, found) if array.null_count else found


def data_bytes(array: pa.BinaryArray) -> int:
    """Return the bytes of all values: quicker than `nbytes`, which counts in every buffer."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return 0
    ends = np.frombuffer(offsets, np.int32)
    return int(ends[array.offset + len(array)] - ends[array.offset])


def is_null(array: pa.Array) -> NDArray[np.bool_]:
    """Find the positions at which an array is null."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    validity = array.buffers()[0]
    return np.ones(len(array), np.bool_) if validity is None else ~_bits(validity, array)


def _bits(bitmap: pa.Buffer, array: pa.Array) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)


def _validity(nulls: NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    """Return Arrow's bitmap of what is not null, with the number of nulls."""
    count = 0 if nulls is None else int(np.count_nonzero(nulls))
    return (pa.py_buffer(np.packbits(~nulls, bitorder="little")), count) if nulls is not None and count else (None, 0)


def _offsets(values: Sequence[bytes | Sequence[object]]) -> NDArray[np.int32]:
    """Return the position at which each value begins, and the end of the last one."""
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{ends[-1]:,} bytes do not fit into one Arrow array")
    return np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))


NO_TIME_MS = -(2**62)
"""The partition time before the first record. It is less than every timestamp, and sums with it do not overflow."""

ROW_SCHEMA = pa.schema(
    [
        ("offset", pa.string()),
        ("ordinal", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_type", pa.int32()),
    ]
)
"""Records of one partition as an input fetches them, in log order. `timestamp_ms` (since the epoch) is null in a poison
record: one without a usable timestamp. `headers` is null if there are no headers, or unless the option
`include_headers` is set. `timestamp_type` is Kafka's: -1 for no timestamp, 0 for the producer's time, 1 for the
broker's; null elsewhere.
"""


class TopicPartition(NamedTuple):
    """A partition of a topic: one log. In Redis it is a stream."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cursor(NamedTuple):
    """The position of a reader in one partition, after the last record that it read.

    `offset` is that record's offset in the form of its input; "" is the beginning of the log. `ordinal` is the least
    number that the next record can have: its offset in Kafka, a count of records elsewhere. `time_ms` is the partition
    time at the last record.
    """

    offset: str = ""
    ordinal: int = 0
    time_ms: int = NO_TIME_MS


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """At least one record of a partition, in log order. `sizes` are the bytes of each, by `record_size`."""

    partition: TopicPartition
    rows: pa.RecordBatch
    sizes: NDArray[np.int64]


RECORD_OVERHEAD_BYTES = 96
"""Memory overhead of a buffered record: an offset as text, ends of key and value, and the planner's
arrays, which have room to grow. Records of 10 bytes take 90 to 150 in all.
"""


def record_size(topic: str, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> int:
    """Count bytes as KIP-770 does (key, value, timestamp of 8, offset of 8, topic, partition of 4, headers; null is 0),
    and add the overhead of a record in memory.
    """
    return len(key or b"") + len(value or b"") + 20 + len(topic.encode()) + headers_bytes + RECORD_OVERHEAD_BYTES


def partition_times_ms(
    timestamps_ms: pa.Int64Array, *, time_ms: int, max_jump_ms: int | None = None
) -> NDArray[np.int64]:
    """Return the partition time at each of the records after partition time `time_ms`. It never decreases.

    One record advances the partition time by at most `max_jump_ms`; the first record of a partition sets it freely. A
    poison record does not change it.
    """
    return running_times_ms(to_numpy(timestamps_ms, null=NO_TIME_MS), time_ms=time_ms, max_jump_ms=max_jump_ms)


def running_times_ms(times: NDArray[np.int64], *, time_ms: int, max_jump_ms: int | None = None) -> NDArray[np.int64]:
    """Do the same as `partition_times_ms` for an array of timestamps, which has NO_TIME_MS for poison records."""
    if max_jump_ms is not None and _jumps(time_ms, times, max_jump_ms):
        return _capped(times, time_ms, max_jump_ms)
    return _running_maximum(time_ms, times)


def running_maxima(values: NDArray[np.int64], counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the running maximum of each run of values. The runs follow each other, and `counts` are their lengths.

    Most runs ascend, so only the others are visited.
    """
    ends = np.cumsum(counts)
    falls = np.setdiff1d(np.flatnonzero(values[1:] < values[:-1]) + 1, ends)
    if len(falls):
        values = values.copy()
        for run in np.unique(np.searchsorted(ends, falls, "right")).tolist():
            of_run = values[ends[run] - counts[run] : ends[run]]
            np.maximum.accumulate(of_run, out=of_run)
    return values


def with_partition_times(timestamps_ms: NDArray[np.int64], partition_times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace missing timestamps (NO_TIME_MS) by the partition time. One before the first timestamp stays missing."""
    return np.where(timestamps_ms == NO_TIME_MS, partition_times_ms, timestamps_ms)


def effective_times_ms(
    timestamps_ms: NDArray[np.int64], partition_times_ms: NDArray[np.int64], *, begin_ms: int = NO_TIME_MS
) -> NDArray[np.int64]:
    """Compute effective times of records of one partition, by which a batch is sorted. They never decrease within a
    batch.

    `begin_ms` is the effective time of the record before them in the batch, NO_TIME_MS if they are the first. A
    timestamp above the partition time at its record counts as that time: `max_timestamp_jump_ms` can hold it back.
    """
    return _running_maximum(begin_ms, np.minimum(timestamps_ms, partition_times_ms))


def _running_maximum(first: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(np.maximum.accumulate(values), first)


def _jumps(time_ms: int, times: NDArray[np.int64], max_jump_ms: int) -> bool:
    running = np.maximum.accumulate(np.concatenate(([time_ms], times)))
    known = running[running > NO_TIME_MS]
    return bool((np.diff(known) > max_jump_ms).any())


def _capped(times: NDArray[np.int64], time_ms: int, max_jump_ms: int) -> NDArray[np.int64]:
    capped = np.empty(len(times), dtype=np.int64)
    for index, timestamp in enumerate(times.tolist()):
        if timestamp > time_ms:
            time_ms = timestamp if time_ms == NO_TIME_MS else min(timestamp, time_ms + max_jump_ms)
        capped[index] = time_ms
    return capped
