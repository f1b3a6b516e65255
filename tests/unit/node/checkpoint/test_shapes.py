"""A store is read as its operator's only if it has the columns that the operator writes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from understudy_node.checkpoint.operators import has_shape_of, join_tables, why_unreadable
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_shared.spark.types import (
    BooleanType,
    Field,
    IntType,
    LongType,
    SparkType,
    StringType,
    StructType,
    TimestampType,
    VoidType,
)


def struct(**columns: SparkType) -> StructType:
    return StructType(tuple(Field(name, kind) for name, kind in columns.items()))


KEY, NO_KEY = struct(k=StringType()), struct()
STATE, LIMIT = struct(groupState=struct(n=IntType())), struct(key=VoidType())
SPAN = struct(start=TimestampType(), end=TimestampType())
SESSION = struct(k=StringType(), sessionStartTime=TimestampType())
SEEN, EXPIRY = struct(__dummy__=VoidType()), struct(expiresAtMicros=LongType())


@pytest.mark.parametrize(
    ("operator", "state_format", "key", "value", "fits"),
    [
        ("stateStoreSave", "2", NO_KEY, struct(count=LongType()), True),
        ("dedupe", None, KEY, SEEN, True),
        ("dedupe", None, KEY, struct(other=LongType(), k=StringType()), True),
        ("dedupe", None, NO_KEY, SEEN, False),
        ("dedupe", None, KEY, EXPIRY, False),
        ("dedupeWithinWatermark", None, KEY, EXPIRY, True),
        ("dedupeWithinWatermark", None, KEY, SEEN, False),
        ("dedupeWithinWatermark", None, KEY, struct(expiresAtMicros=IntType()), False),
        ("dedupeWithinWatermark", None, KEY, struct(expiresAtMillis=LongType()), False),
        ("applyInPandasWithState", "2", KEY, STATE, True),
        ("flatMapGroupsWithState", "2", NO_KEY, struct(groupState=STATE, timeoutTimestamp=LongType()), True),
        ("flatMapGroupsWithState", "2", KEY, struct(groupState=STATE, timeoutTimestamp=IntType()), False),
        ("flatMapGroupsWithState", "2", KEY, struct(n=IntType()), False),
        ("flatMapGroupsWithState", "1", KEY, struct(n=IntType()), True),
        ("flatMapGroupsWithState", "1", KEY, struct(n=IntType(), timeoutTimestamp=IntType()), True),
        ("flatMapGroupsWithState", None, KEY, struct(n=IntType(), timeoutTimestamp=LongType()), False),
        ("globalLimit", None, LIMIT, struct(value=LongType()), True),
        ("globalLimit", None, KEY, struct(value=LongType()), False),
        ("sessionWindowStateStoreSaveExec", "1", SESSION, struct(k=StringType(), session_window=SPAN), True),
        ("sessionWindowStateStoreSaveExec", "1", SESSION, struct(k=StringType()), False),
        ("sessionWindowStateStoreSaveExec", "1", SESSION, struct(session_window=LongType()), False),
        ("sessionWindowStateStoreSaveExec", "1", KEY, struct(session_window=SPAN), False),
    ],
)
def test_the_columns_of_a_store_are_those_of_its_operator(
    operator: str, state_format: str | None, key: StructType, value: StructType, fits: bool
) -> None:
    assert has_shape_of(operator, key, value, state_format=state_format) is fits


def test_a_store_of_other_columns_is_refused_by_its_operator_and_columns() -> None:
    key = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
    family = ColumnFamilySchema("default", 0, key, 0, key.replace('"k"', '"other"'))
    reason = why_unreadable([family], "dedupe", None, where="here")
    assert reason is not None
    assert "not those of dedupe" in reason.what
    assert "struct<other:string>" in reason.what
    assert why_unreadable([family], "stateStoreSave", "2", where="here") is None


def test_keys_with_a_prefix_are_refused_where_the_operator_has_none() -> None:
    """RocksDB keeps them apart: they would never be found."""
    key = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
    family = ColumnFamilySchema("default", 0, key, 0, key)
    assert why_unreadable([family], "stateStoreSave", "2", num_cols_prefix_key=1, where="here") is not None


def test_the_tables_of_a_join_have_each_their_columns() -> None:
    counts = (KEY, struct(value=LongType()))
    rows = (struct(field0=StringType(), index=LongType()), struct(n=IntType(), matched=BooleanType()))
    unmatched = (rows[0], struct(n=IntType()))  # state format 1
    timed = (struct(field0=StringType(), __event_time=LongType()), rows[1])
    times = (timed[0], struct(n=IntType()))
    suffixes = ("keyToNumValues", "keyWithIndexToValue", None, "keyWithTsToValues")
    for table in sorted(join_tables("2") | join_tables("4")):
        fitting = [
            has_shape_of("symmetricHashJoin", *columns, state_format="2", table=table)
            for columns in (counts, rows, unmatched, timed)
        ]
        own = [table.partition("-")[2] == suffix for suffix in suffixes]
        assert fitting == (own if not table.endswith("tsWithKey") else [False, False, False, True]), table
        assert has_shape_of("symmetricHashJoin", *times, table=table) is table.endswith("tsWithKey")
    assert not has_shape_of("symmetricHashJoin", *counts, state_format="2", table="left-tsWithKey")
    assert not has_shape_of("symmetricHashJoin", *counts, state_format="2", table="default")


def test_a_join_whose_tables_are_column_families_is_judged_by_each_of_them() -> None:
    def columns(*pairs: tuple[str, str]) -> str:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs]
        return json.dumps({"type": "struct", "fields": fields})

    key, number = ("field0", "string"), ("value", "long")
    good = ColumnFamilySchema("left-keyToNumValues", 0, columns(key), 0, columns(number), "NoPrefixKeyStateEncoderSpec")
    other = replace(good, name="right-keyWithIndexToValue")
    ordered = replace(good, key_encoder="RangeKeyScanStateEncoderSpec")
    assert why_unreadable([good], "symmetricHashJoin", "3", where="here") is None
    for unread, says in ((other, "not those of symmetricHashJoin"), (ordered, "RangeKeyScan")):
        reason = why_unreadable([good, unread], "symmetricHashJoin", "3", where="here")
        assert reason is not None
        assert says in reason.what
    several = why_unreadable([good, good], "symmetricHashJoin", "2", table="left-keyToNumValues", where="here")
    assert several is not None
