"""The options that decide what records are and how they are ordered. They are fixed for a checkpoint's life (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_pipeline.aligned.offset import OffsetError
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.inputs.timestamps import RECORD

_TOPICS = "topics"
_ENTRY_FIELDS = ("key_field", "value_field")
"""Options that only Redis has."""


def fingerprint(options: AlignedOptions) -> dict[str, object]:
    """Values by option name, for the offset's JSON.

    Bounds, timeouts and servers may change: they decide where batches end, not the order of records. `undecodable` may
    change too: otherwise a query that failed on a poison record could never continue.
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
    """The option's value in the one input that has it. None if that input is not configured."""
    return next((getattr(config, name) for config in options.inputs if hasattr(config, name)), None)


def check_fingerprint(saved: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise OffsetError if an option changed, naming it with its old and new value. Topics may be appended."""
    for name in now:
        old, new = saved.get(name), now[name]
        if old == new or (name == _TOPICS and _only_appended(old, new)) or (name in _ENTRY_FIELDS and old is None):
            continue
        raise OffsetError(
            f"the option {name} was {_text(old)} when this checkpoint began and is {_text(new)} now, which would "
            "change records that were processed already, or their order",
            where=f"option {name}",
            fix=(f"Remove the option {name}" if old is None else f"Set {name} to {_text(old)} again")
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
