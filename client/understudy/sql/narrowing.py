"""The least that a filter needs of a store: lookups of keys, a seek, or a scan with a `where` (pure).

Rule: what is read is never less than what the filter matches. DuckDB's filter is applied to it afterwards in full, so a
part that is not understood costs time and nothing else.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import orjson

from understudy.client.core.values import ScanQuestion
from understudy.sql.predicates import Check, Comparison, OneOf, Predicate, conjuncts
from understudy.sql.table_columns import Place, Table
from understudy_shared.questions.scan.where import MAX_TERMS, MAX_WHERE_BYTES, compile_where, parse_where
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.spark.temporal import date_text, timestamp_ntz_text, timestamp_text
from understudy_shared.spark.types import (
    BINARY_COLLATION,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    SparkType,
    StringType,
    TimestampNtzType,
    TimestampType,
)

MAX_LOOKUPS: Final = 10_000
"""Number of keys above which a pass over the store is asked for instead."""


@dataclass(frozen=True, slots=True)
class Access:
    """A read of a store: these `keys`, each by its columns; or, where that is None, the rows of a scan."""

    keys: tuple[tuple[Any, ...], ...] | None = None
    prefix: tuple[Any, ...] = ()
    where: tuple[tuple[Any, ...], ...] = ()

    def question(self) -> ScanQuestion:
        """Return the members of a scan."""
        question: ScanQuestion = {}
        if self.prefix:
            question["prefix"] = self.prefix
        if self.where:
            question["where"] = self.where
        return question

    def __str__(self) -> str:
        if self.keys is not None:
            return f"{len(self.keys)} key{'' if len(self.keys) == 1 else 's'} looked up"
        said = [f"prefix {_shown(self.prefix)}"] if self.prefix else []
        said += [f"where {' and '.join(map(_term_text, self.where))}"] if self.where else []
        return f"scan, {', '.join(said)}" if said else "scan of all rows"


def narrowed(predicate: Predicate | None, table: Table, schema: Sequence[str]) -> Access:
    """Return what has to be read of a table. `schema` has the names that the paths of the filter are indexes of."""
    terms = [] if predicate is None else list(_terms(predicate, table, schema))
    fixed = {place.names[0]: values for place, values in _fixed(terms)}
    key = [each.name for each in table.entry.key]
    if key and all(name in fixed for name in key) and math.prod(len(fixed[name]) for name in key) <= MAX_LOOKUPS:
        return Access(keys=tuple(product(*(fixed[name] for name in key))))
    prefix: list[Any] = []
    for name in key[:-1]:
        if len(fixed.get(name, ())) != 1:
            break
        prefix += fixed[name]
    rest = [term for place, term in terms if not (_is_whole_key(place) and place.names[0] in key[: len(prefix)])]
    return Access(prefix=tuple(prefix), where=tuple(_that_fit(rest, table)))


Term = tuple[Any, ...]
"""A comparison as a scan's `where` takes it."""


def _terms(predicate: Predicate, table: Table, schema: Sequence[str]) -> Iterator[tuple[Place, Term]]:
    """Yield the comparisons that follow from a filter, and that a scan takes."""
    for part in conjuncts(predicate):
        if not isinstance(part, (Comparison, OneOf, Check)):
            continue
        place = table.place(schema, part.path)
        if place is None:
            continue
        term = _term(place, part)
        if term is not None:
            yield place, term


def _term(place: Place, part: Comparison | OneOf | Check) -> Term | None:
    if isinstance(part, Check):
        # What Arrow cannot hold is null in the table only, so a server would leave out rows that are null here.
        return (place.name, part.what) if part.what == "not_null" else None
    write = _writer(place.type)
    if write is None:
        return None
    if isinstance(part, Comparison):
        written = write(part.literal)
        return None if written is None else (place.name, part.op, written)
    values = [write(each) for each in part.literals]
    return (place.name, "in", values) if values and None not in values else None


def _fixed(terms: Sequence[tuple[Place, Term]]) -> Iterator[tuple[Place, Sequence[Any]]]:
    """Yield the key columns of which only some values are asked for."""
    for place, (_, op, *literal) in terms:
        if not _is_whole_key(place) or isinstance(place.type, (FloatType, DoubleType)):
            continue  # 0.0 is -0.0 to a comparison, and another key
        if op == "=":
            yield place, literal
        elif op == "in":
            yield place, list(dict.fromkeys(literal[0]))


def _is_whole_key(place: Place) -> bool:
    return place.part == "key" and len(place.names) == 1


def _that_fit(terms: Sequence[Term], table: Table) -> Iterator[Term]:
    """Yield the terms that a server takes: of columns that are compared, in the room that there is."""
    size_bytes = 0
    for term in terms[:MAX_TERMS]:
        form = list(term)
        try:
            compile_where(parse_where([form]), table.named)
        except BadBoundError:
            continue
        size_bytes += len(orjson.dumps(form)) + 1
        if size_bytes <= MAX_WHERE_BYTES:
            yield term


Write = Callable[[Any], Any]
"""A function from a constant to its JSON; None where it does not fit."""


def _writer(spark_type: SparkType) -> Write | None:
    """Return how constants of a type are sent; None for a type of which they are not."""
    match spark_type:
        case StringType(collation):
            return _if(str, lambda text: text) if collation == BINARY_COLLATION else None
        case _:
            return _WRITERS.get(type(spark_type)) or _of_numbers(spark_type)


def _of_numbers(spark_type: SparkType) -> Write | None:
    match spark_type:
        case IntegralType():
            return _if(int, lambda number: number)
        case DecimalType():
            return lambda value: format(value, "f") if not isinstance(value, (bool, str, bytes, float)) else None
        case FloatType() | DoubleType():
            return _if(float, lambda value: value if math.isfinite(value) else None)
    return None


def _if(kind: type, write: Callable[[Any], Any]) -> Write:
    return lambda value: write(value) if type(value) is kind else None


_WRITERS: Final[Mapping[type[SparkType], Write]] = {
    BooleanType: _if(bool, lambda value: value),
    BinaryType: _if(bytes, lambda value: base64.b64encode(value).decode()),
    DateType: _if(int, date_text),
    TimestampType: _if(int, timestamp_text),
    TimestampNtzType: _if(int, timestamp_ntz_text),
}


def _term_text(term: Term) -> str:
    name, op, *literal = term
    return " ".join((name, op, *map(_shown, literal)))


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 100 else f"{text[:100]}..."
