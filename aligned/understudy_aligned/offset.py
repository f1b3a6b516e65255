"""The source's offset: everything that the next batch depends on, as JSON in Spark's write-ahead log (pure).

Its fingerprint has the options that decide what records are and how they are ordered. They are fixed for a checkpoint's
life. With a pattern, it also keeps the topics that were found, in the order in which they were found. That order breaks
ties, as the order of the option `topics` does in other queries. In both cases topics are only appended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeVar, get_args

from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions, Undecodable, rule_texts
from understudy_shared.base.errors import UnderstudyError

FORMAT = 1

T = TypeVar("T")

_SHOWN = 120
"""Characters of another source's offset that a message shows."""

_COUNTS = ("ring", "batches", "records", "bytes", "enforced", "undecodable")


class OffsetError(UnderstudyError):
    """The checkpoint belongs to another source, or to this source with other options."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A position between two batches. Two offsets with equal cursors are the same position."""

    fingerprint: Mapping[str, object]
    """The options that decide the order; a checkpoint is refused when they changed."""

    cursors: Mapping[TopicPartition, Cursor] = field(default_factory=dict)
    """A partition without a cursor is read from its beginning."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics that the cursors belong to, if they have ids: a topic created again has a new one."""

    stream_time_ms: int = NO_TIME_MS
    """The least partition time of the inputs that count. It never decreases."""

    ring: int = 0
    """The task that has its turn first (KIP-41)."""

    batches: int = 0
    """Batches since the checkpoint began. So it is the number of the batch that ended here, the first field of
    `merge_order`."""

    records: int = 0
    """Records of the batch that ended here."""

    records_of: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same for each partition in the batch. Without records it is not logged."""

    bytes: int = 0
    """Bytes of the batch that ended here, as KIP-770 counts them."""

    enforced: int = 0
    """Records that were taken while an input of their task was empty, since the checkpoint began."""

    undecodable: int = 0
    """Poison records since the checkpoint began."""

    begins: Mapping[TopicPartition, Cursor] | None = None
    """The beginning of the first batch, in the end of that batch only. Spark does not log it: until that batch is
    committed, it asks again at each restart where a new checkpoint begins."""

    @property
    def read_topics(self) -> frozenset[str]:
        """The topics that may have had records in a batch: those with a position, once there was a batch."""
        return frozenset(tp.topic for tp, cursor in self.cursors.items() if self.batches and cursor != Cursor())

    def to_json(self) -> dict[str, object]:
        """Write JSON for Spark's log. A cursor is `[offset, ordinal, time_ms]`, by topic and partition; no time yet is
        null.

        Equal offsets give equal text, whatever the order of their cursors.
        """
        begins = {} if self.begins is None else {"begins": _cursors_json(self.begins)}
        records_of = {"records_of": _by_topic(self.records_of)} if self.records_of else {}
        counts = {name: getattr(self, name) for name in _COUNTS}
        reached = {} if self.stream_time_ms == NO_TIME_MS else {"stream_time_ms": self.stream_time_ms}
        ids = {"topic_ids": dict(sorted(self.topic_ids.items()))} if self.topic_ids else {}
        begin = {"understudy": FORMAT, "fingerprint": dict(self.fingerprint), "at": _cursors_json(self.cursors)}
        return {**begin, **begins, **counts, **records_of, **ids, **reached}

    @classmethod
    def from_json(cls, found: object) -> SourceOffset:
        """Parse the JSON of `to_json`. For other JSON raise OffsetError, which names the source that it looks like."""
        if not isinstance(found, dict) or found.get("understudy") != FORMAT:
            raise OffsetError(
                f"the checkpoint holds {_looks_like(found)}, not an offset of the source 'understudy'",
                where=repr(found)[:_SHOWN],
                fix="Give this query a checkpointLocation of its own",
            )
        try:
            return cls(
                fingerprint=found["fingerprint"],
                cursors=_cursors(found["at"]),
                begins=_cursors(found["begins"]) if "begins" in found else None,
                records_of={place: int(count) for place, count in _by_place(found.get("records_of", {}))},
                topic_ids={topic: str(each) for topic, each in found.get("topic_ids", {}).items()},
                stream_time_ms=int(found.get("stream_time_ms", NO_TIME_MS)),
                **{name: int(found[name]) for name in _COUNTS},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as damage:
            raise OffsetError(
                "an offset of the source 'understudy' in the checkpoint is damaged",
                where=repr(found)[:_SHOWN],
                fix="Put the folder 'offsets' of the checkpoint back as Spark wrote it",
            ) from damage


def _cursors_json(cursors: Mapping[TopicPartition, Cursor]) -> Mapping[str, object]:
    return _by_topic(
        {
            place: [cursor.offset, cursor.ordinal, None if cursor.time_ms == NO_TIME_MS else cursor.time_ms]
            for place, cursor in cursors.items()
        }
    )


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for place, value in sorted(values.items(), key=itemgetter(0)):
        found.setdefault(place.topic, {})[str(place.partition)] = value
    return found


def _by_place(values: Mapping[str, Mapping[str, T]]) -> Iterator[tuple[TopicPartition, T]]:
    for topic, partitions in values.items():
        for partition, value in partitions.items():
            yield TopicPartition(topic, int(partition)), value


def _cursors(found: Mapping[str, Mapping[str, Iterable[Any]]]) -> dict[TopicPartition, Cursor]:
    return {place: _cursor(*cursor) for place, cursor in _by_place(found)}


def _cursor(offset: str, ordinal: int, time_ms: int | None) -> Cursor:
    return Cursor(str(offset), int(ordinal), NO_TIME_MS if time_ms is None else int(time_ms))


def _looks_like(found: object) -> str:
    match found:
        case {"understudy": version}:
            return f"an offset of another release (format {version}, this one reads {FORMAT})"
        case {"logOffset": _}:
            return "an offset of a file source"
        case {**topics} if topics and all(_counts_by_partition(partitions) for partitions in topics.values()):
            return "what looks like an offset of Spark's Kafka source"
        case _:
            return "an offset of some other source"


def _counts_by_partition(found: object) -> bool:
    return isinstance(found, dict) and all(key.isdigit() and isinstance(at, int) for key, at in found.items())


TOPICS = "topics"
_OF_INPUTS = {"key_field": "key_field", "value_field": "value_field", "kafka.isolation.level": "isolation_level"}
"""Options that only one kind of input has: the attribute of the input's configuration, by the option's name. They are
fixed from when the query has such an input: it may be added to a query later."""

_TIMESTAMP, _UNDECODABLE, _SCHEMAS = "timestamp", "undecodable", "timestamp_schemas"
_BY_REPLAY = (_UNDECODABLE, _SCHEMAS)
"""The values that may change between two batches, and not between a logged batch and its replay: `check_replay`."""

_POISON_ROWS = {each: each for each in get_args(Undecodable)} | {"aside": "skip"}
"""The kind of a batch's rows, by the value of `undecodable`."""


def fingerprint(options: AlignedOptions) -> dict[str, object]:
    """Return values by option name, for the offset's JSON.

    Bounds, timeouts and servers may change: they decide where batches end, not which records there are nor their order.
    `undecodable` may change between two batches: otherwise a query that failed on a poison record could never continue.
    So may the content of a schema file, of which this has the hash: schemas grow.
    """
    kinds = options.kinds or ("",) * len(options.topics)
    return {
        TOPICS: [f"{kind}:{topic}".removeprefix(":") for kind, topic in zip(kinds, options.topics, strict=True)],
        "merge": options.merge,
        _TIMESTAMP: options.timestamp.text,
        "max_timestamp_jump_ms": options.max_timestamp_jump_ms,
        **{name: _of_inputs(options, attribute) for name, attribute in _OF_INPUTS.items()},
        _UNDECODABLE: _poison_rows(options),
        **_schemas(options),
    }


def _schemas(options: AlignedOptions) -> Mapping[str, object]:
    """Return the file and the hash of each topic's schema, `""` for topics without a rule of their own."""
    rules = {"": options.timestamp.default, **dict(options.timestamp.own)}
    files = {topic: rule.schema and [rule.schema.file, rule.schema.digest] for topic, rule in rules.items()}
    return {_SCHEMAS: files} if any(files.values()) else {}


def _poison_rows(options: AlignedOptions) -> str:
    """Return the kind of rows for all topics, then the topics that have another one: `skip,weather:keep`."""
    default = _POISON_ROWS[options.undecodable]
    own = {topic: _POISON_ROWS[each] for topic, each in options.topic_undecodable.items()}
    return ",".join([default, *(f"{topic}:{each}" for topic, each in sorted(own.items()) if each != default)])


def _of_inputs(options: AlignedOptions, attribute: str) -> str | None:
    """Return the option's value in the one input that has it. None if that input is not configured."""
    return next((getattr(config, attribute) for config in options.inputs if hasattr(config, attribute)), None)


def check_fingerprint(
    saved: Mapping[str, object], now: Mapping[str, object], read: Collection[str] | None = None
) -> None:
    """Raise OffsetError if an option changed. It names the option, its old and its new value.

    Topics may be appended, and topics that are not in `read` may get other timestamps. None: all topics are read.
    """
    for name in now:
        old, new = saved.get(name), now[name]
        if old == new or (name == TOPICS and _only_appended(old, new)) or (name in _OF_INPUTS and old is None):
            continue
        if name in _BY_REPLAY:
            continue
        if name == _TIMESTAMP and read is not None and _have_equal_rules(read, old, new):
            continue
        raise OffsetError(
            f"the option {name} was {_text(old)} when this checkpoint began and is {_text(new)} now, which would "
            "change records that were processed already, or their order",
            where=f"option {name}",
            fix=(f"Remove the option {name}" if old is None else f"Set {name} to {_text(old)} again")
            + (", with new topics after the old ones" if name == TOPICS else "")
            + ", or begin a new checkpoint",
        )


def check_replay(start: SourceOffset, end: SourceOffset, now: Mapping[str, object]) -> None:
    """Raise OffsetError if a logged batch would have other rows now, because a schema or the treatment of its poison
    records changed.

    Only the values for the batch's own topics are compared: an option may change for other topics, or in its spelling.
    """
    topics = {tp.topic for tp, cursor in end.cursors.items() if cursor != start.cursors.get(tp)}
    _check_schemas(topics, end.fingerprint.get(_SCHEMAS), now.get(_SCHEMAS))
    poison = end.undecodable - start.undecodable
    old, new = end.fingerprint.get(_UNDECODABLE), now[_UNDECODABLE]
    if poison > 0 and old is not None and any(_rows_of(topic, old) != _rows_of(topic, new) for topic in topics):
        raise OffsetError(
            f"the batch that was under way has {poison} records without a usable timestamp; undecodable was "
            f"{_text(old)} when it was planned and is {_text(new)} now, which would give it other rows",
            where=f"option {_UNDECODABLE}",
            fix=f"Set undecodable to {_text(old)} until that batch is committed, and change it then",
        )


def _check_schemas(topics: Collection[str], old: object, new: object) -> None:
    """Raise OffsetError if the schema of one of these topics changed. Hashes are compared, so the path may change."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return  # a rule that got or lost its schema is another rule, which `check_fingerprint` refuses
    for topic in sorted(topics):
        before, after = (found.get(topic, found.get("")) for found in (old, new))
        if before and after and before[1] != after[1]:
            raise OffsetError(
                f"the schema file {after[0]} of the topic '{topic}' changed while a batch was under way, which would "
                f"give its records other timestamps or another order: its SHA-256 was {before[1]}, and is {after[1]} "
                "now",
                where=f"option {_TIMESTAMP}",
                fix="Put the former file back (sha256sum shows its hash) until that batch is committed, and change it "
                "then",
            )


def _have_equal_rules(topics: Collection[str], old: object, new: object) -> bool:
    before, now = rule_texts(str(old)), rule_texts(str(new))
    return all(before.get(topic, before[None]) == now.get(topic, now[None]) for topic in topics)


def _rows_of(topic: str, treatment: object) -> str:
    """Return the kind of a topic's rows, from what `_poison_rows` returned."""
    default, *own = str(treatment).split(",")
    return {name: rows for name, _, rows in (each.rpartition(":") for each in own)}.get(topic, default)


def _only_appended(old: object, new: object) -> bool:
    return isinstance(old, list) and isinstance(new, list) and new[: len(old)] == old


def _text(value: object) -> str:
    match value:
        case None:
            return "not set"
        case list():
            return f"'{','.join(map(str, value))}'"
        case _:
            return f"'{value}'"


_KAFKA = "kafka:"
"""The prefix of Kafka's topics in a fingerprint."""


def join_topics(
    topics: Collection[str], counts: Mapping[str, int], *, is_global: bool
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Decide by partition `counts` which of the topics that a pattern found are read beside `topics` from now on.

    Return them, and the partition counts of new topics that do not fit.

    Partitions of the same number are merged, so a topic fits if it has as many partitions as there are tasks. While no
    topic is read, the first one by name decides. With `is_global` every topic fits.
    """
    new = sorted(counts.keys() - set(topics))
    common = min((counts[topic] for topic in topics if topic in counts), default=counts[new[0]] if new else 0)
    joined = tuple(topic for topic in new if is_global or counts[topic] == common)
    return joined, {topic: counts[topic] for topic in new if topic not in joined}


def with_topics(
    fingerprint: Mapping[str, object], options: AlignedOptions, topics: Iterable[str]
) -> Mapping[str, object]:
    """Return the fingerprint with the topics that a pattern has found so far. Without a pattern it is the same."""
    return fingerprint if options.pattern is None else {**fingerprint, TOPICS: [_KAFKA + topic for topic in topics]}


def topics_at(options: AlignedOptions, offset: SourceOffset) -> tuple[str, ...]:
    """Return the topics that are read at an offset, in the order that breaks ties."""
    return options.topics if options.pattern is None else tuple(each.removeprefix(_KAFKA) for each in _saved(offset))


def check_still_read(options: AlignedOptions, offset: SourceOffset) -> None:
    """Raise OffsetError if the options leave out a topic or a partition that the query has read."""
    if options.pattern is not None:
        option, pattern = "topics_pattern", options.pattern
        left_out = [
            each for each in _saved(offset) if not (each.startswith(_KAFKA) and each.removeprefix(_KAFKA) in pattern)
        ]
    else:
        option, assigned = "assign", options.assigned
        left_out = [] if assigned is None else [str(tp) for tp in sorted(offset.cursors.keys() - assigned)]
    if left_out:
        raise OffsetError(
            f"{option} leaves out what this query has read: {', '.join(left_out)}",
            where=f"option {option}",
            fix=f"Let {option} name that, too, or begin a new checkpoint",
        )


def _saved(offset: SourceOffset) -> list[str]:
    found = offset.fingerprint.get(TOPICS)
    return [str(each) for each in found] if isinstance(found, list) else []
