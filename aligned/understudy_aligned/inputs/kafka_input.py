"""Reads ahead on one Kafka cluster with a manually assigned consumer, paused and resumed as the planner needs.

Rule: only this module decides positions. A lost position is an error that names its offsets, and a failed read is
retried from the same position. Client and broker are configured so that neither ever picks another position.

Topics' ids (KIP-516) come with a request that only librdkafka's admin client has, and in the background. Topics of a
cluster that gives no ids, or refuses the request, have no ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from understudy_aligned.inputs.kafka_client import (
    EARLIEST,
    END_OF_LOG,
    IGNORED,
    LATEST,
    OUT_OF_RANGE,
    DebugLog,
    KafkaClient,
    KafkaConfig,
)
from understudy_aligned.inputs.kafka_reader import (
    FetchPosition,
    describe_loss,
    end_cursor,
    next_offset,
    records_in_all,
    report_loss,
    unknown_topic,
)
from understudy_aligned.inputs.kafka_rows import Event, to_chunks
from understudy_aligned.inputs.kafka_topics import TopicsPattern
from understudy_aligned.inputs.protocol import ClientQueue, Fetched, InputError
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition

FETCH_RECORDS = 40_000
"""Most records that one fetch takes from librdkafka."""

STARVED_QUERY_MS = 200
"""Interval of end queries while a wanted partition brings no records and is not known to have some: the planner may
wait for its lag.
"""

ENDS_QUERY_MS = 1_000
"""Interval of end queries while every wanted partition brings or has records: only metrics need the lag then."""

FRESH_EVENT_MS = 20
"""Longest time that an end-of-partition event may have been queued before this fetch began and still count as fresh."""

FIRST_IDS_WAIT_MS, LATER_IDS_WAIT_MS = 2_000, 200
"""Longest waits for topic ids. An answer that takes longer is taken by the next call."""

UNREAD_MS = 10_000
"""Time without a fetch after which the records that librdkafka has read ahead are dropped, and its statistics taken."""

ENDS_QUERY_TIMEOUT_MS = 1_000
"""Timeout of an end query. Records wait meanwhile, so a slow query is followed by a pause of four times its length."""


log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 10
"""No longer than the interval at which partitions are counted, so that only one request is in flight."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic without one: 16 zero bytes."""


class TopicIds:
    """A client for topic ids. It starts connecting at construction. Not thread-safe."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        settings: dict[str, Any] = {**properties, "logger": DebugLog()}
        self._client = AdminClient(settings)
        self._asked: Mapping[str, Future[Any]] = {}

    def ask(self, topics: Collection[str], *, wait_ms: float) -> Mapping[str, str]:
        """Return ids that are known within `wait_ms`. An answer that comes later is taken by the next call."""
        if not topics:
            return {}
        end_s = time.monotonic() + wait_ms / 1000
        if not self._asked:
            asked = TopicCollection(list(topics))
            self._asked = self._client.describe_topics(asked, request_timeout=_REQUEST_TIMEOUT_S)
        wait(self._asked.values(), max(0.0, end_s - time.monotonic()))
        if not all(each.done() for each in self._asked.values()):
            return {}
        answers, self._asked = self._asked, {}
        return {topic: known for topic, answer in answers.items() if (known := _id_of(answer)) is not None}


def _id_of(answer: Future[Any]) -> str | None:
    try:
        text = str(answer.result().topic_id)
    except KafkaException as error:
        log.debug("a topic's id is not known: %s", error)
        return None
    return None if text == _NO_ID else text


class KafkaInput:
    """An input of one Kafka cluster, with one client, which is created by the first call."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._opened_client: KafkaClient | None = None
        self._positions: dict[TopicPartition, FetchPosition] = {}
        self._assigned = True
        """Whether the consumer is assigned at `_positions`. Errors and seeks reset this."""
        self._fetching: set[TopicPartition] = set()
        self._is_starved = False
        """Whether the last fetch brought no record of some wanted partition that is not known to have records."""
        self._queried_s = 0.0
        self._query_pause_s = 0.0
        self._silent_since_s: float | None = None
        """Since when end queries have had no answer."""
        self._topic_ids: TopicIds | None = None
        self._doubted: set[TopicPartition] = set()
        """Partitions whose log ended before the position, since they were last sought."""
        self._queue_empty_s = 0.0
        """The time at which librdkafka's queue was last seen empty."""
        self._fetched_s = time.monotonic()
        """The time of the last fetch."""
        self.losses = 0

    @property
    def client_queue(self) -> ClientQueue | None:
        return None if self._opened_client is None else self._opened_client.queue

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        """Count the partitions of each topic, now, and forget those that are gone. Does not create topics.

        Raises UnknownTopicError for a topic that the configuration names.
        """
        self._drop_unread()
        topics = self._config.topics
        if isinstance(topics, TopicsPattern):
            counts = self._client.partition_counts(topics, timeout_ms=timeout_ms)
        else:
            counts = {name: self._client.partition_count(name, timeout_ms=timeout_ms) for name in topics}
        missing = [name for name, count in counts.items() if count == 0]
        if missing:
            raise unknown_topic(missing[0], self._client.topics(timeout_ms=timeout_ms), self._config.server)
        self._forget({tp for tp in self._positions if tp.partition >= counts.get(tp.topic, 0)})
        return counts

    def topic_ids(self, topics: Collection[str], *, timeout_ms: int) -> Mapping[str, str]:
        """Ask for ids in the background: a cluster that cannot tell holds up only the first call, and for a moment."""
        if self._topic_ids is None:
            self._topic_ids = TopicIds(self._config.client_properties)
            return self._topic_ids.ask(topics, wait_ms=min(timeout_ms, FIRST_IDS_WAIT_MS))
        return self._topic_ids.ask(topics, wait_ms=LATER_IDS_WAIT_MS)

    def ends(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        """Return cursors at the current ends of the logs."""
        ends = self._client.offsets(partitions, LATEST, timeout_ms=timeout_ms)
        return {partition: end_cursor(end) for partition, end in ends.items()}

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        """Return cursors at the first offsets that retention has left."""
        lows = self._client.offsets(partitions, EARLIEST, timeout_ms=timeout_ms)
        return {partition: end_cursor(low) for partition, low in lows.items()}

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        """Continue after these cursors. Raises DataLostError if a log begins after its cursor. If a log ends before
        its cursor, `fetch` raises it once the broker refuses the position.
        """
        lows = self._client.offsets(cursors.keys(), EARLIEST, timeout_ms=timeout_ms)
        places: dict[TopicPartition, FetchPosition] = {}
        for partition, cursor in cursors.items():
            low = lows[partition]
            position = next_offset(cursor)
            if position < low:
                self._report_loss(partition, f"{describe_loss(position, low=low, end=position)}")
            places[partition] = FetchPosition(max(position, low))
        self._doubted -= places.keys()
        self._positions.update(places)
        self._assigned = False

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        """Fetch as many records as are wanted in all, from any of the partitions. Do not wait for records if ends of
        logs became known: return their lags.
        """
        began_s = self._fetched_s = time.monotonic()
        self._assign()
        self._fetch_only(set(wanted))
        ends = self._query_ends()
        wait_s = 0 if ends else began_s + timeout_ms / 1000 - time.monotonic()
        count = min(records_in_all(wanted.values()), FETCH_RECORDS)
        chunks, events, total = self._client.records(count, self._chunks, wait_s=wait_s)
        for found in chunks:
            self._positions[found.partition].advance(found)
        ends.update(self._fresh_ends(events, began_s=began_s, is_emptied=total < count))
        self._raise_failures(events, is_silent=not total and not ends, is_empty=not chunks)
        lags = {partition: self._positions[partition].lag(end) for partition, end in ends.items()}
        dry = wanted.keys() - {chunk.partition for chunk in chunks}
        self._is_starved = not chunks or not all(self._positions[partition].has_more for partition in dry)
        return Fetched(chunks, lags)

    def close(self) -> None:
        """Close without waiting for the broker."""
        if self._opened_client is not None:
            self._opened_client.close()
            self._opened_client = None

    @property
    def _client(self) -> KafkaClient:
        if self._opened_client is None:
            self._opened_client = KafkaClient(
                self._config.server,
                self._config.client_properties,
                statistics_interval_ms=self._config.statistics_interval_ms,
                takes_natively=FETCH_RECORDS if self._config.has_record_times_only else 0,
                buffer_bytes=self._config.buffer_bytes,
            )
        return self._opened_client

    def _chunks(self, messages: Mapping[TopicPartition, Sequence[Message]]) -> Sequence[Chunk]:
        return to_chunks(messages, self._config.timestamp, include_headers=self._config.include_headers)

    def _assign(self) -> None:
        if not self._assigned:
            self._client.assign({partition: place.ahead for partition, place in self._positions.items()})
            self._client.resume(self._positions)  # pauses survive an assignment
            self._fetching = set(self._positions)
            self._queue_empty_s = time.monotonic()
            self._assigned = True

    def _drop_unread(self) -> None:
        """Drop librdkafka's read-ahead after a long time without a fetch: memory is full, or its brokers are away."""
        if time.monotonic() - self._fetched_s >= UNREAD_MS / 1000:
            self._client.drop_read_ahead()
            self._assigned = False

    def _forget(self, gone: set[TopicPartition]) -> None:
        """Stop reading these partitions: a fetch would fail for them."""
        for partition in gone:
            del self._positions[partition]
        self._fetching -= gone
        self._assigned = self._assigned and not gone

    def _fetch_only(self, partitions: set[TopicPartition]) -> None:
        """Resume these partitions and pause all others."""
        self._client.pause(self._fetching - partitions)
        self._client.resume(partitions - self._fetching)
        self._fetching = partitions

    def _query_ends(self) -> dict[TopicPartition, int]:
        """Return ends of all logs if a query is due and answered, else empty."""
        now_s = time.monotonic()
        every_s = (STARVED_QUERY_MS if self._is_starved else ENDS_QUERY_MS) / 1000
        if not self._positions or now_s - self._queried_s < max(every_s, self._query_pause_s):
            return {}
        ends: dict[TopicPartition, int] = {}
        timeout_ms = min(ENDS_QUERY_TIMEOUT_MS, self._config.request_timeout_ms)
        try:
            found = self._client.known_ends(self._positions.keys(), timeout_ms=timeout_ms)
            # An end before the position is a loss, not a lag of 0: the broker refuses that position.
            ends = {tp: end for tp, end in found.items() if end >= self._positions[tp].ahead}
            self._silent_since_s = None
        except InputError:
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
        self._queried_s = time.monotonic()
        self._query_pause_s = 4 * (self._queried_s - now_s)
        return ends

    def _fresh_ends(self, events: Iterable[Event], *, began_s: float, is_emptied: bool) -> dict[TopicPartition, int]:
        """Return ends of logs by the end-of-partition events of this fetch.

        An end-of-partition event that is stale, or was followed by records, is ignored. An event is fresh if the queue
        is empty now and was empty just before this fetch: then it cannot have waited in between.
        """
        is_fresh = is_emptied and began_s - self._queue_empty_s < FRESH_EVENT_MS / 1000
        if is_emptied:
            self._queue_empty_s = time.monotonic()
        met: dict[TopicPartition, int] = {}
        for event in events:
            if event.code == END_OF_LOG and event.offset is not None:
                place = self._positions[event.partition]
                place.mark_end(event.offset)
                if is_fresh and event.offset >= place.ahead:
                    met[event.partition] = event.offset
        return met

    def _raise_failures(self, events: Iterable[Event], *, is_silent: bool, is_empty: bool) -> None:
        """Raise the error of a failed read, unless there are records to return: then the next fetch raises it."""
        failed = [event for event in events if event.code not in IGNORED]
        self._assigned = self._assigned and not failed
        connection_error = self._client.take_connection_error()
        if not is_silent:
            self._silent_since_s = None
        if not is_empty:
            return
        if gone := {event.partition for event in failed if event.code in OUT_OF_RANGE}:
            self._handle_out_of_range(gone)
        elif failed:
            raise self._client.unreachable_error(
                f"{failed[0].partition} cannot be read", KafkaException(failed[0].error)
            )
        elif is_silent:
            self._check_silence(connection_error)

    def _check_silence(self, connection_error: InputError | None) -> None:
        """Raise InputError if no broker can be reached, or if they have hung for `request_timeout_ms`."""
        if connection_error is not None:
            raise connection_error
        if self._silent_since_s is not None:
            silent_ms = (time.monotonic() - self._silent_since_s) * 1000
            if silent_ms >= self._config.request_timeout_ms:
                raise self._client.unreachable_error(f"it gave no answer for {silent_ms / 1000:.1f} s")

    def _handle_out_of_range(self, gone: set[TopicPartition]) -> None:
        """Handle positions that the broker refused. Raises DataLostError, or continues at what is left.

        With `fail_on_data_loss` off, a log that ends before its position is not taken for a loss at once. It may belong
        to a topic that was created again: an InputError makes the caller poll the topics, and then seek in a new one.
        """
        timeout_ms = self._config.request_timeout_ms
        lows = self._client.offsets(gone, EARLIEST, timeout_ms=timeout_ms)
        ends = self._client.offsets(gone, LATEST, timeout_ms=timeout_ms)
        doubted = {tp for tp in gone if self._positions[tp].ahead > ends[tp]} - self._doubted
        if doubted and not self._config.fail_on_data_loss:
            self._doubted |= doubted
            raise self._client.unreachable_error(
                f"{min(doubted)} ends before the position of this query, and its topic may have been created again"
            )
        for partition in gone:
            lost = describe_loss(self._positions[partition].ahead, low=lows[partition], end=ends[partition])
            if lost is not None:
                self._report_loss(partition, lost)
                self._positions[partition] = FetchPosition(lows[partition])

    def _report_loss(self, partition: TopicPartition, lost: str) -> None:
        report_loss(partition, lost, self._config.server, is_error=self._config.fail_on_data_loss)
        self.losses += 1
