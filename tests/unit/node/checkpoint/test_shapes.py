"""A store is read as its operator's only if it has the columns that the operator writes."""

from __future__ import annotations

import pytest

from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.checkpoint.shapes import has_shape_of
from understudy_node.checkpoint.support import why_unreadable
from understudy_shared.spark.types import Field, IntType, LongType, SparkType, StringType, StructType, VoidType


def struct(**columns: SparkType) -> StructType:
    return StructType(tuple(Field(name, kind) for name, kind in columns.items()))


KEY, NO_KEY = struct(k=StringType()), struct()
SEEN, EXPIRY = struct(__dummy__=VoidType()), struct(expiresAtMicros=LongType())


@pytest.mark.parametrize(
    ("operator", "key", "value", "fits"),
    [
        ("stateStoreSave", NO_KEY, struct(count=LongType()), True),
        ("dedupe", KEY, SEEN, True),
        ("dedupe", NO_KEY, SEEN, False),
        ("dedupe", KEY, EXPIRY, False),
        ("dedupeWithinWatermark", KEY, EXPIRY, True),
        ("dedupeWithinWatermark", KEY, SEEN, False),
        ("dedupeWithinWatermark", KEY, struct(expiresAtMicros=IntType()), False),
        ("dedupeWithinWatermark", KEY, struct(expiresAtMillis=LongType()), False),
    ],
)
def test_the_columns_of_a_store_are_those_of_its_operator(
    operator: str, key: StructType, value: StructType, fits: bool
) -> None:
    assert has_shape_of(operator, key, value) is fits


def test_a_store_of_other_columns_is_refused_by_its_operator_and_columns() -> None:
    key = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
    family = ColumnFamilySchema("default", 0, key, 0, key)
    reason = why_unreadable([family], "dedupe", where="here")
    assert reason is not None
    assert "not those of dedupe" in reason.what
    assert "struct<k:string>" in reason.what
    assert why_unreadable([family], "stateStoreSave", where="here") is None
