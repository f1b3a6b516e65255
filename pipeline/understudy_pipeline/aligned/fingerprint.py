"""Which options decide what records are and their order: a checkpoint begun with others cannot be continued (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_pipeline.aligned.offset import OffsetError
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.inputs.timestamps import RECORD

_TOPICS = "topics"
_ENTRY_FIELDS = ("key_field", "value_field")
"""Of Redis alone."""


def fingerprint(options: AlignedOptions) -> dict[str, object]:
    """By the option's name, as JSON.

    Bounds, patience and servers may change, since they decide where batches end and not what comes before what; and so
    may `undecodable`, or a query that failed on a poison record could never be continued.
    """
    kinds = options.kinds or ("",) * len(options.topics)
    field = options.timestamp.field
    return {
        _TOPICS: [f"{kind}:{topic}".removeprefix(":") for kind, topic in zip(kinds, options.topics, strict=True)],
        "merge": options.merge,
        "timestamp": RECORD if field is None else f"json:{field}",
        "max_timestamp_jump_ms": options.max_timestamp_jump_ms,
        **{name: _of_inputs(options, name) for name in _ENTRY_FIELDS},
    }


def _of_inputs(options: AlignedOptions, name: str) -> str | None:
    """Of the one input that has such an option; None when it is not there."""
    return next((getattr(config, name) for config in options.inputs if hasattr(config, name)), None)


def check_fingerprint(saved: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises OffsetError naming the option, its old and its new value. Topics may be appended."""
    for name in now:
        old, new = saved.get(name), now[name]
        if old == new or (name == _TOPICS and _only_appended(old, new)) or (name in _ENTRY_FIELDS and old is None):
            continue
        raise OffsetError(
            f"the option {name} was {_text(old)} when this checkpoint began and is {_text(new)} now, which would "
            "change records that were processed already, or their order",
            where=f"option {name}",
            fix=f"Set {name} to {_text(old)} again"
            + (", with new topics behind the old ones" if name == _TOPICS else "")
            + ", or begin a new checkpoint",
        )


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
