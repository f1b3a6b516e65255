"""The schemas by which a store was written, from the schema files in the checkpoint (pure).

Columns are those that Spark stores: the key of a map has `key` and `userKey`, a value with TTL has `ttlExpirationMs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypedDict

from understudy_node.checkpoint.description import StoreDescription
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.messages import MAX_SCHEMAS
from understudy_shared.spark.types import StructType, parse_schema

Column = dict[str, str | bool]

MAX_SHOWN_CHARACTERS: Final = 65_536
"""Limit on the names and types of all columns together; the newest schema is shown whole."""


class StoreSchema(TypedDict):
    """A schema as `GET /v1/stores/{store}` shows it."""

    schema_id: int
    from_batch: int | None
    key: list[Column]
    value: list[Column]


def schema_history(store: StoreDescription, family: str) -> tuple[StoreSchema, ...]:
    """Return each schema of a column family, oldest first: its number, its first batch where the file's name has it,
    and the columns. A long history loses its oldest part; schemas that this release cannot read are left out.
    """
    found: list[tuple[int | None, ColumnFamilySchema]] = []
    for file in store.schema_files:
        schemas = file.family(family)
        if schemas is not None and not (found and _are_equal(found[-1][1], schemas)):
            found.append((file.batch_id, schemas))
    shown = []
    for batch_id, schemas in found[-MAX_SCHEMAS:]:
        with suppress(UnderstudyError, RecursionError):
            shown.append(_shown(batch_id, schemas))
    return tuple(_within_limits(shown))


def _are_equal(one: ColumnFamilySchema, other: ColumnFamilySchema) -> bool:
    return (one.key_schema, one.value_schema_id, one.value_schema) == (
        other.key_schema,
        other.value_schema_id,
        other.value_schema,
    )


def _shown(batch_id: int | None, schemas: ColumnFamilySchema) -> StoreSchema:
    return {
        "schema_id": schemas.value_schema_id,
        "from_batch": batch_id,
        "key": _columns(parse_schema(schemas.key_schema)),
        "value": _columns(parse_schema(schemas.value_schema)),
    }


def _columns(struct: StructType) -> list[Column]:
    return [{"name": each.name, "type": each.type.name, "nullable": each.nullable} for each in struct.fields]


def _within_limits(history: Sequence[StoreSchema]) -> Sequence[StoreSchema]:
    """Return the newest schemas that fit the limits together."""
    characters = 0
    for count, schema in enumerate(reversed(history)):
        columns = (*schema["key"], *schema["value"])
        characters += sum(len(str(each["name"])) + len(str(each["type"])) for each in columns)
        if characters > MAX_SHOWN_CHARACTERS and count:
            return history[-count:]
    return history
