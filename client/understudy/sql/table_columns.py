"""The columns of a table: those of a store, by names that SQL can tell apart (pure).

Rule: a column has its own name; where two of a store have one, each has its part in front: `key.n`, `value.n`,
`result.n`. DuckDB takes upper and lower case as one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from understudy.sql.predicates import Path
from understudy.typed.columns import StoreEntry, read_entry
from understudy.typed.errors import SchemaError
from understudy_shared.questions.export.columns import PARTS, PROBLEM, ExportColumn, ExportColumns
from understudy_shared.questions.scan.question import MAX_FIELDS
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Columns
from understudy_shared.spark.types import SparkType, StructType

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def identifier(name: str, reserved: Collection[str] = ()) -> str:
    """Return a name of a table or a column as a statement has it: in quotes where it needs them."""
    if _PLAIN.fullmatch(name) and name.lower() not in reserved:
        return name
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Place:
    """A column, or a field of one, as questions about a store name it."""

    name: str
    part: str
    type: SparkType
    names: tuple[str, ...]


class Table:
    """A store as a table. `name` is that of the table, which may differ from the store's."""

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

    def place(self, schema: Sequence[str], path: Path) -> Place | None:
        """Return the column at a path into a schema of these names; None where questions cannot name it."""
        column = next(each for each in self.columns if each.name == schema[path[0]])
        names, spark_type = column.path, column.type
        for index in path[1:]:
            if not isinstance(spark_type, StructType):
                return None
            field = spark_type.fields[index]
            names, spark_type = (*names, field.name), field.type
        return Place(_full(names), names[0], spark_type, names[1:]) if self._can_name(names) else None

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
