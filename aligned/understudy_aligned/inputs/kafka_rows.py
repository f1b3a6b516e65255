"""Converts what librdkafka gives to Arrow columns. The hot path: per-record work runs in C, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from understudy_aligned.inputs.records import (
    ROW_SCHEMA,
    Chunk,
    TopicPartition,
    binaries,
    header_lists,
    lengths,
    numbers,
    optional_numbers,
    record_size,
)
from understudy_aligned.inputs.redis_rows import times_in_values
from understudy_aligned.inputs.timestamps import END_TIME_MS, TimestampRule, TimestampRules, header_time_ms

MOST_COLUMN_BYTES = 1 << 30
"""Most bytes of keys, and of values, that become one column, and of all that are copied together unless one column
alone has more: Arrow's offsets have 32 bits. One record has less than 2 GiB."""

_HEADERS = ROW_SCHEMA.field("headers").type


class Event(NamedTuple):
    """An end-of-partition event, or an error."""

    partition: TopicPartition
    error: KafkaError
    offset: int | None

    @property
    def code(self) -> int:
        return self.error.code()


class RecordColumns(NamedTuple):
    """Records as columns: one partition after the other, each in log order. `headers_bytes` is None if there are no
    headers.
    """

    parts: Sequence[tuple[TopicPartition, int]]
    """The partitions, each with the number of its records."""

    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    timestamp_types: NDArray[np.int32]
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers_bytes: NDArray[np.int64] | None


def group_messages(messages: list[Message]) -> tuple[dict[TopicPartition, list[Message]], list[Event]]:
    """Group records by partition and separate events. Records of one fetch are adjacent, so whole runs are copied."""
    errors = list(map(Message.error, messages))
    events: list[Event] = []
    if any(errors):  # `list.count(None)` compares a KafkaError with None, which ends in a SystemError
        events = [
            Event(partition_of(message), error, message.offset())
            for message, error in zip(messages, errors, strict=True)
            if error is not None
        ]
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    records: dict[TopicPartition, list[Message]] = {}
    if messages:
        starts = _run_starts(messages)
        for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
            records.setdefault(partition_of(messages[start]), []).extend(messages[start:end])
    return records, events


def partition_of(message: Message) -> TopicPartition:
    """Return the partition of a record or of an event."""
    return TopicPartition(message.topic() or "", message.partition() or 0)


def to_chunk(
    partition: TopicPartition, messages: Sequence[Message], rule: TimestampRule, *, include_headers: bool
) -> Chunk:
    """Convert at least one record of one partition."""
    return to_chunks({partition: messages}, TimestampRules(rule), include_headers=include_headers)[0]


def to_chunks(
    found: Mapping[TopicPartition, Sequence[Message]], rules: TimestampRules, *, include_headers: bool
) -> Sequence[Chunk]:
    """Convert records of partitions, at least one of each, into columns that all chunks share."""
    if not found:
        return ()
    messages = list(chain.from_iterable(found.values()))
    keys, values = list(map(Message.key, messages)), list(map(Message.value, messages))
    if len(found) > 1 and max(sum(map(len, filter(None, column))) for column in (keys, values)) > MOST_COLUMN_BYTES:
        each = (to_chunks({tp: some}, rules, include_headers=include_headers) for tp, some in found.items())
        return list(chain.from_iterable(each))
    headers: list[Any] = list(map(Message.headers, messages))
    any_headers = headers.count(None) < len(headers)
    types, times = _timestamps(messages)
    columns = RecordColumns(
        [(partition, len(some)) for partition, some in found.items()],
        np.fromiter(map(Message.offset, messages), np.int64, len(messages)),
        times,
        types,
        binaries(keys),
        binaries(values),
        np.fromiter(map(_headers_bytes, headers), np.int64, len(headers)) if any_headers else None,
    )
    return _chunks(
        columns,
        _times_ms(columns, headers, values, rules),
        header_lists(headers) if include_headers and any_headers else None,
    )


def chunks_of(columns: RecordColumns) -> Sequence[Chunk]:
    """Make chunks whose timestamps are the records' own, and which have no headers."""
    return _chunks(columns, _record_times_ms(columns.timestamps), None)


def _chunks(columns: RecordColumns, times_ms: pa.Int64Array, headers: pa.ListArray | None) -> Sequence[Chunk]:
    """Make a chunk for each partition: a view of its part of the columns."""
    offsets = numbers(columns.offsets)
    arrays = [
        offsets.cast(pa.string()),
        offsets,
        times_ms,
        columns.keys,
        columns.values,
        pa.nulls(len(offsets), _HEADERS) if headers is None else headers,
        numbers(columns.timestamp_types),
    ]
    rows, counts = pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), [count for _, count in columns.parts]
    sizes = lengths(columns.keys) + lengths(columns.values)
    sizes += np.repeat([record_size(partition.topic, None, None) for partition, _ in columns.parts], counts)
    if columns.headers_bytes is not None:
        sizes += columns.headers_bytes
    return [
        Chunk(partition, rows.slice(end - count, count), sizes[end - count : end])
        for (partition, count), end in zip(columns.parts, accumulate(counts), strict=True)
    ]


def _run_starts(messages: list[Message]) -> list[int]:
    """Return indices at which a new partition or topic begins, 0 included."""
    numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    topics = list(map(Message.topic, messages))
    changes = numbers[1:] != numbers[:-1]
    if topics.count(topics[0]) < len(topics):
        names = np.array(topics, dtype=object)
        changes |= names[1:] != names[:-1]
    return [0, *(np.flatnonzero(changes) + 1).tolist()]


def _timestamps(messages: Sequence[Message]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the timestamp types, as Spark has them, and the timestamps."""
    # One array: a list of the pairs would keep the garbage collector busy.
    pairs = chain.from_iterable(map(Message.timestamp, messages))
    found = np.fromiter(pairs, np.int64, 2 * len(messages))
    # librdkafka's types are greater by one than those of Kafka's Java client.
    return found[::2].astype(np.int32) - 1, found[1::2]


def _times_ms(
    columns: RecordColumns, headers: list[Any], values: list[bytes | None], rules: TimestampRules
) -> pa.Int64Array:
    found, end = [], 0
    for rule, parts in groupby(columns.parts, lambda part: rules.of(part[0].topic)):
        begin, end = end, end + sum(count for _, count in parts)
        if rule.kind == "header":
            found.append(optional_numbers([header_time_ms(rule, each) for each in headers[begin:end]]))
        elif not rule.is_record_time:
            found.append(times_in_values(rule, values[begin:end]))
        else:
            found.append(_record_times_ms(columns.timestamps[begin:end]))
    return found[0] if len(found) == 1 else pa.concat_arrays(found)


def _record_times_ms(times: NDArray[np.int64]) -> pa.Int64Array:
    # Before message format 1 the time is -1: no time.
    return numbers(times, nulls=(times < 0) | (times >= END_TIME_MS))


def _headers_bytes(headers: Any) -> int:
    """Count the bytes of a message's headers: a list of pairs, or None."""
    return sum(len(key.encode()) + len(value or b"") for key, value in headers or ())
