"""Parses the options that name servers and topics into one configuration per server (pure).

An input is imported only if it is configured: loading a client of Kafka or Redis takes half as long as loading the rest
of the source, and Spark loads the source in several processes of each query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from understudy_pipeline.aligned.option_values import GivenOptions
from understudy_pipeline.aligned.paths import local_path
from understudy_pipeline.inputs.protocol import InputConfig
from understudy_pipeline.inputs.records import TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRules
from understudy_pipeline.inputs.topics_pattern import TopicsPattern
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

KAFKA_PROPERTIES = "kafka."
"""Prefix of options that go to librdkafka."""

KINDS = ("kafka", "redis", "files")
REDIS_OPTIONS = ("partitions", "key_field", "value_field")
SUBSCRIPTIONS = ("topics", "topics_pattern", "assign")
"""Options that say what is read. A query has one of them."""

INPUT_OPTIONS = frozenset({*SUBSCRIPTIONS, *KINDS, *REDIS_OPTIONS})


class ParsedInputs(NamedTuple):
    """`kinds` has the input kind of each topic in `topics`, which are empty with a pattern."""

    inputs: tuple[InputConfig, ...]
    topics: tuple[str, ...]
    kinds: tuple[str, ...]
    pattern: TopicsPattern | None = None
    assigned: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Options that apply to every input."""

    timestamp: TimestampRules
    include_headers: bool
    fail_on_data_loss: bool
    request_timeout_ms: int


def parse_inputs(options: GivenOptions, shared: SharedOptions) -> ParsedInputs:
    """Make one configuration per server that the options name. Raises SettingsError."""
    servers = {kind: server for kind in KINDS if (server := options.text(kind)) is not None}
    _check_options_have_server(options, servers)
    _check_one_subscription(options, servers)
    if (text := options.text("topics_pattern")) is not None:
        pattern = TopicsPattern(text)
        return ParsedInputs((_make_config("kafka", options, servers["kafka"], pattern, shared),), (), (), pattern)
    if (text := options.text("assign")) is not None:
        assigned = parse_assigned(text)
        topics = tuple(dict.fromkeys(tp.topic for tp in assigned))
        config = _make_config("kafka", options, servers["kafka"], topics, shared)
        return ParsedInputs((config,), topics, ("kafka",) * len(topics), assigned=frozenset(assigned))
    kinds = _topic_kinds(options.text("topics"), servers)
    idle = [kind for kind in servers if kind not in kinds.values()]
    if idle:
        raise SettingsError(
            f"no topic comes from '{idle[0]}'",
            where=f"option {idle[0]}",
            fix=f"Leave the option out, or name a topic of it, like {idle[0]}:<topic>",
        )
    inputs = tuple(
        _make_config(kind, options, servers[kind], tuple(topic for topic, of in kinds.items() if of == kind), shared)
        for kind in dict.fromkeys(kinds.values())
    )
    return ParsedInputs(inputs, tuple(kinds), tuple(kinds.values()))


def parse_assigned(text: str) -> list[TopicPartition]:
    """Parse `{"flights":[0,2]}`: the partitions that are read, in the order of the topics. Raises SettingsError."""
    try:
        found = orjson.loads(text)
        pairs = [(topic, partition) for topic, partitions in found.items() for partition in partitions]
    except (ValueError, AttributeError, TypeError):
        pairs = []
    if (
        not pairs
        or not all(map(all, found.items()))
        or any(type(number) is not int or number < 0 for _, number in pairs)
    ):
        raise SettingsError(
            f"'{text}' does not give each topic its partitions",
            where="option assign",
            fix='Write JSON like {"weather":[0,2],"flights":[0,2]}; partitions are numbered from 0',
        )
    return [TopicPartition(topic, number) for topic, number in pairs]


def _check_one_subscription(options: GivenOptions, servers: Mapping[str, str]) -> None:
    """Raise SettingsError for two options that say what is read, and for a pattern or partitions of another input."""
    first, *others = [name for name in SUBSCRIPTIONS if name in options] or ["topics"]
    if others:
        raise SettingsError(
            f"{first} and {others[0]} both say what is read",
            where=f"option {others[0]}",
            fix=f"Set one of {', '.join(SUBSCRIPTIONS)}",
        )
    if first != "topics" and set(servers) != {"kafka"}:
        raise SettingsError(
            f"{first} is for a query that reads nothing but Kafka, and {', '.join(servers)} is set",
            where=f"option {first}",
            fix="Name what is read with the option topics, like topics=kafka:flights,redis:weather",
        )


def _make_config(kind: str, options: GivenOptions, server: str, topics: Topics, shared: SharedOptions) -> InputConfig:
    try:
        return _MAKERS[kind](options, server, topics, shared)
    except ImportError as error:
        raise SettingsError(
            f"the input '{kind}' needs a package that is not installed: {error}",
            where=f"option {kind}",
            fix=install_fix("pipeline"),
        ) from error


def _check_options_have_server(options: GivenOptions, servers: Mapping[str, str]) -> None:
    if not servers:
        raise SettingsError(
            "no input is given",
            where="format understudy",
            fix="Set at least one of kafka (bootstrap servers), redis (a URL) and files (a folder)",
        )
    of = {"kafka": [KAFKA_PROPERTIES + name for name in options.below(KAFKA_PROPERTIES)], "redis": REDIS_OPTIONS}
    for kind, names in of.items():
        for name in names:
            if name in options and kind not in servers:
                raise SettingsError(
                    f"{name} is set and {kind} is not", where=f"option {name}", fix=f"Set {kind}, or leave {name} out"
                )


def _topic_kinds(text: str | None, servers: Mapping[str, str]) -> dict[str, str]:
    """Return the input kind of each topic, in the order of the option `topics`."""
    where = "option topics"
    if text is None:
        raise SettingsError(
            "no topics are given",
            where=where,
            fix="List them, like 'weather,flights'; of Kafka also with topics_pattern or assign",
        )
    kinds: dict[str, str] = {}
    for entry in text.split(","):
        kind, topic = _split(entry.strip(), servers, where)
        if not topic:
            raise SettingsError(f"'{text}' has a topic without a name", where=where)
        if topic in kinds:
            raise SettingsError(f"the topic '{topic}' is there twice", where=where, fix="Name each topic once")
        kinds[topic] = kind
    return kinds


def _split(entry: str, servers: Mapping[str, str], where: str) -> tuple[str, str]:
    kind, colon, topic = entry.partition(":")
    if not colon or kind not in KINDS:
        if len(servers) == 1:
            return next(iter(servers)), entry
        raise SettingsError(
            f"the topic '{entry}' does not name its input, and there are several inputs",
            where=where,
            fix=f"Write {' or '.join(f'{kind}:{entry}' for kind in servers)}",
        )
    if kind not in servers:
        raise SettingsError(f"'{entry}' comes from {kind}, which is not set", where=where, fix=f"Set the option {kind}")
    return kind, topic


Topics = Any
"""Names, or for Kafka a `TopicsPattern`."""

Make = Callable[[GivenOptions, str, Topics, SharedOptions], InputConfig]


def _kafka(options: GivenOptions, server: str, topics: Topics, shared: SharedOptions) -> InputConfig:
    from understudy_pipeline.inputs.kafka_config import KafkaConfig  # noqa: PLC0415  # see above

    return KafkaConfig(
        servers=server,
        topics=topics,
        properties=tuple(sorted(options.below(KAFKA_PROPERTIES).items())),
        timestamp=shared.timestamp,
        include_headers=shared.include_headers,
        fail_on_data_loss=shared.fail_on_data_loss,
        request_timeout_ms=shared.request_timeout_ms,
    )


def _redis(options: GivenOptions, server: str, topics: tuple[str, ...], shared: SharedOptions) -> InputConfig:
    from understudy_pipeline.inputs.redis_streams import RedisConfig  # noqa: PLC0415  # see above

    default = RedisConfig.__dataclass_fields__
    return RedisConfig(
        url=server,
        topics=topics,
        partitions=options.whole("partitions", least=1),
        key_field=options.text("key_field") or str(default["key_field"].default),
        value_field=options.text("value_field") or str(default["value_field"].default),
        timestamp=shared.timestamp,
        fail_on_data_loss=shared.fail_on_data_loss,
        request_timeout_ms=shared.request_timeout_ms,
    )


def _files(_: GivenOptions, server: str, topics: tuple[str, ...], shared: SharedOptions) -> InputConfig:
    from understudy_pipeline.inputs.files import FilesConfig  # noqa: PLC0415  # see above

    return FilesConfig(
        root=local_path("files", server),
        topics=topics,
        timestamp=shared.timestamp,
        fail_on_data_loss=shared.fail_on_data_loss,
    )


_MAKERS: Mapping[str, Make] = {"kafka": _kafka, "redis": _redis, "files": _files}
