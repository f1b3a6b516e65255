"""Durations for people."""

from __future__ import annotations


def duration_text(ms: int) -> str:
    """Print milliseconds in a unit that fits."""
    if ms < 10_000:
        return f"{ms} ms"
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 3 * size_ms:
            return f"{ms / size_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"
