"""The columns of an export of a store (pure)."""

from __future__ import annotations

from understudy_node.checkpoint.operators import SESSION_WINDOW
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_node.stores.group_state import has_timeout
from understudy_node.stores.stores import ServedStore
from understudy_shared.questions.export.columns import ExportColumns, Fields, StoreColumns
from understudy_shared.questions.scan.prefix import row_columns
from understudy_shared.spark.types import Field, SparkType, StructType, TimestampType


def export_columns(store: ServedStore, fields: Fields | None = None) -> ExportColumns:
    """Return the columns of an export of a store. `fields` names the value and result columns; None: all."""
    codec = store.codec
    key = _named(codec.names, [field.type for field in codec.key.fields])
    count = row_columns(codec)
    columns = StoreColumns(
        kind=store.kind,
        operator=store.operator_name,
        key=key[:count],
        user_key=key[count:],
        value=_named(store.value_names, [field.type for field in store.value_schema.fields]),
        result=tuple(Field(name, each) for name, each in store.result_types),
        moment=_moment(store),
        has_timeout=has_timeout(store.value_schema),
        has_ttl=store.operator_name in TRANSFORM,
    )
    return columns.columns(fields)


def _named(names: tuple[str, ...], types: list[SparkType]) -> tuple[Field, ...]:
    return tuple(Field(name, each) for name, each in zip(names, types, strict=True))


def _moment(store: ServedStore) -> SparkType:
    """Return the type of the start of a session, which is that of the query's event time."""
    for field in store.value_schema.fields:
        if field.name == SESSION_WINDOW and isinstance(field.type, StructType) and field.type.fields:
            return field.type.fields[0].type
    return TimestampType()
