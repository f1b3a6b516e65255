"""The stores as tables of SQL, and the least that has to be read for a filter (pure).

Rule: column names are unique. If two of a store collide, each is qualified by its part: `key.n`, `value.n`, `result.n`.
DuckDB ignores case.

Rule: never read less than the filter matches. DuckDB's filter is applied in full afterwards, so a part that is not
understood costs only time.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeAlias

import orjson

from understudy.client.core.values import RowsQuestion
from understudy.typed.columns import StoreEntry, read_entry
from understudy.typed.python_types import SchemaError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.columns import PARTS, PROBLEM, ExportColumn, ExportColumns
from understudy_shared.questions.scan.question import MAX_FIELDS
from understudy_shared.questions.scan.where import MAX_TERMS, MAX_WHERE_BYTES, compile_where, parse_where
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Columns
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
    StructType,
    TimestampNtzType,
    TimestampType,
    unique_names,
)

Path = tuple[int, ...]
"""A column by its index in the schema, then the indexes of fields inside it."""

Literal: TypeAlias = object
"""A constant: bool, int, float, str, bytes or Decimal. Dates are days, timestamps microseconds, since 1970."""


class UnreadFilterError(UnderstudyError):
    """A filter that this release does not understand: the statement has to run without it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a constant. `op` is as in a scan's `where`."""

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
    """Parts: all must hold (`and`), or one of them (`or`)."""

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


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def identifier(name: str, reserved: Collection[str] = ()) -> str:
    """Return the name of a table or a column for a statement: quoted if necessary."""
    if _PLAIN.fullmatch(name) and name.lower() not in reserved:
        return name
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class ColumnPlace:
    """A column, or a field of one, as questions about a store name it."""

    name: str
    part: str
    type: SparkType
    names: tuple[str, ...]


class Table:
    """A store as a table. `name` is the table's, which may differ from the store's."""

    def __init__(self, entry: StoreEntry, name: str, partitions: int = 1) -> None:
        self.entry, self.name, self.partitions = entry, name, partitions
        self.store = entry.store
        exported = entry.exported().columns().columns
        names = _told_apart(exported)
        self.columns: tuple[ExportColumn, ...] = tuple(
            ExportColumn(name, each.path, each.type) for name, each in zip(names, exported, strict=True)
        )
        self.named: Columns = entry.named()
        """The columns that questions may name."""

    def column_names(self) -> list[str]:
        """Return the names of the columns, in their order."""
        return [each.name for each in self.columns]

    def of(self, wanted: Iterable[str]) -> ExportColumns:
        """Return the columns of these names, in the order of the table, and `problem`."""
        names = {*wanted, self.problem.name}
        return ExportColumns(tuple(each for each in self.columns if each.name in names), is_flat=True)

    @property
    def problem(self) -> ExportColumn:
        """The column that says why a key could not be read."""
        return next(each for each in self.columns if each.path == (PROBLEM,))

    def fields(self, wanted: ExportColumns) -> list[str] | None:
        """Return the `fields` of a scan that has these columns; None: all that there are."""
        stored = [each.path for each in self.columns if _is_stored(each)]
        chosen = [each.path for each in wanted.columns if _is_stored(each)] or stored[:1]  # a scan has one at least
        if len(chosen) > MAX_FIELDS or len(chosen) == len(stored) or not all(map(self._can_name, chosen)):
            return None
        return [_full(path) for path in chosen]

    def place(self, schema: Sequence[str], path: Path) -> ColumnPlace | None:
        """Return the column at a path into a schema of these names; None where questions cannot name it."""
        column = next(each for each in self.columns if each.name == schema[path[0]])
        names, spark_type = column.path, column.type
        for index in path[1:]:
            if not isinstance(spark_type, StructType):
                return None
            fields = spark_type.fields
            names, spark_type = (*names, unique_names(each.name for each in fields)[index]), fields[index].type
        return ColumnPlace(_full(names), names[0], spark_type, names[1:]) if self._can_name(names) else None

    def _can_name(self, path: Sequence[str]) -> bool:
        """Whether questions name this column so. A column may be called `value.n`, too."""
        if len(path) < 2 or path[0] not in PARTS:
            return False
        try:
            found = self.named.find(_full(path), "where")
        except BadBoundError:
            return False
        return (found.part, *found.path) == tuple(path)


def _is_stored(column: ExportColumn) -> bool:
    return len(column.path) > 1 and column.path[0] in ("value", "result")


def _full(path: Sequence[str]) -> str:
    return ".".join(path)


def _told_apart(columns: Sequence[ExportColumn]) -> list[str]:
    shared = Counter(each.path[-1].casefold() for each in columns)
    return distinct([each.path[-1] if shared[each.path[-1].casefold()] == 1 else _full(each.path) for each in columns])


def distinct(names: Iterable[str]) -> list[str]:
    """Return names that differ without regard to case: later ones get `_2`, `_3`."""
    names = list(names)
    taken, found = {each.casefold() for each in names}, list[str]()
    seen: set[str] = set()
    for name in names:
        unique, number = name, 2
        while unique.casefold() in seen or (unique != name and unique.casefold() in taken):
            unique, number = f"{name}_{number}", number + 1
        seen.add(unique.casefold())
        found.append(unique)
    return found


def tables_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, Table]:
    """Return the tables of the entries of `GET /v1/stores`, by their names in lower case. A store with a type that this
    release does not know is left out.
    """
    read = list(_read(entries))
    names = distinct(entry.store for entry, _ in read)
    return {
        name.casefold(): Table(entry, name, partitions) for name, (entry, partitions) in zip(names, read, strict=True)
    }


def _read(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[StoreEntry, int]]:
    for each in entries:
        with suppress(SchemaError):
            yield read_entry(each), each.get("partitions", 1)


MAX_LOOKUPS: Final = 10_000
"""Number of keys above which the store is scanned instead."""


@dataclass(frozen=True, slots=True)
class AccessPath:
    """A read of a store: these `keys`, each by its columns; or, where that is None, the rows of a scan."""

    keys: tuple[tuple[Any, ...], ...] | None = None
    prefix: tuple[Any, ...] = ()
    where: tuple[tuple[Any, ...], ...] = ()

    def question(self) -> RowsQuestion:
        question: RowsQuestion = {}
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


def narrowed(predicate: Predicate | None, table: Table, schema: Sequence[str]) -> AccessPath:
    """Return what has to be read of a table. The filter's paths are indexes into the names of `schema`."""
    terms = [] if predicate is None else list(_terms(predicate, table, schema))
    fixed = {place.names[0]: values for place, values in _fixed(terms)}
    key = [each.name for each in table.entry.key]
    if key and all(name in fixed for name in key) and math.prod(len(fixed[name]) for name in key) <= MAX_LOOKUPS:
        return AccessPath(keys=tuple(product(*(fixed[name] for name in key))))
    prefix: list[Any] = []
    for name in key[:-1]:
        if len(fixed.get(name, ())) != 1:
            break
        prefix += fixed[name]
    rest = [term for place, term in terms if not (_is_whole_key(place) and place.names[0] in key[: len(prefix)])]
    return AccessPath(prefix=tuple(prefix), where=tuple(_that_fit(rest, table)))


Term = tuple[Any, ...]
"""A comparison as a scan's `where` takes it."""


def _terms(predicate: Predicate, table: Table, schema: Sequence[str]) -> Iterator[tuple[ColumnPlace, Term]]:
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


def _term(place: ColumnPlace, part: Comparison | OneOf | Check) -> Term | None:
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


def _fixed(terms: Sequence[tuple[ColumnPlace, Term]]) -> Iterator[tuple[ColumnPlace, Sequence[Any]]]:
    """Yield the key columns that are restricted to some values."""
    for place, (_, op, *literal) in terms:
        if not _is_whole_key(place) or isinstance(place.type, (FloatType, DoubleType)):
            continue  # 0.0 is -0.0 to a comparison, and another key
        if op == "=":
            yield place, literal
        elif op == "in":
            yield place, list(dict.fromkeys(literal[0]))


def _is_whole_key(place: ColumnPlace) -> bool:
    return place.part == "key" and len(place.names) == 1


def _that_fit(terms: Sequence[Term], table: Table) -> Iterator[Term]:
    """Yield the terms that a server takes: of columns that can be compared, up to the limits."""
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
    """Return how constants of a type are sent; None for a type that cannot be sent."""
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
