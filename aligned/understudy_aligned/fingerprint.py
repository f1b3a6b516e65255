"""The options that decide what records are and how they are ordered. They are fixed for a checkpoint's life (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_args

from understudy_aligned.offset import OffsetError, SourceOffset
from understudy_aligned.options import AlignedOptions, Undecodable
from understudy_aligned.timestamp_option import rule_texts

TOPICS = "topics"
_OF_INPUTS = {"key_field": "key_field", "value_field": "value_field", "kafka.isolation.level": "isolation_level"}
"""Options that only one kind of input has: the attribute of its configuration, by the option's name. A query that gets
such an input later gets its options with it."""

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
    """Return the kind of rows, and of topics whose own differ from it: `skip,weather:keep`."""
    default = _POISON_ROWS[options.undecodable]
    own = {topic: _POISON_ROWS[each] for topic, each in options.topic_undecodable.items()}
    return ",".join([default, *(f"{topic}:{each}" for topic, each in sorted(own.items()) if each != default)])


def _of_inputs(options: AlignedOptions, attribute: str) -> str | None:
    """Return the option's value in the one input that has it. None if that input is not configured."""
    return next((getattr(config, attribute) for config in options.inputs if hasattr(config, attribute)), None)


def check_fingerprint(
    saved: Mapping[str, object], now: Mapping[str, object], read: Collection[str] | None = None
) -> None:
    """Raise OffsetError if an option changed, naming it with its old and new value.

    Topics may be appended, and topics that are not among the `read` ones may get other timestamps. None: all are read.
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
            + (", with new topics behind the old ones" if name == TOPICS else "")
            + ", or begin a new checkpoint",
        )


def check_replay(start: SourceOffset, end: SourceOffset, now: Mapping[str, object]) -> None:
    """Raise OffsetError if a logged batch would have other rows now: by another schema, or by another treatment of its
    poison records.

    What holds for the batch's topics is compared: other topics do not matter, nor how an option says it.
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
    """Raise OffsetError if the schema of one of these topics changed. A path may: the hashes are compared."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return  # rules that have schemas or not are other rules, which `check_fingerprint` refuses
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
