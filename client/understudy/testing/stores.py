"""The stores that a test declares: their columns, the rows that they begin with, and changes of them as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy.client.errors import UsageError
from understudy.typed.columns import TypedColumn
from understudy.typed.key_writer import KeyWriter
from understudy.typed.models import columns_of
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.texts import clipped
from understudy_shared.spark.types import Field, StructType, parse_type_name

Changes = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""Values by key, or pairs of them where keys are not hashable. None deletes the key."""

Change = tuple[object, object]
"""The JSON of a key in exact form, and of its value: an object by column, or None to delete the key."""


@dataclass(frozen=True)
class StoreDefinition:
    """A store: the columns of its key and of its value, and the rows that it begins with, key and value in one.

    Types are Spark's, as `GET /v1/stores` prints them. `result` is what the query makes of stored values, as an alias
    file has it.
    """

    key: Mapping[str, str]
    value: Mapping[str, str]
    rows: Sequence[Any] = ()
    result: Mapping[str, object] = field(default_factory=dict)


class DeclaredStore:
    """A store as it was declared, checked."""

    def __init__(self, name: str, declared: StoreDefinition) -> None:
        """Check it. Raises UsageError."""
        self.name = name
        self.key, self.value = _struct(name, "key", declared.key), _struct(name, "value", declared.value)
        self.result = declared.result
        twice = [*declared.key.keys() & declared.value.keys()]
        if twice:
            raise UsageError(
                f"a column is in the key and in the value: {', '.join(twice)}",
                where=f"store {name}",
                fix="Give each column another name",
            )
        self._write_key = KeyWriter(_columns(self.key)).write
        self._write_value = KeyWriter(_columns(self.value)).write
        self.rows: Sequence[Change] = [self._row(each) for each in declared.rows]

    def changes(self, changes: Changes) -> list[Change]:
        """Return changes as JSON. Raises UsageError and BadKeyError for what does not fit."""
        pairs = changes.items() if isinstance(changes, Mapping) else changes
        return [(self._write_key(key), None if value is None else self._value(key, value)) for key, value in pairs]

    def _row(self, row: Any) -> Change:
        columns = self._by_column(row, "a row")
        key = {name: columns[name] for name in _names(self.key) if name in columns}
        return self._write_key(key), self._value(key, {name: columns[name] for name in columns if name not in key})

    def _value(self, key: object, value: Any) -> object:
        columns = self._by_column(value, f"the value of {clipped(key)}")
        known = _names(self.value)
        unknown = [name for name in columns if name not in known]
        if unknown:
            raise UsageError(
                f"there is no column {clipped(unknown[0])}",
                where=f"store {self.name}",
                fix=f"The value has {', '.join(known)}",
            )
        return self._write_value({name: columns.get(name) for name in known})

    def _by_column(self, row: Any, what: str) -> Mapping[str, Any]:
        columns = columns_of(row)
        if columns is None:
            raise UsageError(
                f"{what} is not given by column: {clipped(row)}",
                where=f"store {self.name}",
                fix="Give a dict by column, or a model",
            )
        return columns


def _struct(store: str, part: str, columns: Mapping[str, str]) -> StructType:
    if not columns:
        raise UsageError(f"the {part} has no columns", where=f"store {store}", fix=f'Give {part}={{"name": "string"}}')
    return StructType(tuple(Field(name, _type(store, name, text)) for name, text in columns.items()))


def _type(store: str, column: str, text: str) -> Any:
    try:
        return parse_type_name(text)
    except UnsupportedError:
        raise UsageError(
            f"{clipped(text)} is not a type of Spark",
            where=f"store {store}, column {column}",
            fix="Write it as GET /v1/stores prints it: long, decimal(12,2), struct<start:timestamp,end:timestamp>",
        ) from None


def _columns(struct: StructType) -> list[TypedColumn]:
    return [TypedColumn(each.name, each.type, each.nullable) for each in struct.fields]


def _names(struct: StructType) -> list[str]:
    return [each.name for each in struct.fields]
