"""Parses and checks the options of `format("understudy")` before anything is opened (pure, but for log warnings).

An option that is wrong by itself, or together with another one, raises a SettingsError that names it. Those that name
servers and topics become one configuration per server.

An input is imported only if it is configured: loading a client of Kafka or Redis takes half as long as loading the rest
of the source, and Spark loads the source in several processes of each query.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from understudy_aligned.batch_plan import NEVER_WAIT, UNBOUNDED
from understudy_aligned.inputs.kafka_topics import StartPositions, TopicsPattern
from understudy_aligned.inputs.protocol import InputConfig
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_aligned.options import (
    AlignedOptions,
    GivenOptions,
    Undecodable,
    check_timestamps,
    local_path,
    parse_choice,
    parse_timestamps,
    parse_whole,
)
from understudy_aligned.spark_kafka_options import (
    POSITIONS,
    SAME_AS,
    place_as_given,
    start_positions,
    with_our_names,
)
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.texts import renamed_option

log = logging.getLogger(__name__)

Merge = Literal["task", "global"]
Starting = Literal["earliest", "latest"]
AvailableNow = Literal["all", "ordered"]

NEW_BOUND, OLD_BOUND = "input_buffer_max_bytes", "buffered_records_per_partition"
NODES_CACHE = ("statestore_cache_max_bytes", "cache_max_bytes_buffering")


KAFKA_PROPERTIES = "kafka."
"""Prefix of options that go to librdkafka."""

KINDS = ("kafka", "redis")
REDIS_OPTIONS = ("partitions", "key_field", "value_field")
SUBSCRIPTIONS = ("topics", "topics_pattern", "assign")
"""Options that select what is read. A query has one of them."""

INPUT_OPTIONS = frozenset({*SUBSCRIPTIONS, *KINDS, *REDIS_OPTIONS})


def _with_inputs(options: GivenOptions, shared: AlignedOptions) -> AlignedOptions:
    """Add one configuration for each server that the options name, and the topics to read. Raises SettingsError.

    `shared` has the options that apply to every input.
    """
    servers = {kind: server for kind in KINDS if (server := options.text(kind)) is not None}
    _check_options_have_server(options, servers)
    _check_one_subscription(options, servers)
    if (text := options.text("topics_pattern")) is not None:
        pattern = TopicsPattern(text)
        config = _make_config("kafka", options, servers["kafka"], pattern, shared)
        return replace(shared, inputs=(config,), pattern=pattern)
    if (text := options.text("assign")) is not None:
        assigned = parse_assigned(text)
        topics = tuple(dict.fromkeys(tp.topic for tp in assigned))
        config = _make_config("kafka", options, servers["kafka"], topics, shared)
        kinds_of = ("kafka",) * len(topics)
        return replace(shared, inputs=(config,), topics=topics, kinds=kinds_of, assigned=frozenset(assigned))
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
    return replace(shared, inputs=inputs, topics=tuple(kinds), kinds=tuple(kinds.values()))


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
    """Raise SettingsError for two of SUBSCRIPTIONS, and for a pattern or partitions if not only Kafka is read."""
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


def _make_config(kind: str, options: GivenOptions, server: str, topics: Topics, shared: AlignedOptions) -> InputConfig:
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
            fix="Set kafka (bootstrap servers), redis (a URL), or both",
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

Make = Callable[[GivenOptions, str, Topics, AlignedOptions], InputConfig]


def _kafka(options: GivenOptions, server: str, topics: Topics, shared: AlignedOptions) -> InputConfig:
    from understudy_aligned.inputs.kafka_client import KafkaConfig  # noqa: PLC0415  # see above

    return KafkaConfig(
        servers=server,
        topics=topics,
        properties=tuple(sorted(options.below(KAFKA_PROPERTIES).items())),
        timestamp=shared.timestamp,
        include_headers=shared.include_headers,
        fail_on_data_loss=shared.fail_on_data_loss,
        request_timeout_ms=shared.request_timeout_ms,
        poll_timeout_ms=shared.poll_timeout_ms,
        buffer_bytes=shared.input_buffer_max_bytes,
    )


def _redis(options: GivenOptions, server: str, topics: tuple[str, ...], shared: AlignedOptions) -> InputConfig:
    from understudy_aligned.inputs.redis_streams import RedisConfig  # noqa: PLC0415  # see above

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


_MAKERS: Mapping[str, Make] = {"kafka": _kafka, "redis": _redis}


_OPTIONS = frozenset(
    {
        "available_now",
        "checkpoint",
        "fail_on_data_loss",
        "include_headers",
        "include_stream_time",
        "lag_max_age_ms",
        "max_drift_ms",
        "max_poll_records",
        "max_task_idle_ms",
        "max_timestamp_jump_ms",
        "max_trigger_delay_ms",
        "merge",
        "metrics_port",
        "min_poll_records",
        "poll_timeout_ms",
        "reader_tasks",
        "request_timeout_ms",
        "spool",
        "starting",
        "timestamp",
        "undecodable",
        "undecodable_path",
        NEW_BOUND,
        OLD_BOUND,
        *NODES_CACHE,
        *INPUT_OPTIONS,
        *POSITIONS,
        *(name for name in SAME_AS if not name.startswith(KAFKA_PROPERTIES)),
    }
)

_OFF = "off"
_DAY_MS = 86_400_000
_CENTURY_MS = 36_525 * _DAY_MS


def parse_options(given: Mapping[str, str]) -> AlignedOptions:
    """Parse the options. Raises SettingsError for a wrong value or combination. Does no I/O.

    Deprecated names log a warning (statement 61: an option is set if it was given, whatever its value).
    """
    try:
        return _parse(given)
    except SettingsError as error:
        where = place_as_given(error.where, given)
        raise SettingsError(error.what, where=where, fix=error.fix) from error.__cause__


def _parse(given: Mapping[str, str]) -> AlignedOptions:
    options = GivenOptions(with_our_names(given))
    options.refuse_unknown(_OPTIONS, prefix=KAFKA_PROPERTIES)
    default = AlignedOptions(inputs=(), topics=())
    timestamp = parse_timestamps(options.text("timestamp") or "record")
    available_now = options.choice("available_now", get_args(AvailableNow), default.available_now)
    max_bytes, max_records = _bounds(options, default)
    least, most = _batch_records(options, default)
    shared = replace(
        default,
        timestamp=timestamp,
        include_headers=options.flag("include_headers", default.include_headers),
        fail_on_data_loss=options.flag("fail_on_data_loss", default.fail_on_data_loss),
        request_timeout_ms=_or(options.whole("request_timeout_ms", least=1, most=_DAY_MS), default.request_timeout_ms),
        input_buffer_max_bytes=max_bytes,
    )
    parsed = _with_inputs(options, shared)
    named = parsed.pattern or parsed.topics
    check_timestamps(timestamp, named, dict(zip(parsed.topics, parsed.kinds, strict=True)))
    undecodable, topic_undecodable = _undecodables(options, timestamp, named)
    idle_ms, topic_idle_ms = options.by_topic("max_task_idle_ms", named, _idle_ms, default.max_task_idle_ms)
    every_idle_ms = [topic_idle_ms.get(topic, idle_ms) for topic in parsed.topics] or [idle_ms, *topic_idle_ms.values()]
    _check_order(options, every_idle_ms, available_now)
    return replace(
        parsed,
        merge=options.choice("merge", get_args(Merge), default.merge),
        starting=options.choice("starting", get_args(Starting), default.starting),
        start_positions=_start_positions(given, parsed),
        max_task_idle_ms=idle_ms,
        topic_idle_ms=topic_idle_ms,
        max_drift_ms=options.whole("max_drift_ms", least=0, most=_CENTURY_MS),
        available_now=available_now,
        max_poll_records=most,
        min_poll_records=least,
        max_trigger_delay_ms=_or(options.duration_ms("max_trigger_delay_ms"), default.max_trigger_delay_ms),
        buffered_records_per_partition=max_records,
        max_timestamp_jump_ms=options.whole("max_timestamp_jump_ms", least=1),
        undecodable=undecodable,
        topic_undecodable=topic_undecodable,
        undecodable_path=_undecodable_path(options, {undecodable, *topic_undecodable.values()}),
        poll_timeout_ms=_or(options.whole("poll_timeout_ms", least=1, most=_DAY_MS), default.poll_timeout_ms),
        lag_max_age_ms=_or(options.whole("lag_max_age_ms", least=1), default.lag_max_age_ms),
        reader_tasks=_or(options.whole("reader_tasks", least=1), default.reader_tasks),
        spool=_spool(options),
        checkpoint=None if (folder := options.text("checkpoint")) is None else local_path("checkpoint", folder),
        metrics_port=options.whole("metrics_port", least=0, most=65_535),
        include_stream_time=options.flag("include_stream_time", default.include_stream_time),
    )


def default_spool() -> Path | None:
    """Return this user's spool folder on this machine, shared by the planners and executors that run here.

    None, and one warning of the process, on a machine without a temporary folder.
    """
    try:
        return Path(tempfile.gettempdir()) / f"understudy-spool-{os.getuid()}"
    except FileNotFoundError as refusal:
        _warn_of_no_spool(str(refusal))
        return None


@cache
def _warn_of_no_spool(refusal: str) -> None:
    log.warning("batches are read twice (spool=off): %s. Set TMPDIR, or the option spool", refusal)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _idle_ms(name: str, value: str) -> int:
    """Kafka accepts any negative number and treats all but -1 as 0. Here the others are refused (statement 23)."""
    return parse_whole(name, value, least=0, also=NEVER_WAIT)


def _start_positions(given: Mapping[str, str], parsed: AlignedOptions) -> StartPositions | None:
    found = start_positions({name.lower(): value for name, value in given.items()})
    if found is None:
        return None
    if {config.kind for config in parsed.inputs} != {"kafka"}:
        raise SettingsError(
            "only a query that reads nothing but Kafka can begin at given positions",
            where=f"option {found.option}",
            fix="Use starting=earliest or starting=latest, or read the other inputs with a source of their own",
        )
    named_topics = found.topics()
    if named_topics is not None and parsed.pattern is None and named_topics != set(parsed.topics):
        wrong = sorted(named_topics ^ set(parsed.topics))
        raise SettingsError(
            f"{found.option} and the topics that are read do not agree about {', '.join(wrong)}",
            where=f"option {found.option}",
            fix="Give positions for exactly the topics that are read",
        )
    return found


def _check_order(options: GivenOptions, idle_ms: Collection[int], available_now: AvailableNow) -> None:
    """Refuse two options together if one keeps the order, and the other does not or is less strict."""
    is_bounded, is_ordered = "max_drift_ms" in options, available_now == "ordered"
    for name, other, is_refused in (
        ("available_now", "max_task_idle_ms", is_ordered and NEVER_WAIT in idle_ms),
        ("available_now", "max_drift_ms", is_ordered and is_bounded),
        ("max_drift_ms", "max_task_idle_ms", is_bounded and set(idle_ms) == {NEVER_WAIT}),
    ):
        if is_refused:
            raise SettingsError(
                f"{name} is '{options.text(name)}' and {other} is '{options.text(other)}': they cannot both hold",
                where=f"option {name}",
                fix="Leave one of them out",
            )


def _batch_records(options: GivenOptions, default: AlignedOptions) -> tuple[int, int]:
    """Return the least and the most records of a batch."""
    least = _or(options.whole("min_poll_records", least=1), default.min_poll_records)
    most = _or(options.whole("max_poll_records", least=1, also=UNBOUNDED), default.max_poll_records)
    if most != UNBOUNDED and least > most:
        raise SettingsError(
            f"a batch has {least} records at least (min_poll_records) and {most} at most (max_poll_records)",
            where="option min_poll_records",
            fix="Lower min_poll_records, or raise max_poll_records",
        )
    return least, most


def _bounds(options: GivenOptions, default: AlignedOptions) -> tuple[int, int | None]:
    """Return KIP-770's byte bound, set or default, and the deprecated record bound unless the byte bound is set."""
    max_bytes, max_records = options.size(NEW_BOUND), options.whole(OLD_BOUND, least=1)
    _, warning = renamed_option(NEW_BOUND, max_bytes, OLD_BOUND, max_records)
    if warning is not None:
        log.warning(warning)
    for name in NODES_CACHE:
        if options.size(name) is not None:
            log.warning("the source ignores %s: statestore_cache_max_bytes bounds the cache of a node", name)
    return _or(max_bytes, default.input_buffer_max_bytes), max_records if max_bytes is None else None


def _undecodables(
    options: GivenOptions, timestamp: TimestampRules, topics: Container[str]
) -> tuple[Undecodable, Mapping[str, Undecodable]]:
    """Return the treatment of poison records, for all and by topic: as set, else by the rule of their timestamps."""
    usual = {topic: _usual_treatment(rule) for topic, rule in timestamp.own}
    treatment, own = options.by_topic("undecodable", topics, _undecodable, _usual_treatment(timestamp.default))
    is_for_all = ":" not in (options.text("undecodable") or ":").partition(",")[0]
    return treatment, own if is_for_all else {**usual, **own}


def _usual_treatment(rule: TimestampRule) -> Undecodable:
    # A record without a timestamp of its own is normal. A missing field is more likely a misspelt option.
    return "keep" if rule.is_record_time else "fail"


def _undecodable(name: str, value: str) -> Undecodable:
    return parse_choice(name, value, get_args(Undecodable))


def _undecodable_path(options: GivenOptions, found: Collection[Undecodable]) -> Path | None:
    path = options.text("undecodable_path")
    if (path is not None) != ("aside" in found):
        raise SettingsError(
            f"undecodable is '{','.join(sorted(found))}' and undecodable_path is {'not ' if path is None else ''}set",
            where="option undecodable_path",
            fix="Set both undecodable=aside and undecodable_path, or neither",
        )
    return None if path is None else local_path("undecodable_path", path)


def _spool(options: GivenOptions) -> Path | None:
    given = options.text("spool")
    if given is None:
        return default_spool()
    return None if given.lower() == _OFF else local_path("spool", given)
