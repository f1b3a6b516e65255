"""A librdkafka consumer for records and one for questions: deadlines, errors told as ours, log lines kept off stderr.

A broker answers what comes over one connection in turn, so a question would wait for the fetch under way, which itself
waits for records. Neither consumer joins a group. Rule: a question is one request to each broker, however many
partitions it is about.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._metadata import ClusterMetadata

from understudy_pipeline.inputs.kafka_codes import ACCESS_REFUSED, NO_BROKER, NO_TOPIC
from understudy_pipeline.inputs.protocol import InputError
from understudy_pipeline.inputs.records import TopicPartition
from understudy_shared.errors import SettingsError

log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1
"""Asked of the broker in place of a time (ListOffsets). LATEST is the last stable offset when `read_committed`."""

BEGINNING = -2
"""To be assigned at: wherever the log begins by then."""

_MAX_CONSUME = 1_000
"""Messages made in one call, for which no other thread runs Python: the planner's answers to Spark wait so long."""

_FIND_LEADERS_TIMEOUT_S = 1.0


class KafkaClient:
    """Starts to connect when it is made. One thread uses it at a time."""

    def __init__(self, server: str, properties: Mapping[str, str]) -> None:
        self.server = server
        self._connection_error: str | None = None
        self._reason = ""
        self._properties = {**properties, "error_cb": self._on_error}
        self._consumer = _consumer(self._properties)
        self._opened_query_consumer: Consumer | None = None
        self._topics_with_leaders: set[str] = set()
        """Topics whose leaders the consumer for records knows."""

    def messages(self, count: int, *, wait_s: float) -> list[Message]:
        """Up to `count` records and events. Waits for the first only: `consume` alone would wait for the last."""
        first = self._consumer.poll(max(wait_s, 0))
        messages = [] if first is None else [first]
        while messages and (room := min(count - len(messages), _MAX_CONSUME)) > 0:
            found = self._consumer.consume(room, 0)
            messages += found
            if len(found) < room:
                break
        return messages

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        self._find_leaders({partition.topic for partition in offsets})
        self._consumer.assign([KafkaPartition(*partition, offset) for partition, offset in offsets.items()])

    def unassign(self) -> None:
        """Read nothing any more; what was read ahead is dropped."""
        self._consumer.unassign()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """What was read ahead of them is dropped; resuming goes on behind the last record that was handed out."""
        if paused := [KafkaPartition(*partition) for partition in partitions]:
            self._consumer.pause(paused)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read them again."""
        if resumed := [KafkaPartition(*partition) for partition in partitions]:
            self._consumer.resume(resumed)

    def offsets(
        self, partitions: Collection[TopicPartition], which: int, *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        """Where logs begin (`EARLIEST`) or end (`LATEST`). Raises InputError, also when one of them is not told."""
        answers = self._list_offsets(partitions, which, timeout_ms)
        for answer in answers:
            if answer.error is not None:
                name = TopicPartition(answer.topic, answer.partition)
                raise self.unreachable_error(f"where {name} begins and ends is not told", KafkaException(answer.error))
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    def known_ends(self, partitions: Collection[TopicPartition], *, timeout_ms: int) -> dict[TopicPartition, int]:
        """Of the logs whose leaders answer. Raises InputError when none does."""
        answers = self._list_offsets(partitions, LATEST, timeout_ms)
        return {TopicPartition(told.topic, told.partition): told.offset for told in answers if told.error is None}

    def _find_leaders(self, topics: Set[str]) -> None:
        """librdkafka itself looks for the leaders of topics that it does not know once a second: for that long
        nothing would come at first. A broker that does not answer is told by what is assigned.
        """
        with suppress(KafkaException):
            for topic in topics - self._topics_with_leaders:
                self._consumer.list_topics(topic, timeout=_FIND_LEADERS_TIMEOUT_S)
                self._topics_with_leaders.add(topic)

    def _list_offsets(
        self, partitions: Collection[TopicPartition], which: int, timeout_ms: int
    ) -> list[KafkaPartition]:
        asked = [KafkaPartition(*partition, which) for partition in partitions]
        try:
            answers = self._query_consumer.offsets_for_times(asked, timeout=timeout_ms / 1000) if asked else []
        except KafkaException as error:
            self._poll_errors()
            raise self.unreachable_error("where its logs begin and end is not told", error) from error
        self._connection_error = None
        return answers

    def partition_count(self, topic: str, *, timeout_ms: int) -> int:
        """0 when there is no such topic. Raises InputError."""
        found = self._metadata(topic, timeout_ms).topics[topic]
        if found.error is not None and found.error.code() not in NO_TOPIC:
            raise self.unreachable_error(f"topic '{topic}' cannot be read", KafkaException(found.error))
        return len(found.partitions)

    def topics(self, *, timeout_ms: int) -> list[str]:
        """Names of all that may be seen, sorted; none of Kafka's own. Raises InputError."""
        return sorted(name for name in self._metadata(None, timeout_ms).topics if not name.startswith("__"))

    def unreachable_error(self, what: str, error: KafkaException | None = None) -> InputError:
        """To be raised for a server that does not answer, with what librdkafka last said about it."""
        reasons = [_text(error)] if error is not None else []
        if self._reason and self._reason not in reasons:
            reasons.append(self._reason)
        return InputError(
            f"{what}: {'; '.join(reasons)}" if reasons else what,
            where=f"Kafka at {self.server}",
            fix="Check that the broker runs and can be reached from here; a query that runs tries again by itself",
        )

    def take_connection_error(self) -> InputError | None:
        """Once for each time that librdkafka said that no server can be reached."""
        connection_error, self._connection_error = self._connection_error, None
        return None if connection_error is None else self.unreachable_error(connection_error)

    def close(self) -> None:
        """Needs no answer of the server."""
        self._consumer.close()
        if self._opened_query_consumer is not None:
            self._opened_query_consumer.close()

    @property
    def _query_consumer(self) -> Consumer:
        if self._opened_query_consumer is None:
            self._opened_query_consumer = _consumer(self._properties)
        return self._opened_query_consumer

    def _poll_errors(self) -> None:
        """Why nothing was answered: calls `_on_error`. It is assigned nothing, so that no record can come."""
        self._query_consumer.poll(0)

    def _metadata(self, topic: str | None, timeout_ms: int) -> ClusterMetadata:
        timeout_s = timeout_ms / 1000
        try:
            # A consumer asks about a topic without making it.
            found: ClusterMetadata = (
                self._query_consumer.list_topics(timeout=timeout_s)
                if topic is None
                else self._query_consumer.list_topics(topic, timeout=timeout_s)
            )
        except KafkaException as error:
            self._poll_errors()
            raise self.unreachable_error("its topics are not told", error) from error
        return found

    def _on_error(self, error: KafkaError) -> None:
        """Called within `poll`."""
        if error.code() == NO_BROKER:
            self._connection_error = "no broker can be reached"
            return
        self._reason = error.str()
        if error.code() in ACCESS_REFUSED:
            self._connection_error = "no broker lets us in"


def check_properties(properties: Mapping[str, str]) -> None:
    """Names, values, and files that they name; without servers, so that nothing is connected. Raises SettingsError."""
    _consumer(properties).close()


def _consumer(properties: Mapping[str, Any]) -> Consumer:
    try:
        return Consumer({**properties, "logger": _DebugLog()})
    except KafkaException as error:
        raise SettingsError(
            f"Kafka's client refuses its properties: {_text(error)}",
            where="options kafka and kafka.*",
            fix="They are librdkafka's (its CONFIGURATION.md), not the Java client's",
        ) from None


class _DebugLog:
    """librdkafka's own log. It says each reconnect as an error; what matters of it is in our errors."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        log.debug(text, *arguments, extra={"librdkafka_level": level})


def _text(error: KafkaException) -> str:
    return str(error.args[0].str())
