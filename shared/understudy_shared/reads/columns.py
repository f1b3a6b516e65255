"""The columns of a store by the names that questions use: `n`, or `key.n`, `value.n`, `result.n` (pure).

A name that occurs in two parts of a row must be qualified by its part. A field of a struct has the name of the struct
before it: `window.start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from understudy_shared.base.texts import clipped
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.spark.types import SparkType, StructType, unique_names

Part = Literal["key", "value", "result"]

Named = Sequence[tuple[str, SparkType]]
"""Columns in their order: name and type."""

MAX_LISTED = 50
"""Number of columns that an error lists."""


class StoreColumn(NamedTuple):
    """A column, or a field of a struct. `path` are the names from the part down to it, `indexes` its indexes in decoded
    rows.
    """

    part: Part
    path: tuple[str, ...]
    indexes: tuple[int, ...]
    type: SparkType

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} ({self.type.name})"


class Columns:
    """The columns of a store that questions may name."""

    def __init__(self, key: Named, value: Named = (), result: Named = ()) -> None:
        """Take the columns of each part. `value` and `result` are empty if a key has more than one value."""
        self._full: dict[str, StoreColumn] = {}
        self._short: dict[str, list[str]] = {}
        for part, named in _parts(key, value, result):
            for index, (name, spark_type) in enumerate(named):
                for column in _with_fields(StoreColumn(part, (name,), (index,), spark_type)):
                    short = ".".join(column.path)
                    full = f"{part}.{short}"
                    if full not in self._full:
                        self._full[full] = column
                        self._short.setdefault(short, []).append(full)

    def has(self, name: str) -> bool:
        return name in self._short

    def find(self, name: str, where: str) -> StoreColumn:
        """Return the column of that name. Raises BadBoundError with the existing names. `where` is the member."""
        of_short = self._short.get(name, [])
        if len(of_short) == 1:
            return self._full[of_short[0]]
        if of_short:
            choices = " or ".join(of_short)
            what = f"{clipped(name)} is the name of {len(of_short)} columns"
            raise BadBoundError(what, where=where, fix=f"Send {choices}")
        found = self._full.get(name)
        if found is None:
            raise BadBoundError(f"there is no column {clipped(name)} to ask by", where=where, fix=self.listed())
        return found

    def by_part(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return the value and result columns of these names, by part. Raises BadBoundError for other names."""
        found = [self.find(name, "fields") for name in names]
        wrong = next((each for each in found if len(each.path) > 1), None)
        if wrong is not None:
            raise BadBoundError(f"{wrong} is a part of a column", where="fields", fix=f"Send {wrong.path[0]}")
        parts = {part: frozenset(each.path[0] for each in found if each.part == part) for part in ("value", "result")}
        return {part: columns for part, columns in parts.items() if columns}

    def listed(self) -> str:
        """Return the sentence that lists the columns."""
        names = [f"{name} ({self._full[full[0]].type.name})" for name, full in self._short.items()]
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        return f"The columns are {', '.join(names[:MAX_LISTED])}{more}" if names else "This store has no columns"


def walk(printed: Mapping[str, object], path: Sequence[str]) -> object:
    """Return the value at a path of a printed row; None if a struct on the path is null, or the column is missing."""
    found: object = printed
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def walk_row(row: Sequence[object], indexes: Sequence[int]) -> object:
    """Return the value at these indexes of a decoded row; None if a struct on the way is null."""
    found: object = row
    for index in indexes:
        if not isinstance(found, Sequence):
            return None
        found = found[index]
    return found


def _parts(key: Named, value: Named, result: Named) -> tuple[tuple[Part, Named], ...]:
    return (("key", key), ("value", value), ("result", result))


def _with_fields(column: StoreColumn) -> Iterator[StoreColumn]:
    """Yield a column, then its fields if it is a struct."""
    yield column
    if isinstance(column.type, StructType):
        names = unique_names(field.name for field in column.type.fields)
        for index, (name, field) in enumerate(zip(names, column.type.fields, strict=True)):
            inner = StoreColumn(column.part, (*column.path, name), (*column.indexes, index), field.type)
            yield from _with_fields(inner)
