"""An operator without metadata is known by its directories, columns and settings, and never guessed."""

from __future__ import annotations

import pytest
from tests.unit.node.checkpoint.test_shapes import EXPIRY, KEY, LIMIT, NO_KEY, SEEN, SESSION, SPAN, STATE, struct

from understudy_node.checkpoint.operators import infer_operator, stores_of
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.spark.types import IntType, LongType, StringType, StructType

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
