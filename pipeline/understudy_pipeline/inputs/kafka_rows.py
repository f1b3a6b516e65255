"""Converts librdkafka's messages to Arrow columns. The hot path: per-record work runs in C, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from numpy.typing import NDArray

from understudy_pipeline.inputs.arrays import binaries, header_lists, numbers, optional_numbers, to_numpy
from understudy_pipeline.inputs.columns import times_in_values
from understudy_pipeline.inputs.records import ROW_SCHEMA, Chunk, TopicPartition, record_size
from understudy_pipeline.inputs.time_reading import header_time_ms
from understudy_pipeline.inputs.timestamps import END_TIME_MS, TimestampRule

_HEADERS = ROW_SCHEMA.field("headers").type


class GroupedMessages(NamedTuple):
    """Messages of one poll, grouped."""

    records: dict[TopicPartition, list[Message]]
    """Records of each partition, in log order."""

    events: list[Message]
    """End-of-partition events, and errors."""


def group_messages(messages: list[Message]) -> GroupedMessages:
    """Group records by partition and separate events. Records of one fetch are adjacent, so whole runs are copied."""
    errors = list(map(Message.error, messages))
    events: list[Message] = []
    if any(errors):  # `list.count(None)` compares a KafkaError with None, which ends in a SystemError
        events = [message for message, error in zip(messages, errors, strict=True) if error is not None]
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
    keys = binaries(list(map(Message.key, messages)))
    values = list(map(Message.value, messages))
    value_column = binaries(values)
    offsets = numbers(np.fromiter(map(Message.offset, messages), np.int64, len(messages)))
    headers: list[Any] = list(map(Message.headers, messages))
    any_headers = headers.count(None) < len(headers)
    types, times = _timestamps(messages)
    columns = [
        offsets.cast(pa.string()),
        offsets,
        _times_ms(times, headers, values, rule),
        keys,
        value_column,
        header_lists(headers) if include_headers and any_headers else pa.nulls(len(messages), _HEADERS),
        numbers(types),
    ]
    sizes = _lengths(keys) + _lengths(value_column) + record_size(partition.topic, None, None)
    if any_headers:
        sizes += np.fromiter(map(_headers_bytes, headers), np.int64, len(headers))
    return Chunk(partition, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), sizes)


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
    # Before message format 1 the time is -1: no time.
    return numbers(times, nulls=(times < 0) | (times >= END_TIME_MS))


def _lengths(column: pa.BinaryArray) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = to_numpy(pc.binary_length(column)).astype(np.int64)
    return lengths


def _headers_bytes(headers: Any) -> int:
    """Count the bytes of a message's headers: a list of pairs, or None."""
    return sum(len(key.encode()) + len(value or b"") for key, value in headers or ())
