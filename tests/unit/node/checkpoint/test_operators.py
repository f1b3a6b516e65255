"""Which operators are served, which columns theirs are, and which operator wrote state without metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.checkpoint.bytes import struct_json
from tests.support.checkpoint.handmade import schema_json

from understudy_node.checkpoint.operators import has_shape_of, infer_operator, join_tables, stores_of, why_unreadable
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_shared.base.errors import UnsupportedError
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


def test_keys_with_a_prefix_are_refused_where_the_operator_has_none() -> None:
    """RocksDB keeps them apart: they would never be found."""
    family = ColumnFamilySchema("default", 0, struct_json("k"), 0, struct_json("k"))
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
    key, number = schema_json(("field0", "string")), schema_json(("value", "long"))
    good = ColumnFamilySchema("left-keyToNumValues", 0, key, 0, number, "NoPrefixKeyStateEncoderSpec")
    other = replace(good, name="right-keyWithIndexToValue")
    ordered = replace(good, key_encoder="RangeKeyScanStateEncoderSpec")
    assert why_unreadable([good], "symmetricHashJoin", "3", where="here") is None
    for unread, says in ((other, "do not fit symmetricHashJoin"), (ordered, "RangeKeyScan")):
        reason = why_unreadable([good, unread], "symmetricHashJoin", "3", where="here")
        assert reason is not None
        assert says in reason.what
    several = why_unreadable([good, good], "symmetricHashJoin", "2", table="left-keyToNumValues", where="here")
    assert several is not None


_SPARK = "spark.sql.streaming"
AGGREGATIONS, GROUPS = f"{_SPARK}.aggregation.stateFormatVersion", f"{_SPARK}.flatMapGroupsWithState.stateFormatVersion"
OF_3 = {AGGREGATIONS: "2", GROUPS: "2"}
"""The settings of each query that Spark 2.4 or later began."""
OF_2_3: dict[str, str] = {}
ROW = struct(k=StringType(), n=LongType())


@pytest.mark.parametrize(
    ("columns", "conf", "operator"),
    [
        ((KEY, SEEN), OF_3, "dedupe"),
        ((KEY, ROW), OF_3, "dedupe"),
        ((KEY, EXPIRY), OF_3, "dedupeWithinWatermark"),
        ((LIMIT, struct(value=LongType())), OF_3, "globalLimit"),
        ((SESSION, struct(k=StringType(), session_window=SPAN)), OF_3, "sessionWindowStateStoreSaveExec"),
        ((KEY, struct(groupState=STATE)), OF_3, "flatMapGroupsWithState"),
        ((KEY, struct(n=LongType())), OF_3, "stateStoreSave"),
        ((NO_KEY, struct(count=LongType())), OF_3, "stateStoreSave"),
        ((KEY, struct(n=LongType())), OF_2_3, "flatMapGroupsWithState"),
        ((KEY, struct(n=LongType())), OF_3 | {AGGREGATIONS: "1"}, "none that is known"),
    ],
)
def test_columns_and_settings_say_the_operator(
    columns: tuple[StructType, StructType], conf: dict[str, str], operator: str
) -> None:
    if operator == "none that is known":
        with pytest.raises(UnsupportedError, match=operator):
            infer_operator(3, {"default": columns}, conf, where="here")
        return
    found = infer_operator(3, {"default": columns}, conf, where="here")
    assert (found.operator_id, found.operator_name, bool(found.inferred_from)) == (3, operator, True)
    (store,) = found.stores
    assert (store.name, store.num_cols_prefix_key) == (
        "default",
        len(SESSION.fields) - 1 if "session" in operator else 0,
    )


@pytest.mark.parametrize(
    ("columns", "conf", "operators"),
    [
        ((KEY, struct(n=LongType())), OF_3 | {GROUPS: "1"}, ["aggregations", "flatMapGroupsWithState"]),
        ((KEY, ROW), OF_2_3, ["dropDuplicates", "aggregations", "flatMapGroupsWithState"]),
        ((struct(count=IntType()), struct(count=IntType())), OF_3, ["dropDuplicates", "aggregations"]),
    ],
)
def test_where_several_operators_fit_each_is_named_and_none_taken(
    columns: tuple[StructType, StructType], conf: dict[str, str], operators: list[str]
) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        infer_operator(0, {"default": columns}, conf, where="here")
    assert [each for each in operators if each not in refusal.value.what] == []
    assert "Spark 4.0 or later" in refusal.value.fix
    named = infer_operator(0, {"default": columns}, conf, named="stateStoreSave", where="here")
    assert named.operator_name == "stateStoreSave"
    with pytest.raises(UnsupportedError):
        infer_operator(0, {"default": columns}, conf, named="globalLimit", where="here")


def test_a_join_is_known_by_its_directories_in_the_order_of_sparks_metadata() -> None:
    tables = [f"{side}-{table}" for side in ("left", "right") for table in ("keyToNumValues", "keyWithIndexToValue")]
    assert stores_of([*reversed(tables), "_metadata"]) == tuple(tables)
    assert stores_of(["1.delta", "_metadata"]) == ("default",)
    found = infer_operator(1, dict.fromkeys(tables, (KEY, ROW)), {}, where="here")
    assert (found.operator_name, [store.name for store in found.stores]) == ("symmetricHashJoin", tables)
