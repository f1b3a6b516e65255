"""Reads planned ranges of partitions on an executor, with one consumer for the ranges of many batches.

A range ends at an offset, not after a count of records: compaction may have removed some since, and commit markers and
aborted records are never visible.

A log's end offset says nothing about records: after the last visible record there may be commit markers, aborted
records, and offsets that compaction removed. So an end counts as reached either by a record, or by the broker's
end-of-partition event for a fetch at this position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa
from confluent_kafka import KafkaException, Message

from understudy_aligned.inputs.kafka_client import (
    EARLIEST,
    END_OF_LOG,
    IGNORED,
    LATEST,
    OUT_OF_RANGE,
    KafkaClient,
    KafkaConfig,
)
from understudy_aligned.inputs.kafka_rows import Event, group_messages, to_chunk
from understudy_aligned.inputs.protocol import DataLostError, InputError, Range, UnknownTopicError
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition

BATCH_RECORDS = 10_000
BATCH_BYTES = 16 << 20
"""A batch of rows is returned once it has either many records or bytes."""

_SHORT_FETCH_WAIT = {"fetch.wait.max.ms": "5"}
"""Planned records exist already. A long fetch at the log's end would delay the fetch of the next range."""

_LOOK_S = 0.1
_RETRY_S = 0.1


log = logging.getLogger(__name__)

_TOPICS_LISTED = 20


@dataclass(slots=True)
class FetchPosition:
    """The position of one partition."""

    ahead: int
    """The least offset that the next record from the broker can have."""

    ended: int = -1
    """The highest offset of an end-of-partition event: there are no records between `ahead` and it."""

    end: int = -1
    """The end of the log by the last answer. -1: there was no answer."""

    @property
    def has_more(self) -> bool:
        """Whether there are records ahead, by the last answer."""
        return self.end > max(self.ahead, self.ended)

    def advance(self, chunk: Chunk) -> None:
        """Move past records that came from the broker."""
        self.ahead = chunk.rows["ordinal"][-1].as_py() + 1

    def mark_end(self, offset: int) -> None:
        """Note that the broker sent an end-of-partition event at this offset."""
        self.ended = max(self.ended, offset)

    def lag(self, end: int) -> int:
        """Note where the log ends, and count records ahead. Markers that lie ahead count as records."""
        self.end = end
        return max(0, end - max(self.ahead, self.ended))


def next_offset(cursor: Cursor) -> int:
    """Return the offset after a cursor. It is 0 at the beginning: records that retention removed there are a loss."""
    return int(cursor.offset) + 1 if cursor.offset else 0


def end_cursor(end: int) -> Cursor:
    """Return the cursor of a reader with its next record at `end` or later."""
    return Cursor(offset=str(end - 1), ordinal=end)


def records_in_all(wanted: Iterable[int]) -> int:
    """Return the most records that one fetch may bring in all, by the numbers wanted of each partition: about the sum.

    All of them may be of the same partition. So the result is 1 if each is wanted for one record, as when memory is
    full.
    """
    return 1 + sum(count - 1 for count in wanted)


def describe_loss(position: int, *, low: int, end: int) -> str | None:
    """Say why a reader cannot continue at `position` in a log from `low` to before `end`. None if it can."""
    if position < low:
        return f"records from offset {position} on are gone: the log now begins at offset {low}"
    if position > end:
        return f"the log ends at offset {end}, before offset {position}: it was truncated or created again"
    return None


def report_loss(partition: TopicPartition, lost: str, server: str, *, is_error: bool) -> None:
    """Raise DataLostError if `is_error`, else log a warning."""
    if is_error:
        raise DataLostError(
            lost,
            where=f"{partition} at {server}",
            fix="Keep records for longer than this query may be stopped, or set fail_on_data_loss to false to continue "
            "at what is left",
        )
    extra = {"action": "data-lost", **partition._asdict()}
    log.warning("%s: %s; continuing at what is left", partition, lost, extra=extra)


def unknown_topic(name: str, topics: Sequence[str], server: str) -> UnknownTopicError:
    """Make the error for a topic that does not exist. It names similar topics, or those that exist."""
    similar = get_close_matches(name, topics, cutoff=0.7)
    there_are = ", ".join(topics[:_TOPICS_LISTED]) + (", ..." if len(topics) > _TOPICS_LISTED else "")
    fix = f"Did you mean {' or '.join(similar)}?" if similar else f"There are: {there_are or 'none'}"
    return UnknownTopicError(f"there is no topic '{name}'", where=f"Kafka at {server}", fix=fix)


class KafkaRangeReader:
    """Creates its consumer with the first range. A range fails `request_timeout_ms` after its last record arrived.

    While its broker answers, it fails after `poll_timeout_ms` instead: aborted records take time, and are not seen.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._opened_client: KafkaClient | None = None
        self.losses = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        if self._opened_client is None:
            self._opened_client = KafkaClient(
                self._config.server, {**self._config.client_properties, **_SHORT_FETCH_WAIT}
            )
        reading = _Reading(self._config, self._opened_client, span)
        try:
            yield from reading.batches()
        finally:
            self.losses += reading.losses
            if self._opened_client is not None:
                self._opened_client.unassign()

    def close(self) -> None:
        """Close without waiting for the broker."""
        if self._opened_client is not None:
            self._opened_client.close()
            self._opened_client = None


class _Reading:
    """The reading of one range."""

    def __init__(self, config: KafkaConfig, client: KafkaClient, span: Range) -> None:
        self._config = config
        self._client = client
        self._partition: TopicPartition = span.partition
        self._last = int(span.end.offset)
        self._position = next_offset(span.start)
        if self._position > self._last + 1:  # planned across a loss: the log began anew between
            self._position = 0
        self._ended = -1
        """Offset of the highest end-of-partition event."""
        self._arrived_s = self._deadline_s = 0.0
        self._failure: KafkaException | None = None
        self.losses = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._start()
        kept: list[Message] = []
        while not self._is_done:
            kept += self._poll()
            if kept and (self._is_done or len(kept) >= BATCH_RECORDS or sum(map(len, kept)) >= BATCH_BYTES):
                yield self._rows(kept)
                kept = []
                self._reset_deadline()  # Spark's time for the batch does not count against the broker

    @property
    def _is_done(self) -> bool:
        """Whether the log was read past the range's last record."""
        return self._position > self._last or self._ended > self._last

    def _start(self) -> None:
        self._client.assign({self._partition: self._position})
        self._reset_deadline()

    def _reset_deadline(self) -> None:
        self._arrived_s = time.monotonic()
        self._deadline_s = self._arrived_s + self._config.request_timeout_ms / 1000

    def _poll(self) -> list[Message]:
        records, events = group_messages(self._client.messages(BATCH_RECORDS, wait_s=_LOOK_S))
        came = records.get(self._partition, [])
        if came:
            self._position = (came[-1].offset() or 0) + 1
            self._reset_deadline()
        for event in events:
            self._handle_event(event)
        if not came and time.monotonic() > self._deadline_s:
            self._give_up()
        if self._position <= self._last + 1:
            return came
        return [message for message in came if (message.offset() or 0) <= self._last]

    def _handle_event(self, event: Event) -> None:
        if event.code == END_OF_LOG:
            self._ended = max(self._ended, event.offset or 0)
        elif event.code in OUT_OF_RANGE:
            self._handle_out_of_range()
        elif event.code not in IGNORED:
            self._failure = KafkaException(event.error)
            time.sleep(_RETRY_S)
            self._client.assign({self._partition: self._position})

    def _handle_out_of_range(self) -> None:
        """Handle a position that the broker refused. Raises DataLostError, or continues at what is left."""
        partitions, timeout_ms = [self._partition], self._config.request_timeout_ms
        low = self._client.offsets(partitions, EARLIEST, timeout_ms=timeout_ms)[self._partition]
        end = self._client.offsets(partitions, LATEST, timeout_ms=timeout_ms)[self._partition]
        lost = describe_loss(self._position, low=low, end=end)
        if lost is not None:
            self._report_loss(lost)
            self._position = low if low > self._position else self._last + 1
        if not self._is_done:
            self._client.assign({self._partition: self._position})

    def _give_up(self) -> None:
        """Give up after `request_timeout_ms` without a record. Raises InputError, but reports a loss if the log ended
        before the range did: after a restart of its broker the log would have grown again sooner.
        """
        if self._ended >= 0 and self._failure is None:
            self._report_loss(f"the log ends at offset {self._ended}, before the planned record {self._last}")
            self._position = self._last + 1
            return
        is_away = self._failure is not None or self._client.take_connection_error() is not None
        if not is_away and self._has_more():
            self._deadline_s = time.monotonic() + self._config.request_timeout_ms / 1000
            return
        raise self._client.unreachable_error(
            f"{self._partition} brought no record of those up to offset {self._last}", self._failure
        )

    def _has_more(self) -> bool:
        """Whether the broker answers that the log goes on behind the range, and there is time to read it."""
        if time.monotonic() >= self._arrived_s + self._config.poll_timeout_ms / 1000:
            return False
        with suppress(InputError):
            ends = self._client.offsets([self._partition], LATEST, timeout_ms=self._config.request_timeout_ms)
            return ends[self._partition] > self._last
        return False

    def _report_loss(self, lost: str) -> None:
        report_loss(self._partition, lost, self._config.server, is_error=self._config.fail_on_data_loss)
        self.losses += 1

    def _rows(self, messages: list[Message]) -> pa.RecordBatch:
        rule, headers = self._config.timestamp.of(self._partition.topic), self._config.include_headers
        return to_chunk(self._partition, messages, rule, include_headers=headers).rows
