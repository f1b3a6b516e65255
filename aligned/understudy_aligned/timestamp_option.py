"""Parses the option `timestamp`: a rule for all topics, and rules of topics that have their own.

    record   json:at   json:/reading/at   header:event-time   avro:weather.avsc#/at   protobuf:all.desc#demo.Weather/at

A topic's own stands behind it: `record,weather:json:at`. Schema files are read once, here: executors get their content.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

from understudy_aligned.inputs.time_reading import check_schema_of
from understudy_aligned.inputs.timestamps import Encoding, Kind, TimestampRule, TimestampRules, ValueSchema
from understudy_shared.base.errors import SettingsError

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


class _Entry(NamedTuple):
    """A rule as it is given; without `topic` it is that of all topics."""

    topic: str | None
    rule: str


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
    """Return the text of each rule in `TimestampRules.text`, by its topic; None is all others."""
    return dict(_entries(text))


def _entries(text: str) -> Iterator[_Entry]:
    for index, entry in enumerate(_NEXT.split(text.strip())):
        yield _entry(entry.strip(), may_be_for_all=index == 0)


def _entry(text: str, *, may_be_for_all: bool) -> _Entry:
    if may_be_for_all and re.match(_KINDS, text):
        return _Entry(None, text)
    own = _OWN.fullmatch(text)
    return _Entry(None, text) if own is None else _Entry(own["topic"], own["rule"])


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
