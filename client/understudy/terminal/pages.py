"""The parts of a report: lines, fields and tables, in order (data). The console prints it or draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """Text as it is. What `folds` is folded to the width of a terminal; `states` are shown in colour."""

    lines: Sequence[str]
    folds: bool = False
    states: bool = False


@dataclass(frozen=True, slots=True)
class FieldList:
    """Rows of section, name and text, aligned; a row's text begins where its last name ends."""

    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a heading; `title` stands above it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


Page = Sequence[Lines | FieldList | Sheet]
