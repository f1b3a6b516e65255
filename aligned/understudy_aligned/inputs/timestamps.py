"""The rules of the option `timestamp`: where a record's timestamp comes from. `time_reading` applies them."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

Encoding = Literal["json", "avro", "protobuf"]
Kind = Literal["record", "header", Encoding]

LEAST_TIME_MS = -62_135_596_800_000
END_TIME_MS = 253_402_300_800_000
"""The years 1 to 9999, the range of Spark's timestamps. A record outside it is a poison record."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """An Avro schema, or Protobuf descriptors and a message's name: what a decoder of values needs."""

    content: bytes = field(repr=False)
    message: str = ""
    is_framed: bool = False
    """Whether the schema registry's header stands before each value."""

    file: str = ""
    """The file from which it was read, as the option names it."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal digits."""
        return sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """The place from which the timestamps of a topic come.

    `record`: the input gives them (a Kafka record's own, the first half of a stream entry's ID). `header`: the last
    header of the name `place`. Otherwise `place` is a field of the value, or a JSON Pointer (RFC 6901) into it. What is
    there is milliseconds since the epoch, ISO 8601 (UTC if it names no zone), or a timestamp of the encoding.
    """

    kind: Kind = "record"
    place: str = ""
    schema: ValueSchema | None = None

    @property
    def is_record_time(self) -> bool:
        """Whether the input gives the timestamps."""
        return self.kind == "record"

    @property
    def text(self) -> str:
        """The rule without its schema: two with equal texts read the same field."""
        if self.is_record_time:
            return self.kind
        framed, message = "", ""
        if self.schema is not None:
            framed, message = "confluent-" * self.schema.is_framed, self.schema.message
        return f"{framed}{self.kind}:{message}{self.place}"


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """The rule of each topic: its own, or the one that all others have."""

    default: TimestampRule = field(default_factory=TimestampRule)
    own: tuple[tuple[str, TimestampRule], ...] = ()

    def of(self, topic: str) -> TimestampRule:
        """Return the rule of a topic."""
        return next((rule for name, rule in self.own if name == topic), self.default)

    @property
    def text(self) -> str:
        """The rules without their schemas: `record,weather:json:at`."""
        own = sorted((topic, rule.text) for topic, rule in self.own)
        return ",".join([self.default.text, *(f"{topic}:{text}" for topic, text in own if text != self.default.text)])
