"""What tests measured beside what they claim: shown at the end of the run, whether they passed or not."""

from __future__ import annotations

_LINES: list[str] = []


def measured(line: str) -> None:
    """A line for the end of the run."""
    _LINES.append(line)


def all_measured() -> list[str]:
    """All of them, in the order in which they came."""
    return list(_LINES)
