"""Kafka topics as an input: the configuration from which planner and executors create clients.

Properties go to librdkafka unchanged. Properties that decide where reading begins, what is committed to the broker, and
when a log has ended are set by this package; a user's value for them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_aligned.inputs.kafka_client import check_properties
from understudy_aligned.inputs.timestamps import TimestampRules
from understudy_aligned.inputs.topics_pattern import TopicsPattern
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked

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
    buffer_bytes: int | None = None
    """The planner's memory for records, from which it shares out what an answer brings of each partition."""

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
        """The bootstrap servers."""
        return self.servers

    @property
    def isolation_level(self) -> str:
        """The isolation level: with `read_committed` the records of aborted transactions do not exist."""
        return self.client_properties["isolation.level"].lower()

    @property
    def has_record_times_only(self) -> bool:
        """Whether columns are all that is wanted of records: neither headers nor times inside of values."""
        rules = [self.timestamp.default, *(rule for _, rule in self.timestamp.own)]
        return not self.include_headers and all(rule.is_record_time for rule in rules)

    @property
    def statistics_interval_ms(self) -> int:
        """The interval at which librdkafka says what it holds; 0: it does not."""
        return int(dict(self.properties).get(_STATISTICS_INTERVAL, _STATISTICS_INTERVAL_MS))

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The complete configuration of a librdkafka client.

        It makes no statistics: a client that is not polled all the time would keep them, without a bound.
        """
        given = dict(self.properties)
        waits = {"socket.timeout.ms": str(max(self.request_timeout_ms, 1_000)), _STATISTICS_INTERVAL: "0"}
        given.pop(_STATISTICS_INTERVAL, None)
        return {**_DEFAULTS, **waits, **given, **OWN_PROPERTIES, "bootstrap.servers": self.servers}
