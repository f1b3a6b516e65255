"""The columns of a store, from its entry in `GET /v1/stores` (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from understudy.typed.python_types import SchemaError
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import StoreKind
from understudy_shared.questions.export.columns import StoreColumns
from understudy_shared.reads.columns import Columns
from understudy_shared.spark.types import Field, SparkType, StructType, TimestampType, parse_type_name

_SESSION_WINDOW: Final = "session_window"
_TIMEOUT: Final = "timeoutTimestamp"
_TRANSFORM: Final = "transformWithState"
"""The beginning of Spark's names of the operators with state variables."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column. `nullable` is None if the server does not say: for results, and for nested fields."""

    name: str
    type: SparkType
    nullable: bool | None = None


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """The columns of a store by its entry. `user_key` follows the key where an entry of a map is asked for."""

    store: str
    kind: StoreKind
    operator: str
    key: tuple[TypedColumn, ...]
    user_key: tuple[TypedColumn, ...]
    value: tuple[TypedColumn, ...]
    result: tuple[TypedColumn, ...]
    stored: tuple[TypedColumn, ...]
    """The value columns by Spark's own names, where the entry has them."""

    def named(self) -> Columns:
        """Return the columns that queries may name: a value's only if a key has one value."""
        parts = [[(each.name, each.type) for each in part] for part in (self.key, self.value, self.result)]
        return Columns(*parts) if self.kind is StoreKind.VALUE else Columns(parts[0])

    def exported(self) -> StoreColumns:
        """Return what decides the columns of an export."""
        moments = [each.type for each in self.stored if each.name == _SESSION_WINDOW]
        moment: SparkType = TimestampType()
        if moments and isinstance(moments[0], StructType) and moments[0].fields:
            moment = moments[0].fields[0].type
        return StoreColumns(
            kind=self.kind,
            operator=self.operator,
            key=_fields(self.key),
            user_key=_fields(self.user_key),
            value=_fields(self.value),
            result=_fields(self.result),
            moment=moment,
            has_timeout=bool(self.stored) and self.stored[-1].name == _TIMEOUT,
            has_ttl=self.operator.startswith(_TRANSFORM),
        )


def read_entry(entry: Mapping[str, Any]) -> StoreEntry:
    """Read an entry. Raises SchemaError for a type that this release does not know, and for a malformed entry."""
    try:
        return _read(entry)
    except UnsupportedError as error:
        raise SchemaError(error.what, where=f"store {entry['store']}", fix=error.fix) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SchemaError(
            f"this does not describe a store: {error!r}",
            where=clipped(entry),
            fix="Give what GET /v1/stores/{store} answers; use an understudy as new as the server's",
        ) from None


def _read(entry: Mapping[str, Any]) -> StoreEntry:
    value = _columns(entry["value"])
    history: Sequence[Mapping[str, Any]] = entry.get("schemas") or ()
    stored = history[-1] if history else {"key": (), "value": ()}
    return StoreEntry(
        store=entry["store"],
        kind=StoreKind(entry["kind"]),
        operator=entry["operator"],
        key=_with_nullability(_columns(entry["key"]), stored["key"]),
        user_key=_columns(entry.get("user_key", ())),
        value=value,
        result=_columns(entry.get("result", ())),
        stored=_stored(stored["value"]) or value,
    )


def _columns(said: Sequence[Mapping[str, Any]]) -> tuple[TypedColumn, ...]:
    found = _stored(said)
    if len({each.name for each in found}) != len(found):
        raise ValueError("two columns have one name")
    return found


def _stored(said: Sequence[Mapping[str, Any]]) -> tuple[TypedColumn, ...]:
    """Return columns by Spark's own names: two counts of one aggregation are both called `count`."""
    return tuple(TypedColumn(each["name"], parse_type_name(each["type"]), each.get("nullable")) for each in said)


def _with_nullability(key: tuple[TypedColumn, ...], stored: Sequence[Mapping[str, Any]]) -> tuple[TypedColumn, ...]:
    """Return the key columns with their nullability from the history of schemas, if it has the same columns."""
    if [each.type.name for each in key] != [each["type"] for each in stored]:
        return key
    return tuple(TypedColumn(each.name, each.type, said["nullable"]) for each, said in zip(key, stored, strict=True))


def _fields(columns: tuple[TypedColumn, ...]) -> tuple[Field, ...]:
    return tuple(Field(each.name, each.type) for each in columns)
