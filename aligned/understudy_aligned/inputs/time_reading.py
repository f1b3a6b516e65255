"""Reads timestamps from values and headers, by the rules of the option `timestamp`, in the planner and on executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import orjson

from understudy_aligned.inputs.timestamps import END_TIME_MS, LEAST_TIME_MS, TimestampRule
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

Headers = Sequence[tuple[str, bytes | None]]

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_MOST_RULES = 64
_LONG_BYTES = 8


def value_times_ms(rule: TimestampRule, values: Sequence[bytes | None]) -> list[int | None]:
    """Return the timestamps in values, in epoch milliseconds; None for a poison record, which has no usable one."""
    read = _reader(rule)
    return [_time_in(value, read) for value in values]


def header_time_ms(rule: TimestampRule, headers: Headers | None) -> int | None:
    """Return the timestamp in the headers: text, or a long of 8 bytes as Kafka's LongSerializer writes it."""
    found = next((value for name, value in reversed(headers or ()) if name == rule.place), None)
    if found is None:
        return None
    with suppress(ValueError, OverflowError):
        text = found.decode()
        return _within(int(text)) if text.isdecimal() else _epoch_ms(text)
    return _within(int.from_bytes(found, signed=True)) if len(found) == _LONG_BYTES else None


def pointed(place: str) -> list[str]:
    """Return the names on the way to a place: those of a JSON Pointer, or one field."""
    if not place.startswith("/"):
        return [place]
    return [part.replace("~1", "/").replace("~0", "~") for part in place.split("/")[1:]]


@lru_cache(_MOST_RULES)
def _reader(rule: TimestampRule) -> Callable[[bytes], object]:
    """Return a function that finds the place in a value. Raises SettingsError for a schema that does not fit.

    Executors come here, too: a package may be missing on one of them only.
    """
    names = pointed(rule.place)
    if rule.kind == "json":
        return lambda value: _found(orjson.loads(value), names)
    assert rule.schema is not None, "a rule of an encoding has one"
    try:
        # Imported here: few queries need the decoders' packages.
        from understudy_aligned.inputs import encoded_values  # noqa: PLC0415

        if rule.kind == "avro":
            decode = encoded_values.avro_decoder(rule.schema, names)
            return lambda value: _found(decode(value), names)
        return encoded_values.protobuf_reader(rule.schema, names)
    except ImportError as error:
        raise SettingsError(
            f"timestamps in {rule.kind} need a package that this machine does not have: {error}",
            where="option timestamp",
            fix=install_fix("pipeline"),
        ) from error


def _time_in(value: bytes | None, read: Callable[[bytes], object]) -> int | None:
    try:
        return _epoch_ms(read(value or b""))
    except Exception:  # decoders raise errors of many classes for bytes that anybody may have written
        return None


def check_schema_of(rule: TimestampRule) -> None:
    """Raise SettingsError unless the rule's schema can be used here: without its package, too."""
    if rule.schema is not None:
        _reader(rule)


def _found(value: object, names: Sequence[str]) -> object:
    for name in names:
        value = value[int(name)] if isinstance(value, list) else value[name]  # type: ignore[index]  # or no usable time
    return value


def _epoch_ms(found: object) -> int | None:
    match found:
        case bool():
            return None
        case int() | float():
            return _within(int(found))
        case str():
            return _epoch_ms(datetime.fromisoformat(found))
        case datetime():
            moment = found if found.tzinfo else found.replace(tzinfo=UTC)
            return _within((moment - _EPOCH) // _MILLISECOND)  # exact: a float would lose the last one
        case _:
            return None


def _within(time_ms: int) -> int | None:
    return time_ms if LEAST_TIME_MS <= time_ms < END_TIME_MS else None
