"""A Kafka cluster: its configuration, and two librdkafka consumers with deadlines, our errors, and logs off stderr.

One consumer is for records and one for queries. A broker answers the requests of one connection in order. On the same
connection a query would wait for the fetch under way, which itself waits for records. Neither consumer joins a group.
Rule: a query is one request to each broker, for any number of partitions.

Properties go to librdkafka unchanged. Properties that decide where reading begins, what is committed to the broker, and
when a log has ended are set by this package; a user's value for them is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ClusterMetadata

from understudy_aligned.inputs.kafka_native import LIBRARY, NativeRecords, native_library, open_native
from understudy_aligned.inputs.kafka_rows import Event, chunks_of, group_messages
from understudy_aligned.inputs.kafka_topics import StartPositions, TopicsPattern, cursor_at, cursor_at_time
from understudy_aligned.inputs.protocol import ClientQueue, InputError
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRules
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import HIDDEN, masked, masked_text

# ruff: noqa: SLF001


log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1
"""Special timestamps of ListOffsets. LATEST is the last stable offset with `read_committed`."""

_MAX_CONSUME = 1_000
"""Most messages per `consume` call. It holds the interpreter lock, and the planner's answers to Spark wait for that."""

_FIND_LEADERS_TIMEOUT_S = 1.0

_PLUGINS = "plugin.library.paths"

_LEAST_FETCH_BYTES, _MOST_FETCH_BYTES = 64 << 10, 1 << 20
"""Bounds on the bytes of a partition in one fetch response. Below the first, a response costs more than its records;
the second is Kafka's default. A larger batch of a log still comes whole.
"""

_SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|pem|jaas|oauthbearer|credential|sasl\.username")


Conversion = Callable[[Mapping[TopicPartition, Sequence[Message]]], Sequence[Chunk]]
"""A function that makes a chunk of the messages of each partition."""


END_OF_LOG = KafkaError._PARTITION_EOF
"""Not an error: a fetch reached the end of its partition (an end-of-partition event)."""

NO_BROKER = KafkaError._ALL_BROKERS_DOWN

ACCESS_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
"""Errors that another broker would give, too: wrong credentials, wrong host names."""

NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})

OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""The position is not in the log."""

IGNORED = frozenset({END_OF_LOG, KafkaError.GROUP_AUTHORIZATION_FAILED})
"""Errors that do not affect reading. The client looks up a group coordinator although it joins no group; some accounts
may not do that."""


def queue_of(statistics: str) -> ClientQueue:
    """Return the consumer's queue. Each partition reports the whole queue, because one queue has the records of all."""
    topics = orjson.loads(statistics)["topics"].values()
    queues = [
        ClientQueue(partition["fetchq_size"], partition["fetchq_cnt"])
        for topic in topics
        for partition in topic["partitions"].values()
    ]
    return max(queues, default=ClientQueue(0, 0))


Polled = tuple[Sequence[Chunk], Sequence[Event], int]
"""The result of one poll: chunks in log order, events, and the number of records and events."""


class KafkaClient:
    """The two consumers. Each starts connecting at its first use. Not thread-safe."""

    def __init__(
        self,
        server: str,
        properties: Mapping[str, str],
        *,
        statistics_interval_ms: int = 0,
        takes_natively: int = 0,
        buffer_bytes: int | None = None,
    ) -> None:
        """Prepare. With a statistics interval, `queue` becomes known. Statistics wait until messages are taken.

        `takes_natively` is the most records that one call of `records` takes without Python objects, if the library for
        that exists. `buffer_bytes` is the caller's memory for records, which all partitions share.
        """
        self.server = server
        self.queue: ClientQueue | None = None
        """The queue of the record consumer, by its last statistics. None before them."""
        self._connection_error: str | None = None
        self._reason = ""
        self._properties = {**properties, "error_cb": self._on_error}
        statistics = {"statistics.interval.ms": str(statistics_interval_ms), "stats_cb": self._on_statistics}
        self._record_properties = {**self._properties, **(statistics if statistics_interval_ms else {})}
        self._buffer_bytes = buffer_bytes
        self._takes_natively = takes_natively
        self._native: NativeRecords | None = None
        self._opened_record_consumer: Consumer | None = None
        self._opened_query_consumer: Consumer | None = None
        self._topics_with_leaders: set[str] = set()
        """Topics whose partition leaders the record consumer knows."""

    def messages(self, count: int, *, wait_s: float) -> list[Message]:
        """Return up to `count` records and events; wait for the first only (a plain `consume` waits for the last)."""
        first = self._consumer.poll(max(wait_s, 0))
        messages = [] if first is None else [first]
        while messages and (room := min(count - len(messages), _MAX_CONSUME)) > 0:
            found = self._consumer.consume(room, 0)
            messages += found
            if len(found) < room:
                break
        return messages

    def records(self, count: int, converted: Conversion, *, wait_s: float) -> Polled:
        """Return up to `count` records and events; wait for the first only."""
        # The consumer's own queue has the callbacks, and the records and events of partitions that are not forwarded.
        messages = self.messages(count, wait_s=wait_s if self._native is None else 0)
        records, events = group_messages(messages)
        chunks = list(converted(records))
        if self._native is None or (room := count - len(messages)) < 1:
            return chunks, events, len(messages)
        columns, more_events, total = self._native.take(room, wait_s=0 if messages else wait_s)
        chunks += chain.from_iterable(map(chunks_of, columns))
        return chunks, [*events, *more_events], len(messages) + total

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from these offsets."""
        if self._opened_record_consumer is None and self._buffer_bytes is not None:
            size = {"max.partition.fetch.bytes": str(partition_fetch_bytes(self._buffer_bytes, len(offsets)))}
            self._record_properties = {**size, **self._record_properties}
        self._find_leaders({partition.topic for partition in offsets})
        if self._native is not None:
            self._native.forward(offsets.keys())
        self._consumer.assign([KafkaPartition(*partition, offset) for partition, offset in offsets.items()])

    def unassign(self) -> None:
        """Stop reading, and drop what the client read ahead."""
        self._consumer.unassign()

    def drop_read_ahead(self) -> None:
        """Stop reading, drop what the client read ahead, and let it call back with the statistics that wait."""
        if self._opened_record_consumer is None:
            return
        self._consumer.unassign()
        self._consumer.poll(0)  # without partitions there are no records
        if self._native is not None:
            self._native.drop()
        self.queue = None if self.queue is None else ClientQueue(0, 0)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions, and drop what is read ahead. `resume` continues after the last returned record."""
        if paused := [KafkaPartition(*partition) for partition in partitions]:
            self._consumer.pause(paused)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        if resumed := [KafkaPartition(*partition) for partition in partitions]:
            self._consumer.resume(resumed)

    def offsets(
        self, partitions: Collection[TopicPartition], which: int, *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        """Return where logs begin (`EARLIEST`) or end (`LATEST`). Raises InputError if one answer is missing."""
        return self._all_offsets(dict.fromkeys(partitions, which), timeout_ms)

    def offsets_at(self, times_ms: Mapping[TopicPartition, int], *, timeout_ms: int) -> dict[TopicPartition, int]:
        """Find the first record of each partition that is not earlier than a time; partitions without one are left out.

        Raises InputError, also if the answer for one is missing.
        """
        found = self._all_offsets(times_ms, timeout_ms)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def known_ends(self, partitions: Collection[TopicPartition], *, timeout_ms: int) -> dict[TopicPartition, int]:
        """Return ends of the logs whose leaders answer. Raises InputError if no broker answers."""
        answers = self._list_offsets(dict.fromkeys(partitions, LATEST), timeout_ms)
        return {TopicPartition(end.topic, end.partition): end.offset for end in answers if end.error is None}

    def _find_leaders(self, topics: Set[str]) -> None:
        """Find the leaders of new topics at once: librdkafka itself looks only once a second, which would delay the
        first records. If no broker answers, reading the assigned partitions reports it.
        """
        with suppress(KafkaException):
            for topic in topics - self._topics_with_leaders:
                self._consumer.list_topics(topic, timeout=_FIND_LEADERS_TIMEOUT_S)
                self._topics_with_leaders.add(topic)

    def _all_offsets(self, times_ms: Mapping[TopicPartition, int], timeout_ms: int) -> dict[TopicPartition, int]:
        answers = self._list_offsets(times_ms, timeout_ms)
        for answer in answers:
            if answer.error is not None:
                name = TopicPartition(answer.topic, answer.partition)
                raise self.unreachable_error(
                    f"it did not say where {name} begins and ends", KafkaException(answer.error)
                )
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    def _list_offsets(self, times_ms: Mapping[TopicPartition, int], timeout_ms: int) -> list[KafkaPartition]:
        """Ask for offsets at times; `times_ms` may be EARLIEST or LATEST."""
        asked = [KafkaPartition(*partition, time_ms) for partition, time_ms in times_ms.items()]
        try:
            answers = self._query_consumer.offsets_for_times(asked, timeout=timeout_ms / 1000) if asked else []
        except KafkaException as error:
            self._poll_errors()
            raise self.unreachable_error("it did not say where its logs begin and end", error) from error
        self._connection_error = None
        return answers

    def partition_count(self, topic: str, *, timeout_ms: int) -> int:
        """Count the partitions of a topic, 0 if it does not exist. Raises InputError."""
        return self._count(topic, self._metadata(topic, timeout_ms))

    def partition_counts(self, pattern: TopicsPattern, *, timeout_ms: int) -> dict[str, int]:
        """Count the partitions of each topic that matches, by one request. Raises InputError."""
        found = self._metadata(None, timeout_ms)
        counts = {topic: self._count(topic, found) for topic in sorted(found.topics) if topic in pattern}
        return {topic: count for topic, count in counts.items() if count}

    def topics(self, *, timeout_ms: int) -> list[str]:
        """List the topics that this client may see, sorted, without Kafka's internal ones. Raises InputError."""
        return sorted(name for name in self._metadata(None, timeout_ms).topics if not name.startswith("__"))

    def unreachable_error(self, what: str, error: KafkaException | None = None) -> InputError:
        """Make the error for a cluster that does not answer, with librdkafka's last reason. The caller raises it."""
        reasons = [_text(error)] if error is not None else []
        if self._reason and self._reason not in reasons:
            reasons.append(self._reason)
        return InputError(
            f"{what}: {'; '.join(reasons)}" if reasons else what,
            where=f"Kafka at {masked(self.server)}",
            fix="Check that the broker runs and can be reached from here; a running query retries by itself",
        )

    def take_connection_error(self) -> InputError | None:
        """Return the error if librdkafka reported since the last call that no broker can be reached."""
        connection_error, self._connection_error = self._connection_error, None
        return None if connection_error is None else self.unreachable_error(connection_error)

    def close(self) -> None:
        """Close both consumers. Does not wait for the brokers."""
        if self._native is not None:
            self._native.close()
            self._native = None
        if self._opened_record_consumer is not None:
            self._opened_record_consumer.close()
        if self._opened_query_consumer is not None:
            self._opened_query_consumer.close()

    @property
    def _consumer(self) -> Consumer:
        if self._opened_record_consumer is None:
            self._opened_record_consumer, self._native = _record_consumer(
                self._record_properties, most=self._takes_natively
            )
        return self._opened_record_consumer

    @property
    def _query_consumer(self) -> Consumer:
        if self._opened_query_consumer is None:
            self._opened_query_consumer = _consumer(self._properties)
        return self._opened_query_consumer

    def _poll_errors(self) -> None:
        """Let librdkafka call `_on_error` with the reason. This consumer has no partitions, so no record is lost."""
        self._query_consumer.poll(0)

    def _count(self, topic: str, metadata: ClusterMetadata) -> int:
        found = metadata.topics[topic]
        if found.error is not None and found.error.code() not in NO_TOPIC:
            raise self.unreachable_error(f"topic '{topic}' cannot be read", KafkaException(found.error))
        return len(found.partitions)

    def _metadata(self, topic: str | None, timeout_ms: int) -> ClusterMetadata:
        timeout_s = timeout_ms / 1000
        try:
            # A consumer's metadata request does not create the topic.
            found: ClusterMetadata = (
                self._query_consumer.list_topics(timeout=timeout_s)
                if topic is None
                else self._query_consumer.list_topics(topic, timeout=timeout_s)
            )
        except KafkaException as error:
            self._poll_errors()
            raise self.unreachable_error("it did not list its topics", error) from error
        return found

    def _on_statistics(self, statistics: str) -> None:
        """Note what the record consumer holds. It calls this inside `poll` and `consume`."""
        self.queue = queue_of(statistics)

    def _on_error(self, error: KafkaError) -> None:
        """Note an error of librdkafka. It calls this inside `poll`."""
        if error.code() == NO_BROKER:
            self._connection_error = "no broker can be reached"
            return
        self._reason = error.str()
        if error.code() in ACCESS_REFUSED:
            self._connection_error = "the brokers refuse access"


def partition_fetch_bytes(buffer_bytes: int, partitions: int) -> int:
    """Return the most bytes of a partition in one fetch response, so that each has room for one before memory is full.

    A task gives records only once all of its partitions have some. If a few partitions filled the memory, the others
    would have no room.
    """
    return min(max(buffer_bytes // (2 * max(1, partitions)), _LEAST_FETCH_BYTES), _MOST_FETCH_BYTES)


def check_properties(properties: Mapping[str, str]) -> None:
    """Check property names and values, and the files they name. Connects to nothing. Raises SettingsError."""
    _consumer(properties).close()


def _record_consumer(properties: Mapping[str, Any], *, most: int) -> tuple[Consumer, NativeRecords | None]:
    """Make a consumer and, if possible, a reader that takes up to `most` of its records without Python objects."""
    library = native_library() if most else None
    if library is not None:
        plugins = ";".join(filter(None, [properties.get(_PLUGINS), str(LIBRARY)]))
        with suppress(SettingsError):  # a librdkafka without plugins; any other error is raised again below
            consumer = _consumer({**properties, _PLUGINS: plugins})
            return consumer, open_native(library, most=most)
    return _consumer(properties), None


def _consumer(properties: Mapping[str, Any]) -> Consumer:
    try:
        return Consumer({**properties, "logger": DebugLog()})
    except KafkaException as error:
        raise SettingsError(
            f"the Kafka client refuses its properties: {_safe_text(error, properties)}",
            where="options kafka and kafka.*",
            fix="Use librdkafka's properties (its CONFIGURATION.md), not the Java client's",
        ) from None


class DebugLog:
    """A handler that writes librdkafka's log to our debug log: it logs every reconnect as an error."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        log.debug(text, *arguments, extra={"librdkafka_level": level})


def _safe_text(error: KafkaException, properties: Mapping[str, Any]) -> str:
    """Return librdkafka's text without secrets: it repeats the value of a property, and a mistyped name."""
    text = _text(error)
    for name, value in properties.items():
        if _SECRET_NAME.search(name) and str(value):
            # Whole words only: a password such as "a" would hide letters of the words that say what is wrong.
            text = re.sub(rf"(?<!\w){re.escape(str(value))}(?!\w)", HIDDEN, text)
    return masked_text(text)


def _text(error: KafkaException) -> str:
    return str(error.args[0].str())


_STATISTICS_INTERVAL = "statistics.interval.ms"

OWN_PROPERTIES = {
    "group.id": "understudy",  # librdkafka requires one; no group is joined and nothing is committed
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",  # a lost position must be an error, never be replaced silently
    "allow.auto.create.topics": "false",
}

_REFUSED = frozenset(OWN_PROPERTIES) | {
    "bootstrap.servers",
    "metadata.broker.list",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "partition.assignment.strategy",
}

_DEFAULTS = {
    "client.id": "understudy",
    "isolation.level": "read_committed",
    # librdkafka's own read-ahead comes on top of the planner's bound (KIP-770) and is fetched again after a pause, so
    # keep it small. With a small queue its default backoff of a second would cost throughput, so that is small, too.
    "queued.max.messages.kbytes": "16384",
    "fetch.max.bytes": str(8 << 20),
    "fetch.queue.backoff.ms": "10",
    # A resumed partition waits for the fetch under way, so bound that fetch.
    "fetch.wait.max.ms": "100",
    # A client connects to its first broker only once per half of this: a query opens several clients before it reads.
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "1000",  # the default of 10 s reconnects long after the server is back
    "socket.keepalive.enable": "true",
}

_STATISTICS_INTERVAL_MS = 5_000

_SHOWN = frozenset({"isolation.level", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "client.id"})


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Topics of one Kafka cluster. `properties` are librdkafka's, by name. Raises SettingsError."""

    servers: str
    """Bootstrap servers, `host:port,host:port`."""

    topics: tuple[str, ...] | TopicsPattern
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timestamp: TimestampRules = field(default_factory=TimestampRules)
    include_headers: bool = False
    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000
    poll_timeout_ms: int = 120_000
    """Longest wait for the next record of a planned range, while its broker answers."""
    buffer_bytes: int | None = None
    """The planner's memory for records. It limits the bytes of each partition in one fetch response."""

    def __post_init__(self) -> None:
        """Check the properties. Unpickling does not call this: executors get a checked configuration."""
        for name, _ in self.properties:
            if name.lower() in _REFUSED:
                raise SettingsError(
                    f"'{name}' cannot be set: this source keeps its own positions",
                    where=f"option kafka.{name}",
                    fix="Remove the option",
                )
        if self.properties:
            check_properties({**dict(self.properties), **OWN_PROPERTIES})

    def __repr__(self) -> str:
        """Show property names but hide values, which may be secrets, except for a few that never are."""
        shown = [f"{name}={value if name in _SHOWN else '...'}" for name, value in self.properties]
        return f"KafkaConfig(servers={masked(self.servers)!r}, topics={self.topics!r}, properties=[{', '.join(shown)}])"

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def server(self) -> str:
        return self.servers

    @property
    def isolation_level(self) -> str:
        """The isolation level: with `read_committed` the records of aborted transactions do not exist."""
        return self.client_properties["isolation.level"].lower()

    @property
    def has_record_times_only(self) -> bool:
        """Whether records are needed as columns only: without headers, and with their own timestamps."""
        rules = [self.timestamp.default, *(rule for _, rule in self.timestamp.own)]
        return not self.include_headers and all(rule.is_record_time for rule in rules)

    @property
    def statistics_interval_ms(self) -> int:
        """The interval of librdkafka's statistics, which report its queue; 0: no statistics."""
        return int(dict(self.properties).get(_STATISTICS_INTERVAL, _STATISTICS_INTERVAL_MS))

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The complete configuration of a librdkafka client.

        It switches statistics off: a client that is not polled all the time would pile them up without a bound.
        """
        given = dict(self.properties)
        waits = {"socket.timeout.ms": str(max(self.request_timeout_ms, 1_000)), _STATISTICS_INTERVAL: "0"}
        given.pop(_STATISTICS_INTERVAL, None)
        return {**_DEFAULTS, **waits, **given, **OWN_PROPERTIES, "bootstrap.servers": self.servers}


def start_cursors(
    config: KafkaConfig, positions: StartPositions, partitions: Sequence[TopicPartition], *, timeout_ms: int
) -> Mapping[TopicPartition, Cursor]:
    """Return the cursor of each partition. Raises InputError, and SettingsError for positions that do not exist."""
    client = KafkaClient(config.server, config.client_properties)
    try:
        wanted = positions.of_partitions(partitions)
        ends = client.offsets(wanted, LATEST, timeout_ms=timeout_ms)
        if positions.offsets is not None:
            lows = client.offsets(wanted, EARLIEST, timeout_ms=timeout_ms)
            return {
                tp: cursor_at(tp, offset, low=lows[tp], end=ends[tp], option=positions.option)
                for tp, offset in wanted.items()
            }
        found = client.offsets_at(wanted, timeout_ms=timeout_ms)
        return {
            tp: cursor_at_time(tp, found.get(tp), time_ms=time_ms, end=ends[tp], positions=positions)
            for tp, time_ms in wanted.items()
        }
    finally:
        client.close()
