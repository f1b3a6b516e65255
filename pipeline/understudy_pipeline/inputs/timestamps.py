"""Where a record's time comes from, told once by the option `timestamp` and alike on planner and executors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from understudy_shared.errors import SettingsError

RECORD = "record"
_FIELD = "json:"

LEAST_TIME_MS = -62_135_596_800_000
END_TIME_MS = 253_402_300_800_000
"""The years 1 to 9999, which Spark's timestamps hold: another time is none."""


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """`field` is None for the time that the input gives (a Kafka record's, the first half of a stream ID).

    Otherwise it names a field of the record's value, a JSON object: milliseconds since the epoch, or ISO 8601 (UTC
    where it names no zone).
    """

    field: str | None = None

    @classmethod
    def parse(cls, text: str) -> TimestampRule:
        """Of `record` or `json:<field>`. Raises SettingsError."""
        if text == RECORD:
            return cls()
        if text.startswith(_FIELD) and len(text) > len(_FIELD):
            return cls(text.removeprefix(_FIELD))
        raise SettingsError(
            f"'{text}' does not say where a record's time comes from",
            where="option timestamp",
            fix="Use 'record' for the time that the input gives, or 'json:<field>' for a field of the value",
        )

    def time_ms(self, recorded_ms: int | None, value: bytes | None) -> int | None:
        """Milliseconds since the epoch; None when it cannot be told: a poison record."""
        if self.field is None:
            return recorded_ms
        try:
            found = orjson.loads(value or b"")[self.field]
            return _epoch_ms(found)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError):
            return None


def _epoch_ms(found: object) -> int | None:
    match found:
        case bool():
            return None
        case int() | float():
            return _within(int(found))
        case str():
            moment = datetime.fromisoformat(found)
            return _within(int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
        case _:
            return None


def _within(time_ms: int) -> int | None:
    return time_ms if LEAST_TIME_MS <= time_ms < END_TIME_MS else None
