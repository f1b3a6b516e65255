"""Kafka topics as an input: what is needed to read them anywhere, checked where it is made.

Properties go to librdkafka as they are. Those that decide where reading begins, what is remembered on the broker and
when a log has ended are this package's own, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_pipeline.inputs.kafka_client import check_properties
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.errors import SettingsError

OWN_PROPERTIES = {
    "group.id": "understudy",  # the client asks for one; no group is joined and nothing is committed
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",  # a position that is gone must be told, never replaced
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
    # What librdkafka reads ahead comes on top of the planner's bound (KIP-770) and is fetched again after a pause, so
    # it is small; its pause of a second after its queue was full would then cost throughput.
    "queued.max.messages.kbytes": "16384",
    "fetch.max.bytes": str(8 << 20),
    "fetch.queue.backoff.ms": "10",
    # A partition that is resumed waits for the fetch under way: for at most this long.
    "fetch.wait.max.ms": "100",
    "reconnect.backoff.max.ms": "1000",  # 10 s by default, long after the server is back
    "socket.keepalive.enable": "true",
}

_SHOWN = frozenset({"isolation.level", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "client.id"})


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Topics of one cluster. `properties` are librdkafka's own, by name. Raises SettingsError."""

    servers: str
    """Bootstrap servers, `host:port,host:port`."""

    topics: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timestamp: TimestampRule = field(default_factory=TimestampRule)
    include_headers: bool = False
    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        """Not called by unpickling: executors take what was checked."""
        for name, _ in self.properties:
            if name.lower() in _REFUSED:
                raise SettingsError(
                    f"'{name}' cannot be chosen: this source keeps its own positions",
                    where=f"option kafka.{name}",
                    fix="Leave it out" if name.lower() != "bootstrap.servers" else "Use the option kafka",
                )
        if self.properties:
            check_properties({**dict(self.properties), **OWN_PROPERTIES})

    def __repr__(self) -> str:
        """Values of properties may be secrets: names alone, but for a few that are known not to be."""
        told = [f"{name}={value if name in _SHOWN else '...'}" for name, value in self.properties]
        return f"KafkaConfig(servers={self.servers!r}, topics={self.topics!r}, properties=[{', '.join(told)}])"

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def server(self) -> str:
        """The bootstrap servers."""
        return self.servers

    @property
    def client_properties(self) -> Mapping[str, str]:
        """All that a client is made of."""
        given = dict(self.properties)
        waits = {"socket.timeout.ms": str(max(self.request_timeout_ms, 1_000))}
        return {**_DEFAULTS, **waits, **given, **OWN_PROPERTIES, "bootstrap.servers": self.servers}
