"""Stores of any schema, as a checkpoint describes them: what readers are made of, without files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription, StoreDescription
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.engine.base import RowCache
from understudy_node.stores.lookup import StoreReader, store_readers
from understudy_node.stores.stores import StoreAlias
from understudy_shared.base.words import ApplicationId, Lineage, StoreName
from understudy_shared.spark.types import ArrayType, MapType, SparkType, StructType


def described_store(key: StructType, value: StructType) -> CheckpointDescription:
    """An aggregation of one partition."""
    family = ColumnFamilySchema("default", 0, schema_json(key), 0, schema_json(value))
    store = StoreDescription(0, "default", 0, 0, (family,))
    operator = OperatorDescription(0, "stateStoreSave", 1, (store,), None, "2")
    return CheckpointDescription("file:/none", Lineage("lineage"), None, None, (operator,), 2, None, None)


def reader_of(
    description: CheckpointDescription, row_prefix: bytes = b"\x00", aliases: Mapping[str, StoreAlias] | None = None
) -> StoreReader:
    """The reader of its one store."""
    readers = store_readers(
        description,
        aliases or {},
        application_id=ApplicationId("app"),
        row_prefix=row_prefix,
        max_key_bytes=65_536,
        replicas={},
        rows=RowCache(0),
    )
    (reader,) = readers.values()
    assert reader.store.name == StoreName("op0")
    return reader


def schema_json(struct: StructType) -> str:
    """Spark's JSON of a schema."""
    return json.dumps(_node(struct))


def _node(spark_type: SparkType) -> Any:
    match spark_type:
        case StructType(fields):
            return {
                "type": "struct",
                "fields": [
                    {"name": each.name, "type": _node(each.type), "nullable": True, "metadata": {}} for each in fields
                ],
            }
        case ArrayType(element):
            return {"type": "array", "elementType": _node(element), "containsNull": True}
        case MapType(key, value):
            return {"type": "map", "keyType": _node(key), "valueType": _node(value), "valueContainsNull": True}
        case _:
            return spark_type.name
