"""The option `timestamp`: where a record's timestamp comes from. Planner and executors apply the same rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from understudy_shared.base.errors import SettingsError

RECORD = "record"
_FIELD = "json:"

LEAST_TIME_MS = -62_135_596_800_000
END_TIME_MS = 253_402_300_800_000
"""The years 1 to 9999, the range of Spark's timestamps. A record outside it is a poison record."""


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """With `field` None the input gives the timestamp (a Kafka record's own, the first half of a stream entry's ID).

    Otherwise `field` names a field of the record's value, a JSON object. The field holds milliseconds since the epoch,
    or ISO 8601 (UTC if it names no zone).
    """

    field: str | None = None

    @classmethod
    def parse(cls, text: str) -> TimestampRule:
        """Parse `record` or `json:<field>`. Raises SettingsError."""
        if text == RECORD:
            return cls()
        if text.startswith(_FIELD) and len(text) > len(_FIELD):
            return cls(text.removeprefix(_FIELD))
        raise SettingsError(
            f"'{text}' is neither 'record' nor 'json:<field>'",
            where="option timestamp",
            fix="Use 'record' for the time that the input gives, or 'json:<field>' for a field of the value",
        )

    def time_ms(self, recorded_ms: int | None, value: bytes | None) -> int | None:
        """Return a record's timestamp in epoch milliseconds; None if it has no usable one (a poison record)."""
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
