"""The columns of an export: what a row of a scan has, as typed columns (pure).

Columns of key, value and result are flat where their names differ, else each is behind its part. What a key has many of
(sessions, rows, values, entries, timers) is a list in one column, as a scan shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from understudy_node.checkpoint.shapes import SESSION_WINDOW
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_node.stores.group_state import has_timeout
from understudy_node.stores.stores import ServedStore
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.scan_prefix import row_columns
from understudy_shared.spark.types import (
    ArrayType,
    BooleanType,
    Field,
    SparkType,
    StringType,
    StructType,
    TimestampType,
)

PROBLEM: Final = "problem"
"""The column that says, as JSON, why a key could not be read; null for all others."""

PARTS: Final = ("key", "value", "result")
Fields = Mapping[str, frozenset[str]]
"""The wanted value and result columns, by part."""

_GROUPS: Final = frozenset(("applyInPandasWithState", "flatMapGroupsWithState"))
_EXPIRY: Final = (Field("expires_at", TimestampType()), Field("expired", BooleanType()))
_NEXT: Final = Field("next_cursor", StringType())


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A column. `path`: where a row of a scan has it. `name` is that of a flat table."""

    name: str
    path: tuple[str, ...]
    type: SparkType


@dataclass(frozen=True, slots=True)
class ExportColumns:
    """The columns of an export. `is_flat`: no two of key, value and result have the same name."""

    columns: tuple[ExportColumn, ...]
    is_flat: bool

    def schema(self) -> StructType:
        """Return them as a struct: flat, or with a struct for each part."""
        if self.is_flat:
            return StructType(tuple(Field(each.name, each.type) for each in self.columns))
        parts = {part: [each for each in self.columns if each.path[0] == part] for part in PARTS}
        structs = [
            Field(part, StructType(tuple(Field(each.path[1], each.type) for each in columns)))
            for part, columns in parts.items()
            if columns
        ]
        others = [Field(each.name, each.type) for each in self.columns if each.path[0] not in PARTS]
        return StructType((*structs, *others))


def export_columns(store: ServedStore, fields: Fields | None = None) -> ExportColumns:
    """Return the columns of an export of a store. `fields` names the value and result columns; None: all."""
    key = [((("key", name)), field.type) for name, field in _key(store)]
    of_parts = [*key, *(_parts(store, fields) if store.kind is StoreKind.VALUE else ())]
    others = [((each.name,), each.type) for each in (*_others(store), Field(PROBLEM, StringType()))]
    found = [*of_parts, *others]
    is_flat = len({path[-1] for path, _ in found}) == len(found)
    return ExportColumns(
        tuple(ExportColumn(path[-1] if is_flat else ".".join(path), path, each) for path, each in found), is_flat
    )


def _key(store: ServedStore) -> list[tuple[str, Field]]:
    codec = store.codec
    return list(zip(codec.names, codec.key.fields, strict=True))[: row_columns(codec)]


def _parts(store: ServedStore, fields: Fields | None) -> Iterator[tuple[tuple[str, ...], SparkType]]:
    for part, columns in (("value", _value(store).fields), ("result", _result(store).fields)):
        wanted = None if fields is None else fields.get(part, frozenset())
        yield from (((part, each.name), each.type) for each in columns if wanted is None or each.name in wanted)


def _value(store: ServedStore) -> StructType:
    columns = zip(store.value_names, store.value_schema.fields, strict=True)
    return StructType(tuple(Field(name, field.type) for name, field in columns))


def _result(store: ServedStore) -> StructType:
    return StructType(tuple(Field(name, each) for name, each in store.result_types))


def _others(store: ServedStore) -> tuple[Field, ...]:
    """Return the members of a row beside key, value and result."""
    is_variable = store.operator_name in TRANSFORM
    said = [Field("value", _value(store))]
    if store.result_types:
        said.append(Field("result", _result(store)))
    match store.kind:
        case StoreKind.VALUE if store.operator_name in _GROUPS:
            return (Field("timeout_at", TimestampType()),) if has_timeout(store.value_schema) else ()
        case StoreKind.VALUE:
            return _EXPIRY if is_variable else ()
        case StoreKind.SET:
            return _EXPIRY if store.operator_name == "dedupeWithinWatermark" else ()
        case StoreKind.SESSION:
            moment = _window_type(store)
            bounds = (Field("start", moment), Field("end", moment))
            return _listed("sessions", (*bounds, *said, _EXPIRY[1]))
        case StoreKind.JOIN_SIDE:
            return _listed("rows", (*said, Field("matched", BooleanType()), _EXPIRY[1]))
        case StoreKind.LIST:
            return _listed("values", (*said, *_EXPIRY))
        case StoreKind.MAP:
            user = list(zip(store.codec.names, store.codec.key.fields, strict=True))[row_columns(store.codec) :]
            key = Field("key", StructType(tuple(Field(name, field.type) for name, field in user)))
            return _listed("entries", (key, *said, *_EXPIRY))
        case StoreKind.TIMERS:
            return (Field("timers", ArrayType(TimestampType())), _NEXT)


def _listed(name: str, element: tuple[Field, ...]) -> tuple[Field, ...]:
    return (Field(name, ArrayType(StructType(element))), _NEXT)


def _window_type(store: ServedStore) -> SparkType:
    """Return the type of the start of a session, which is that of the query's event time."""
    for field in store.value_schema.fields:
        if field.name == SESSION_WINDOW and isinstance(field.type, StructType) and field.type.fields:
            return field.type.fields[0].type
    return TimestampType()
