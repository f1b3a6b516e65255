"""Spark's JSON of a schema, as `parse_schema` of `types.py` reads it (pure)."""

from __future__ import annotations

import json

from understudy_shared.spark.types import ArrayType, Field, MapType, SparkType, StructType


def schema_json(schema: StructType) -> bytes:
    """Return the JSON of a schema, in ASCII. Elements of arrays and maps may be null: types do not say whether."""
    return json.dumps(_type(schema)).encode("ascii")


def _type(spark_type: SparkType) -> object:
    match spark_type:
        case StructType(fields):
            return {"type": "struct", "fields": [_field(each) for each in fields]}
        case ArrayType(element):
            return {"type": "array", "elementType": _type(element), "containsNull": True}
        case MapType(key, value):
            return {"type": "map", "keyType": _type(key), "valueType": _type(value), "valueContainsNull": True}
        case _:
            return spark_type.name


def _field(field: Field) -> object:
    return {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}}
