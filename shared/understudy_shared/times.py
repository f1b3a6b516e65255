"""How moments are printed: ISO-8601 in UTC with microseconds and `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_text(moment_us: int | None) -> str | None:
    """Microseconds since the epoch as text, None as None."""
    if moment_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=moment_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
