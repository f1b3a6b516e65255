"""From the description of a plan to what is announced: nothing is guessed, everything that is certain is announced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_pipeline.announcing.query_plan import (
    Function,
    Output,
    PlanColumn,
    QueryPlan,
    StatefulAggregate,
    StatefulJoin,
    WrittenAggregate,
    announced_stores,
)
from understudy_shared.bus.messages import AnnouncedStore, ResultColumn

KEY = PlanColumn(1, "k", "string")
COUNT = PlanColumn(10, "count", "long")
SUM, EMPTY = PlanColumn(11, "sum", "decimal(20,2)"), PlanColumn(12, "isEmpty", "boolean")
AVG_SUM, AVG_COUNT = PlanColumn(13, "sum", "double"), PlanColumn(14, "count", "long")
MAX = PlanColumn(15, "max", "timestamp")

EXECUTED = StatefulAggregate(
    operator_id=0,
    state_format=2,
    keys=(KEY,),
    saved=(KEY, COUNT, SUM, EMPTY, AVG_SUM, AVG_COUNT, MAX),
    functions=(Function("Count", 50, 1), Function("Sum", 51, 2), Function("Average", 52, 2), Function("Max", 53, 1)),
)
WRITTEN = WrittenAggregate(
    grouping_types=("string",),
    outputs=(
        Output(60, "tailnum", "string", grouping=0),
        Output(61, "flights", "long", result_ids=(50,)),
        Output(62, "total", "decimal(20,2)", result_ids=(51,)),
        Output(63, "mean", "double", result_ids=(52,)),
        Output(64, "last_seen", "timestamp", result_ids=(53,)),
    ),
    result_ids=frozenset({50, 51, 52, 53}),
    alias="aircraft",
)
RESULTS = [
    ResultColumn(name="flights", function="count", buffers=[0], type="long"),
    ResultColumn(name="total", function="sum", buffers=[1, 2], type="decimal(20,2)"),
    ResultColumn(name="mean", function="avg", buffers=[3, 4], type="double"),
    ResultColumn(name="last_seen", function="max", buffers=[5], type="timestamp"),
]


def announced(executed: StatefulAggregate = EXECUTED, written: WrittenAggregate | None = WRITTEN) -> AnnouncedStore:
    (store,) = announced_stores(QueryPlan((executed,), () if written is None else (written,)), {})
    return store


def test_names_buffers_and_results_come_from_the_plan() -> None:
    assert announced() == AnnouncedStore(
        operator_id=0,
        name="aircraft",
        key=["tailnum"],
        value=["count", "sum", "isEmpty", "sum_2", "count_2", "max"],
        result=RESULTS,
    )


def test_the_first_row_format_stores_the_keys_again_before_the_buffers() -> None:
    store = announced(replace(EXECUTED, state_format=1))
    assert store.value == ["k", "count", "sum", "isEmpty", "sum_2", "count_2", "max"]
    assert [column.buffers for column in store.result] == [[1], [2, 3], [4, 5], [6]]


def test_of_sessions_whole_rows_are_stored_and_the_window_is_no_key() -> None:
    window = PlanColumn(2, "session_window", "struct")
    executed = replace(EXECUTED, state_format=1, saved=(window, *EXECUTED.saved), session=window)
    outputs = (replace(WRITTEN.outputs[0], grouping=1), *WRITTEN.outputs[1:])
    written = replace(WRITTEN, grouping_types=("struct", "string"), outputs=outputs)
    store = announced(executed, written)
    assert (store.name, store.key) == ("aircraft", ["tailnum"])
    assert store.value is not None
    assert store.value[:3] == ["session_window", "k", "count"]
    assert [(column.name, column.buffers) for column in store.result] == [
        ("flights", [2]),
        ("total", [3, 4]),
        ("mean", [5, 6]),
        ("last_seen", [7]),
    ]
    two_structs = replace(written, grouping_types=("struct", "struct"))
    assert announced(replace(executed, keys=(replace(KEY, type="struct"),)), two_structs).key == ["k"]


def test_an_alias_of_two_stores_names_neither_and_their_columns_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    other = replace(EXECUTED, operator_id=1)
    stores = announced_stores(QueryPlan((EXECUTED, other), (WRITTEN,)), {})
    assert [(store.operator_id, store.name) for store in stores] == [(0, None), (1, None)]
    assert all(store.result == RESULTS for store in stores)
    assert "aircraft" in caplog.text


def test_a_plan_that_cannot_be_matched_has_sparks_names_and_no_results() -> None:
    for written in (None, replace(WRITTEN, result_ids=frozenset({99}))):
        store = announced(written=written)
        assert store.name is None
        assert store.key == ["k"]
        assert store.value == ["count", "sum", "isEmpty", "sum_2", "count_2", "max"]
        assert store.result == []


def test_renames_below_the_alias_count_and_those_above_it_do_not() -> None:
    count = Output(71, "departures", "long", source=61)
    projection = (Output(60, "tailnum", "string", source=60), count)
    renamed = announced(written=replace(WRITTEN, projections=(projection,)))
    assert [column.name for column in renamed.result] == ["departures", "total", "mean", "last_seen"]
    again = (Output(72, "trips", "long", source=71), Output(73, "plane", "string", source=60))
    twice = announced(written=replace(WRITTEN, projections=(projection, again)))
    assert twice.key == ["plane"]
    assert twice.result[0].name == "trips"
    assert announced(written=replace(WRITTEN, projections=(projection,), alias=None)).result == RESULTS


@pytest.mark.parametrize(
    ("kind", "buffers", "result", "expected"),
    [
        ("Count", ["long"], "long", "count"),
        ("Count", ["long", "long"], "long", None),
        ("Sum", ["long"], "long", "sum"),
        ("Sum", ["double"], "double", "sum"),
        ("Sum", ["decimal(20,2)", "boolean"], "decimal(20,2)", "sum"),
        ("Sum", ["long"], "decimal(17,2)", "sum"),
        ("Sum", ["long", "boolean"], "long", "try_sum"),
        ("Sum", ["long", "boolean"], "decimal(16,2)", "try_sum"),
        ("Sum", ["interval day to second", "boolean"], "interval day to second", None),
        ("Sum", ["interval day to second"], "interval day to second", None),
        ("Average", ["double", "long"], "double", "avg"),
        ("Average", ["double", "long"], "decimal(11,6)", "avg"),
        ("Average", ["decimal(30,2)", "long"], "decimal(24,6)", "avg"),
        ("Average", ["interval day to second", "long"], "interval day to second", None),
        ("Min", ["string"], "string", "min"),
        ("Max", ["struct"], "struct", "max"),
        ("Max", ["long"], "decimal(10,2)", None),
        ("First", ["string", "boolean"], "string", "first"),
        ("First", ["string"], "string", None),
        ("Last", ["string", "boolean"], "string", "last"),
        ("Last", ["string", "boolean"], "long", None),
        ("CollectList", ["binary"], "array", None),
        ("CollectList", ["binary"], '{"type":"array","elementType":"string","containsNull":false}', "collect_list"),
        ("CollectSet", ["binary"], '{"type":"array","elementType":"string","containsNull":false}', "collect_set"),
        ("CollectList", ["binary"], '{"type":"array","elementType":"' + 256 * "x" + '"}', "collect_list"),
        ("CollectList", ["binary"], '{"type":"array","elementType":"' + 65_536 * "x" + '"}', None),
        ("MaxBy", ["string", "long"], "string", "max_by"),
        ("MinBy", ["long", "string"], "long", "min_by"),
        ("MaxBy", ["binary"], "array", None),
        ("BitXorAgg", ["integer"], "integer", "bit_xor"),
        ("Product", ["double"], "double", "product"),
        ("VarianceSamp", ["double"] * 3, "double", "var_samp"),
        ("LegacyVarianceSamp", ["double"] * 3, "double", None),
        ("Kurtosis", ["double"] * 5, "double", "kurtosis"),
        ("Kurtosis", ["double"] * 4, "double", None),
        ("Corr", ["double"] * 6, "double", "corr"),
        ("Corr42", ["double"] * 6, "double", "corr_4_2"),
        ("LegacyCorr", ["double"] * 6, "double", None),
        ("RegrReplacement", ["double"] * 3, "double", "regr_sxx"),
        ("RegrSXY", ["double"] * 4, "double", "regr_sxy"),
        ("RegrR2", ["double"] * 6, "double", "regr_r2"),
        ("RegrSlope", ["double"] * 7, "double", "regr_slope"),
        ("RegrIntercept", ["double"] * 7, "double", "regr_intercept"),
        ("RegrIntercept", ["double"] * 6, "double", None),
        ("RegrIntercept42", ["double"] * 7, "double", "regr_intercept_4_2"),
        ("HyperLogLogPlusPlus", ["long"] * 52, "long", "approx_count_distinct"),
        ("HyperLogLogPlusPlus", ["long"] * 4097, "long", None),
        ("HyperLogLogPlusPlus", ["double"] * 52, "long", None),
        ("CentralMomentAgg", ["double", "double", "double"], "double", None),
    ],
)
def test_a_result_is_announced_only_where_it_is_certain(
    kind: str, buffers: list[str], result: str, expected: str | None
) -> None:
    columns = tuple(PlanColumn(10 + at, f"b{at}", each) for at, each in enumerate(buffers))
    executed = StatefulAggregate(0, 2, (KEY,), (KEY, *columns), (Function(kind, 50, len(columns)),))
    output = Output(61, "made", result, result_ids=(50,))
    written = WrittenAggregate(("string",), (output,), frozenset({50}))
    found = announced(executed, written).result
    assert [column.function for column in found] == ([] if expected is None else [expected])
    assert [column.buffers for column in found] == ([] if expected is None else [list(range(len(buffers)))])


@given(st.lists(st.integers(1, 3), max_size=6), st.integers(0, 3), st.sampled_from([1, 2]))
def test_every_result_points_at_the_buffers_of_its_own_function(
    widths: list[int], keys: int, state_format: int
) -> None:
    key_columns = tuple(PlanColumn(at, f"k{at}", "string") for at in range(keys))
    ids = iter(range(100, 200))
    buffers = [
        [PlanColumn(next(ids), f"f{function}", "long") for _ in range(width)] for function, width in enumerate(widths)
    ]
    saved = (*key_columns, *(column for each in buffers for column in each))
    functions = tuple(Function("Count", 500 + at, width) for at, width in enumerate(widths))
    outputs = tuple(Output(600 + at, f"f{at}", "long", result_ids=(500 + at,)) for at in reversed(range(len(widths))))
    written = WrittenAggregate(("string",) * keys, outputs, frozenset(500 + at for at in range(len(widths))))
    store = announced(StatefulAggregate(0, state_format, key_columns, saved, functions), written)
    stored = saved if state_format == 1 else saved[keys:]
    assert store.value is not None
    assert len(store.value) == len(stored)
    assert {column.name for column in store.result} == {f"f{at}" for at, width in enumerate(widths) if width == 1}
    for column in store.result:
        assert [stored[index].name for index in column.buffers] == [column.name]


@pytest.mark.parametrize(
    ("left", "right", "key"),
    [
        (("order_id", "shop"), ("order_id", "shop"), ["order_id", "shop"]),
        (("id",), ("order_id",), ["id"]),
        ((None, "shop"), ("hour", None), ["hour", "shop"]),
        (("shop", None), ("shop", None), ["shop", "field1"]),
        (("k", "k"), ("a", "b"), ["k", "k_2"]),
        ((None,), (None,), None),
        (("",), ("",), None),
    ],
)
def test_the_key_of_a_join_has_the_names_of_its_equal_columns(
    left: tuple[str | None, ...], right: tuple[str | None, ...], key: list[str] | None
) -> None:
    plan = QueryPlan((EXECUTED,), (WRITTEN,), (StatefulJoin(1, left, right),))
    found = announced_stores(plan, {})
    assert found[1:] == ([] if key is None else [AnnouncedStore(operator_id=1, key=key)])
    assert announced_stores(plan, {1: "pairs"})[1] == AnnouncedStore(operator_id=1, name="pairs", key=key)
