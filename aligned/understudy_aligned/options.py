"""The options of the source, and their single values: numbers, sizes, durations, timestamps, by topic or for all.

The option `timestamp` has a rule for all topics, and rules of topics that have their own:

    record   json:at   json:/reading/at   header:event-time   avro:weather.avsc#/at   protobuf:all.desc#demo.Weather/at

A topic's own rule follows its name: `record,weather:json:at`. Schema files are read once, here: executors get their
content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar, cast
from urllib.parse import unquote, urlsplit

from understudy_aligned.inputs.kafka_topics import StartPositions, TopicsPattern
from understudy_aligned.inputs.protocol import InputConfig
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.inputs.timestamps import (
    Encoding,
    Kind,
    TimestampRule,
    TimestampRules,
    ValueSchema,
    check_schema_of,
)
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.texts import BadSizeError, parse_size

T = TypeVar("T", bound=str)
V = TypeVar("V")

_DURATION = re.compile(r"([0-9]{1,18})([a-z]*)")
_UNITS_US = {
    "us": 1,
    **dict.fromkeys(("", "ms"), 1_000),
    "s": 1_000_000,
    **dict.fromkeys(("m", "min"), 60_000_000),
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
"""Microseconds of the units of Spark's durations."""

_FLAGS = {"true": True, "false": False}


class GivenOptions:
    """Option names ignore case, as Spark's do. Values are stripped. Every method may raise SettingsError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def refuse_unknown(self, known: Collection[str], *, prefix: str) -> None:
        """Raise SettingsError for a name that is not in `known` and does not begin with `prefix`."""
        for name in self._given:
            if name in known or (name.startswith(prefix) and name != prefix):
                continue
            near = get_close_matches(name, known, n=1)
            raise SettingsError(
                f"there is no option '{name}'",
                where="format understudy",
                fix=f"Did you mean '{near[0]}'?" if near else f"The options are: {', '.join(sorted(known))}, {prefix}*",
            )

    def below(self, prefix: str) -> dict[str, str]:
        """Return options whose name begins with `prefix`, by the rest of the name."""
        return {name.removeprefix(prefix): value for name, value in self._given.items() if name.startswith(prefix)}

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        if value == "":
            raise SettingsError("the value is empty", where=f"option {name}", fix="Give it a value, or leave it out")
        return value

    def whole(self, name: str, *, least: int, most: int | None = None, also: int | None = None) -> int | None:
        """Return a whole number from `least` to `most`, or `also`. None if the option is not set."""
        value = self.text(name)
        return None if value is None else parse_whole(name, value, least=least, most=most, also=also)

    def by_topic(
        self, name: str, topics: Container[str], parse: Callable[[str, str], V], default: V
    ) -> tuple[V, Mapping[str, V]]:
        """Return a value, and the values of topics that have their own: `5` or `5,weather:9` or `weather:9`."""
        found, own = default, dict[str, V]()
        entries = [entry.strip() for entry in (self.text(name) or "").split(",")] if name in self else []
        for index, entry in enumerate(entries):
            topic, colon, value = entry.rpartition(":")
            if not colon and index == 0:
                found = parse(name, value)
            elif colon and topic in topics and topic not in own:
                own[topic] = parse(name, value)
            else:
                what = "a topic a second time" if topic in topics else "no topic of this query"
                raise SettingsError(
                    f"'{entry}' names {what}",
                    where=f"option {name}",
                    fix="Write a value for all topics, and then others like 'weather:VALUE', each topic once",
                )
        return found, own

    def size(self, name: str) -> int | None:
        """Return a number of bytes, at least one: `512m`, `64MiB`, `1000000`. None if the option is not set."""
        value = self.text(name)
        if value is None:
            return None
        try:
            size = parse_size(value)
        except BadSizeError as bad:
            raise SettingsError(bad.what, where=f"option {name}", fix=bad.fix) from bad
        if size < 1:
            raise SettingsError(f"'{value}' is not a size of at least one byte", where=f"option {name}")
        return size

    def duration_ms(self, name: str) -> int | None:
        """Return milliseconds: `15m`, `30s`, `900000`, as Spark writes durations. None if the option is not set."""
        value = self.text(name)
        if value is None:
            return None
        found = _DURATION.fullmatch(value.lower())
        if found is None or found[2] not in _UNITS_US:
            raise SettingsError(
                f"'{value}' is not a duration", where=f"option {name}", fix="Write it like 30s, 15m, 2h or 900000 (ms)"
            )
        return int(found[1]) * _UNITS_US[found[2]] // 1000

    def choice(self, name: str, words: tuple[T, ...], default: T) -> T:
        """Return one of `words`; case does not matter."""
        return parse_choice(name, self.text(name) or default, words)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _FLAGS:
            raise SettingsError(f"'{value}' is neither true nor false", where=f"option {name}")
        return _FLAGS[value.lower()]


def parse_whole(name: str, value: str, *, least: int, most: int | None = None, also: int | None = None) -> int:
    """Parse a whole number from `least` to `most`, or `also`."""
    try:
        number = int(value)
    except ValueError:
        number = None
    if number is None or not (number == also or (number >= least and (most is None or number <= most))):
        raise SettingsError(f"'{value}' is not a {_range_text(least, most, also)}", where=f"option {name}")
    return number


def parse_choice(name: str, value: str, words: tuple[T, ...]) -> T:
    """Parse one of `words`; case does not matter."""
    for word in words:
        if value.lower() == word:
            return word
    raise SettingsError(f"'{value.lower()}' is not one of {', '.join(words)}", where=f"option {name}")


def _range_text(least: int, most: int | None, also: int | None) -> str:
    span = f"whole number of at least {least}" if most is None else f"whole number from {least} to {most}"
    return span if also is None else f"{span}, or {also}"


_KINDS = r"record|json:|header:|(?:confluent-)?(?:avro|protobuf):"
_NEXT = re.compile(rf",\s*(?=[^,]+?:(?:{_KINDS}))")
"""The comma before a topic's own rule. Names of fields may have commas, too."""

_OWN = re.compile(rf"(?P<topic>.+?):(?P<rule>(?:{_KINDS}).*)", re.DOTALL)
_WHERE = "option timestamp"


def local_path(name: str, text: str) -> Path:
    """Return the absolute path for a path or a `file:` URI. Raises SettingsError for any other URI."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return Path(unquote(parts.path)).absolute()
    if parts.scheme and "://" in text:
        raise SettingsError(
            f"'{text}' is not a folder of this machine", where=f"option {name}", fix="Give a path or a file: URI"
        )
    return Path(text).absolute()


def parse_timestamps(text: str) -> TimestampRules:
    """Parse the option's value, and read the schemas that it names. Raises SettingsError."""
    default, own = TimestampRule(), dict[str, TimestampRule]()
    for topic, rule in _entries(text):
        if topic is None:
            default = _parse_rule(rule)
        elif topic in own:
            raise SettingsError(f"'{topic}' has two rules", where=_WHERE, fix="Name each topic once")
        else:
            own[topic] = _parse_rule(rule)
    return TimestampRules(default, tuple(sorted(own.items(), key=lambda each: each[0])))


def check_timestamps(rules: TimestampRules, named: Container[str], kinds: Mapping[str, str]) -> None:
    """Raise SettingsError for rules of topics that are not `named`, and for headers of inputs without them.

    `kinds` has the input kind of each topic; a pattern names topics of Kafka only.
    """
    unread = [topic for topic, _ in rules.own if topic not in named]
    if unread:
        raise SettingsError(
            f"a rule is for the topic '{unread[0]}', which this query does not read",
            where=_WHERE,
            fix="Leave that rule out, or read the topic",
        )
    for topic, kind in kinds.items():
        if rules.of(topic).kind == "header" and kind != "kafka":
            raise SettingsError(
                f"records of '{topic}' come from {kind} and have no headers",
                where=_WHERE,
                fix=f"Give the topic a rule of its own, like {topic}:json:at",
            )


def rule_texts(text: str) -> Mapping[str | None, str]:
    """Return the text of each rule in `TimestampRules.text` by its topic; None stands for all other topics."""
    return dict(_entries(text))


def _entries(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the topic and the text of each rule; None is the topic of the rule for all."""
    for index, entry in enumerate(_NEXT.split(text.strip())):
        is_for_all = index == 0 and re.match(_KINDS, entry.strip())
        own = None if is_for_all else _OWN.fullmatch(entry.strip())
        yield (None, entry.strip()) if own is None else (own["topic"], own["rule"])


def _parse_rule(text: str) -> TimestampRule:
    kind, _, place = text.partition(":")
    match kind.removeprefix("confluent-"):
        case "record" if text == kind:
            return TimestampRule()
        case "json" | "header" if place and text.startswith(("json", "header")):
            return TimestampRule(cast("Kind", kind), place)
        case "avro" | "protobuf" as encoding if "#" in place:
            return _with_schema(cast("Encoding", encoding), place, is_framed=kind != encoding)
    raise SettingsError(
        f"'{text}' is not a rule for timestamps",
        where=_WHERE,
        fix="Use 'record' for the time that the input gives, 'json:<field>' or 'json:/<field>/<field>' for a field of "
        "the value, 'header:<name>', 'avro:<schema file>#/<field>' or 'protobuf:<descriptor file>#<message>/<field>'",
    )


def _with_schema(encoding: Encoding, place: str, *, is_framed: bool) -> TimestampRule:
    """Make the rule of `<file>#<message>/<field>`; Avro needs no message's name."""
    file, _, fragment = place.partition("#")
    message, _, pointer = fragment.partition("/")
    if not pointer or bool(message) != (encoding == "protobuf"):
        shape = "<file>#<message>/<field>" if encoding == "protobuf" else "<file>#/<field>"
        raise SettingsError(f"'{place}' does not look like {shape}", where=_WHERE)
    try:
        content = local_path("timestamp", file).read_bytes()
    except OSError as error:
        raise SettingsError(
            f"the schema {file} cannot be read: {error.strerror}", where=_WHERE, fix="Name a file of this machine"
        ) from error
    rule = TimestampRule(encoding, f"/{pointer}", ValueSchema(content, message, is_framed, file))
    check_schema_of(rule)
    return rule


MIB = 1 << 20

Undecodable = Literal["keep", "fail", "skip", "aside", "partition-time"]


@dataclass(frozen=True, slots=True)
class AlignedOptions:
    """Options of `spark.readStream.format("understudy")`; sizes in bytes, times in milliseconds."""

    inputs: tuple[InputConfig, ...]
    """One configuration per server. Together they name every topic once."""

    topics: tuple[str, ...]
    """In the order of the option, which breaks ties: of records with equal times, the earlier topic's comes first."""

    kinds: tuple[str, ...] = ()
    """The input of each topic: `kafka` or `redis`. Each kind has its own form of offsets."""

    pattern: TopicsPattern | None = None
    """Kafka topics that are found while the query runs. `topics` and `kinds` are empty then."""

    assigned: frozenset[TopicPartition] | None = None
    """The only partitions of `topics` that are read. None: all of them."""

    merge: Literal["task", "global"] = "task"
    """`task` merges partition p of every topic, for each p. `global` merges all partitions together."""

    starting: Literal["earliest", "latest"] = "earliest"
    """The beginning of a new checkpoint. Partitions that appear later are read from their beginning."""

    start_positions: StartPositions | None = None
    """The beginning of Kafka partitions in a new checkpoint, instead of `starting`."""

    max_task_idle_ms: int = 0
    """KIP-353/695. -1: never wait for an empty input. 0: wait for records that exist. More: wait for new ones too."""

    topic_idle_ms: Mapping[str, int] = field(default_factory=dict)
    """Idle times of topics that have their own."""

    max_drift_ms: int | None = None
    """Flink's watermark alignment. Longest time by which a record may be ahead of the slowest input. None: an empty
    input blocks its task instead.
    """

    max_poll_records: int = -1
    """KIP-41. Most records of a micro-batch; -1: no bound but memory."""

    min_poll_records: int = 1
    """Least records of a micro-batch: one with fewer is put off."""

    max_trigger_delay_ms: int = 900_000
    """Longest time since the last micro-batch for which one with too few records is put off."""

    input_buffer_max_bytes: int = 512 * MIB
    """KIP-770. Most bytes of records that are fetched and in no batch, over all tasks. A soft bound."""

    buffered_records_per_partition: int | None = None
    """Deprecated: pauses a partition that holds more records than this. Used when no byte bound was given."""

    timestamp: TimestampRules = field(default_factory=TimestampRules)
    max_timestamp_jump_ms: int | None = None
    """Largest step by which one record may advance its partition's time. None: no bound."""

    undecodable: Undecodable = "fail"
    """The treatment of a record without a usable timestamp: deliver it without one, end the query, skip it, write it to
    `undecodable_path`, or give it its partition's time.
    """

    topic_undecodable: Mapping[str, Undecodable] = field(default_factory=dict)
    """The treatment in topics that have their own."""

    undecodable_path: Path | None = None
    available_now: Literal["all", "ordered"] = "all"
    """The end of the trigger AvailableNow: the current ends of all inputs, or the point up to which no later record can
    come before a delivered one.
    """

    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000
    """Longest wait for one answer. A server that takes longer counts as unreachable."""

    poll_timeout_ms: int = 120_000
    """Time for which a Spark task waits for the next record of a planned batch, over all attempts. Then it fails."""

    lag_max_age_ms: int = 5_000
    """Longest time that an answer about a partition's end is used. After it the lag is unknown."""

    reader_tasks: int = 2
    """Most Spark tasks that read a batch."""

    spool: Path | None = None
    """A folder for the records of the planned batch. Executors on this machine map it instead of reading the input."""

    checkpoint: Path | None = None
    """The query's checkpoint folder, which is locked against a second query."""

    metrics_port: int | None = None
    """Port for the planner's Prometheus metrics. 0: any free port."""

    include_headers: bool = False
    include_stream_time: bool = False

    def undecodable_of(self, topic: str) -> Undecodable:
        """Return the treatment of a topic's records without a usable timestamp."""
        return self.topic_undecodable.get(topic, self.undecodable)

    def partitions(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """List the partitions to read of topics with these partition counts, in the order of `counts`."""
        every = (TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
        return [tp for tp in every if self.assigned is None or tp in self.assigned]

    @property
    def read_limit(self) -> tuple[Literal["rows", "bytes"], int]:
        """The bound of a batch for Spark: `max_poll_records`, else memory."""
        if self.max_poll_records > 0:
            return "rows", self.max_poll_records
        return "bytes", self.input_buffer_max_bytes

    @property
    def long_offsets(self) -> bool:
        """Whether the column `offset` is a number: every topic is Kafka's."""
        return self.pattern is not None or set(self.kinds) == {"kafka"}
