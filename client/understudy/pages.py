"""The parts of a report: lines and tables, in order (data). The console prints it or draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """Text as it is."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a heading; `title` stands above it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


Page = Sequence[Lines | Sheet]
