"""Reads ahead on one Kafka cluster: a consumer that is assigned by hand, paused and resumed as the planner wants.

Rule: a position is this module's own and nobody else's. What is gone there is an error with its numbers, and what
failed there is read again from the same one; the client's and the broker's ways to choose another are switched off.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaException, Message

from understudy_pipeline.inputs.kafka_client import EARLIEST, LATEST, KafkaClient
from understudy_pipeline.inputs.kafka_codes import END_OF_LOG, IGNORED, OUT_OF_RANGE
from understudy_pipeline.inputs.kafka_config import KafkaConfig
from understudy_pipeline.inputs.kafka_losses import describe_loss, report_loss, unknown_topic
from understudy_pipeline.inputs.kafka_positions import FetchPosition, end_cursor, next_offset
from understudy_pipeline.inputs.kafka_rows import group_messages, partition_of, to_chunk
from understudy_pipeline.inputs.protocol import Fetched, InputError
from understudy_pipeline.inputs.records import Chunk, Cursor, TopicPartition

FETCH_RECORDS = 10_000
"""Most that is taken from librdkafka in one turn."""

STARVED_QUERY_MS = 200
"""Ends of logs are asked for again after this long while a wanted partition brings nothing: someone waits for it."""

ENDS_QUERY_MS = 1_000
"""The same while every wanted partition has records: for the metrics."""

FRESH_EVENT_MS = 20
"""An end that a fetch met may be known for this long before its turn began, and is still an answer of that turn."""

ENDS_QUERY_TIMEOUT_MS = 1_000
"""For an answer about ends. Records wait meanwhile, so after a slow one nobody asks for four times as long."""


class KafkaInput:
    """One consumer, made at the first call."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._opened_client: KafkaClient | None = None
        self._positions: dict[TopicPartition, FetchPosition] = {}
        self._assigned = True
        """Whether the consumer reads from `_places`; after errors and seeks it has to be told."""
        self._fetching: set[TopicPartition] = set()
        self._is_starved = False
        """Whether a partition was wanted in the last turn that brought nothing."""
        self._queried_s = 0.0
        self._query_pause_s = 0.0
        self._silent_since_s: float | None = None
        """Since when questions have had no answer."""
        self._queue_empty_s = 0.0
        """When librdkafka's queue was last seen empty."""

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        """Partitions of each topic, now; no topic is made by asking. Raises UnknownTopicError."""
        counts = {name: self._client.partition_count(name, timeout_ms=timeout_ms) for name in self._config.topics}
        missing = [name for name, count in counts.items() if count == 0]
        if missing:
            raise unknown_topic(missing[0], self._client.topics(timeout_ms=timeout_ms), self._config.server)
        return counts

    def first_cursors(
        self, partitions: Sequence[TopicPartition], *, timeout_ms: int
    ) -> Mapping[TopicPartition, Cursor]:
        """At the ends of the logs, as they are now."""
        ends = self._client.offsets(partitions, LATEST, timeout_ms=timeout_ms)
        return {partition: end_cursor(end) for partition, end in ends.items()}

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        """Go on behind these. Raises DataLostError when a log begins behind a cursor (that it ends before one: when
        the broker says so, from `fetch`).
        """
        lows = self._client.offsets(cursors.keys(), EARLIEST, timeout_ms=timeout_ms)
        places: dict[TopicPartition, FetchPosition] = {}
        for partition, cursor in cursors.items():
            low = lows[partition]
            position = next_offset(cursor)
            if position is not None and position < low:
                self._report_loss(partition, f"{describe_loss(position, low=low, end=position)}")
            places[partition] = FetchPosition(low if position is None else max(position, low))
        self._positions.update(places)
        self._assigned = False

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        """Up to so many records of each. Comes back early, with lags alone, when ends of logs were told."""
        began_s = time.monotonic()
        self._assign()
        self._fetch_only(
            {partition for partition, count in wanted.items() if self._positions[partition].buffered_records < count}
        )
        ends = self._query_ends()
        is_ready = bool(ends) or any(
            self._positions[partition].buffered_records for partition, count in wanted.items() if count
        )
        # No more than one partition may take: what is held of each then stays below what was wanted of one.
        count = max([1, *(min(wanted[partition], FETCH_RECORDS) for partition in self._fetching)])
        wait_s = 0 if is_ready else began_s + timeout_ms / 1000 - time.monotonic()
        messages = self._client.messages(count, wait_s=wait_s)
        records, events = group_messages(messages)
        for partition, found in records.items():
            self._positions[partition].buffer(self._chunk(partition, found))
        ends.update(self._fresh_ends(events, began_s=began_s, is_emptied=len(messages) < count))
        chunks = [chunk for partition, limit in wanted.items() for chunk in self._positions[partition].take(limit)]
        self._raise_failures(events, is_silent=not messages and not ends, is_empty=not chunks)
        self._is_starved = len({chunk.partition for chunk in chunks}) < len(wanted)
        return Fetched(chunks, {partition: self._positions[partition].lag(end) for partition, end in ends.items()})

    def close(self) -> None:
        """Does not wait for the broker."""
        if self._opened_client is not None:
            self._opened_client.close()
            self._opened_client = None

    @property
    def _client(self) -> KafkaClient:
        if self._opened_client is None:
            self._opened_client = KafkaClient(self._config.server, self._config.client_properties)
        return self._opened_client

    def _chunk(self, partition: TopicPartition, messages: Sequence[Message]) -> Chunk:
        return to_chunk(partition, messages, self._config.timestamp, include_headers=self._config.include_headers)

    def _assign(self) -> None:
        if not self._assigned:
            self._client.assign({partition: place.ahead for partition, place in self._positions.items()})
            self._client.resume(self._positions)  # pauses outlive an assignment
            self._fetching = set(self._positions)
            self._queue_empty_s = time.monotonic()
            self._assigned = True

    def _fetch_only(self, partitions: set[TopicPartition]) -> None:
        """Fetch these and no others: those that are wanted and of which too little is held."""
        self._client.pause(self._fetching - partitions)
        self._client.resume(partitions - self._fetching)
        self._fetching = partitions

    def _query_ends(self) -> dict[TopicPartition, int]:
        """Ends of all logs when it is time to ask; empty when it is not, and when nothing is answered."""
        now_s = time.monotonic()
        every_s = (STARVED_QUERY_MS if self._is_starved else ENDS_QUERY_MS) / 1000
        if not self._positions or now_s - self._queried_s < max(every_s, self._query_pause_s):
            return {}
        ends: dict[TopicPartition, int] = {}
        timeout_ms = min(ENDS_QUERY_TIMEOUT_MS, self._config.request_timeout_ms)
        try:
            ends = self._client.known_ends(self._positions.keys(), timeout_ms=timeout_ms)
            self._silent_since_s = None
        except InputError:
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
        self._queried_s = time.monotonic()
        self._query_pause_s = 4 * (self._queried_s - now_s)
        return ends

    def _fresh_ends(self, events: Iterable[Message], *, began_s: float, is_emptied: bool) -> dict[TopicPartition, int]:
        """Ends that fetches met in this turn. One that was queued for longer, or before records, is none by now."""
        is_fresh = is_emptied and began_s - self._queue_empty_s < FRESH_EVENT_MS / 1000
        if is_emptied:
            self._queue_empty_s = time.monotonic()
        met: dict[TopicPartition, int] = {}
        for event in events:
            if _code(event) == END_OF_LOG and (offset := event.offset()) is not None:
                place = self._positions[partition_of(event)]
                place.mark_end(offset)
                if is_fresh and offset >= place.ahead:
                    met[partition_of(event)] = offset
        return met

    def _raise_failures(self, events: Iterable[Message], *, is_silent: bool, is_empty: bool) -> None:
        """Raise what went wrong, unless there are records to hand out: it will go wrong again from the same place."""
        failed = [event for event in events if _code(event) not in IGNORED]
        self._assigned = self._assigned and not failed
        connection_error = self._client.take_connection_error()
        if not is_silent:
            self._silent_since_s = None
        if not is_empty:
            return
        if gone := {partition_of(event) for event in failed if _code(event) in OUT_OF_RANGE}:
            self._handle_out_of_range(gone)
        elif failed:
            raise self._client.unreachable_error(
                f"{partition_of(failed[0])} cannot be read", KafkaException(failed[0].error())
            )
        elif is_silent:
            self._check_silence(connection_error)

    def _check_silence(self, connection_error: InputError | None) -> None:
        """No broker can be reached, or they hang."""
        if connection_error is not None:
            raise connection_error
        if self._silent_since_s is not None:
            silent_ms = (time.monotonic() - self._silent_since_s) * 1000
            if silent_ms >= self._config.request_timeout_ms:
                raise self._client.unreachable_error(f"there was no answer for {silent_ms / 1000:.1f} s")

    def _handle_out_of_range(self, gone: set[TopicPartition]) -> None:
        """The broker refused these positions. Raises DataLostError, or goes on at what is left."""
        timeout_ms = self._config.request_timeout_ms
        lows = self._client.offsets(gone, EARLIEST, timeout_ms=timeout_ms)
        ends = self._client.offsets(gone, LATEST, timeout_ms=timeout_ms)
        for partition in gone:
            lost = describe_loss(self._positions[partition].ahead, low=lows[partition], end=ends[partition])
            if lost is not None:
                self._report_loss(partition, lost)
                self._positions[partition] = FetchPosition(lows[partition])

    def _report_loss(self, partition: TopicPartition, lost: str) -> None:
        report_loss(partition, lost, self._config.server, is_error=self._config.fail_on_data_loss)


def _code(event: Message) -> int | None:
    error = event.error()
    return None if error is None else error.code()
