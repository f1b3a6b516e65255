"""The filter of a table scan, as a tree (pure). `exact.py` makes it, `narrowing.py` and `exact.py` use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from understudy_shared.base.errors import UnderstudyError

Path = tuple[int, ...]
"""A column by its index in the schema, then the indexes of fields inside it."""

Literal: TypeAlias = object
"""A constant: bool, int, float, str, bytes or Decimal. Dates are days, timestamps microseconds, since 1970."""


class UnreadFilterError(UnderstudyError):
    """A filter that this release does not understand: the statement has to run without it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a constant. `op` is that of a scan's `where`."""

    path: Path
    op: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a column has one of some values. `keeps_null`: null, not false, where the column is null."""

    path: Path
    literals: tuple[Literal, ...]
    keeps_null: bool


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a column is null, is not null, or is NaN."""

    path: Path
    what: str


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; null stays null."""

    of: Predicate


@dataclass(frozen=True, slots=True)
class Combined:
    """Parts that must all hold (`and`), or of which one must (`or`)."""

    op: str
    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part that is not understood. Nothing follows from it."""

    what: str


Predicate: TypeAlias = Comparison | OneOf | Check | Not | Combined | Unknown


def conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    """Yield the parts that must all hold."""
    if isinstance(predicate, Combined) and predicate.op == "and":
        for part in predicate.parts:
            yield from conjuncts(part)
    else:
        yield predicate


def paths(predicate: Predicate) -> set[Path]:
    """Return the columns that a filter reads. Raises UnreadFilterError where that is not known."""
    match predicate:
        case Comparison(path) | OneOf(path) | Check(path):
            return {path}
        case Not(of):
            return paths(of)
        case Combined(_, parts):
            return {path for part in parts for path in paths(part)}
        case Unknown(what):
            raise UnreadFilterError(f"DuckDB sent a filter that is not understood: {what}")
