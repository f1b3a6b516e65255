"""Prints moments as ISO 8601 in UTC with microseconds and `Z`, in every year that Spark can name."""

from __future__ import annotations

from understudy_shared.spark.temporal import timestamp_text


def utc_text(moment_us: int | None) -> str | None:
    """Print microseconds since the epoch as text, None as None."""
    return None if moment_us is None else timestamp_text(moment_us)
