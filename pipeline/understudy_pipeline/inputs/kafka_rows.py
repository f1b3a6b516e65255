"""Converts what librdkafka gives to Arrow columns. The hot path: per-record work runs in C, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from understudy_pipeline.inputs.arrays import binaries, header_lists, lengths, numbers, optional_numbers
from understudy_pipeline.inputs.columns import times_in_values
from understudy_pipeline.inputs.records import ROW_SCHEMA, Chunk, TopicPartition, record_size
from understudy_pipeline.inputs.time_reading import header_time_ms
from understudy_pipeline.inputs.timestamps import END_TIME_MS, TimestampRule

_HEADERS = ROW_SCHEMA.field("headers").type


class Event(NamedTuple):
    """An end-of-partition event, or an error."""

    partition: TopicPartition
    error: KafkaError
    offset: int | None

    @property
    def code(self) -> int:
        return self.error.code()


class Columns(NamedTuple):
    """Records of one partition, in log order, as columns. `headers_bytes` is None if there are no headers."""

    partition: TopicPartition
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    timestamp_types: NDArray[np.int32]
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers_bytes: NDArray[np.int64] | None


class GroupedMessages(NamedTuple):
    """Messages of one poll, grouped."""

    records: dict[TopicPartition, list[Message]]
    """Records of each partition, in log order."""

    events: list[Event]


def group_messages(messages: list[Message]) -> GroupedMessages:
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
    return GroupedMessages(records, events)


def partition_of(message: Message) -> TopicPartition:
    """Return the partition of a record or of an event."""
    return TopicPartition(message.topic() or "", message.partition() or 0)


def to_chunk(
    partition: TopicPartition, messages: Sequence[Message], rule: TimestampRule, *, include_headers: bool
) -> Chunk:
    """Convert at least one record of one partition."""
    values = list(map(Message.value, messages))
    headers: list[Any] = list(map(Message.headers, messages))
    any_headers = headers.count(None) < len(headers)
    types, times = _timestamps(messages)
    columns = Columns(
        partition,
        np.fromiter(map(Message.offset, messages), np.int64, len(messages)),
        times,
        types,
        binaries(list(map(Message.key, messages))),
        binaries(values),
        np.fromiter(map(_headers_bytes, headers), np.int64, len(headers)) if any_headers else None,
    )
    return _chunk(
        columns,
        _times_ms(times, headers, values, rule),
        header_lists(headers) if include_headers and any_headers else None,
    )


def chunk_of(columns: Columns) -> Chunk:
    """Make a chunk whose times are those of the records, without their headers."""
    return _chunk(columns, _record_times_ms(columns.timestamps), None)


def _chunk(columns: Columns, times_ms: pa.Int64Array, headers: pa.ListArray | None) -> Chunk:
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
    sizes = lengths(columns.keys) + lengths(columns.values) + record_size(columns.partition.topic, None, None)
    if columns.headers_bytes is not None:
        sizes += columns.headers_bytes
    return Chunk(columns.partition, pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), sizes)


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
    times: NDArray[np.int64], headers: list[Any], values: list[bytes | None], rule: TimestampRule
) -> pa.Int64Array:
    if rule.kind == "header":
        return optional_numbers([header_time_ms(rule, each) for each in headers])
    if not rule.is_record_time:
        return times_in_values(rule, values)
    return _record_times_ms(times)


def _record_times_ms(times: NDArray[np.int64]) -> pa.Int64Array:
    # Before message format 1 the time is -1: no time.
    return numbers(times, nulls=(times < 0) | (times >= END_TIME_MS))


def _headers_bytes(headers: Any) -> int:
    """Count the bytes of a message's headers: a list of pairs, or None."""
    return sum(len(key.encode()) + len(value or b"") for key, value in headers or ())
