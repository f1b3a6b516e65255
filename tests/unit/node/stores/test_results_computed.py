"""What the query would output, from the stored buffers: exactly Spark's arithmetic, or refused by name."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.stores.results import ResultAlias, ResultError, compile_results
from understudy_shared.spark.layout import DECIMAL_CONTEXT
from understudy_shared.spark.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    Field,
    LongType,
    SparkType,
    StringType,
    StructType,
)

COLUMNS: dict[str, SparkType] = {
    "n": LongType(),
    "total": LongType(),
    "real": DoubleType(),
    "text": StringType(),
    "money": DecimalType(30, 2),
    "is_empty": BooleanType(),
    "wide": DecimalType(38, 2),
}
SCHEMA = StructType(tuple(Field(name, kind) for name, kind in COLUMNS.items()))
NOTHING: dict[str, object] = dict.fromkeys(COLUMNS)


def result_of(printed: dict[str, object], function: str, *buffers: str | int, kind: str | None = None) -> object:
    alias = ResultAlias.model_validate({"function": function, "buffers": buffers, "type": kind})
    return compile_results({"out": alias}, SCHEMA, tuple(COLUMNS))({**NOTHING, **printed})["out"]


@pytest.mark.parametrize(
    ("printed", "function", "buffers", "kind", "expected"),
    [
        ({"n": 7}, "count", ("n",), None, 7),
        ({"n": 7}, "count", (0,), "bigint", 7),
        ({"total": -3}, "sum", ("total",), "long", -3),
        ({"total": None}, "sum", ("total",), None, None),
        ({"real": "NaN"}, "sum", ("real",), "double", "NaN"),
        ({"total": -1234}, "sum", ("total",), "decimal(17,2)", "-12.34"),
        ({"total": 10**17}, "sum", ("total",), "decimal(17,2)", None),
        ({"money": "1.50", "is_empty": False}, "sum", ("money", "is_empty"), "decimal(30,2)", "1.50"),
        ({"money": "0.00", "is_empty": True}, "sum", ("money", "is_empty"), None, None),
        ({"money": None, "is_empty": False}, "sum", ("money", "is_empty"), None, None),
        ({"real": 1.0, "n": 3}, "avg", ("real", "n"), "double", 1.0 / 3),
        ({"real": 0.0, "n": 0}, "avg", ("real", "n"), None, None),
        ({"real": None, "n": 0}, "avg", ("real", "n"), None, None),
        ({"real": "-Infinity", "n": 2}, "avg", ("real", "n"), None, "-Infinity"),
        ({"real": 200.0, "n": 3}, "avg", ("real", "n"), "decimal(14,6)", "0.666667"),
        ({"real": -200.0, "n": 3}, "avg", ("real", "n"), "decimal(14,6)", "-0.666667"),
        ({"money": "2.00", "n": 3}, "avg", ("money", "n"), "decimal(24,6)", "0.666667"),
        ({"money": "-2.00", "n": 3}, "avg", ("money", "n"), None, "-0.666667"),
        ({"money": "0.00", "n": 0}, "avg", ("money", "n"), None, None),
        ({"wide": "1.00", "n": 4}, "avg", ("wide", "n"), "decimal(36,6)", "0.250000"),
        ({"text": "a"}, "min", ("text",), "string", "a"),
        ({"text": None}, "max", ("text",), None, None),
        ({"text": "a"}, "max", ("text",), "struct<a:int>", "a"),
    ],
)
def test_a_result_is_what_spark_makes_of_its_buffers(
    printed: dict[str, object], function: str, buffers: tuple[str | int, ...], kind: str | None, expected: object
) -> None:
    assert result_of(printed, function, *buffers, kind=kind) == expected


@pytest.mark.parametrize(
    ("function", "buffers", "kind", "says"),
    [
        ("count", ("real",), None, "count cannot be computed exactly from (real double)"),
        ("count", ("absent",), None, "no value column 'absent'"),
        ("count", (7,), None, "no value column 7"),
        ("count", (-1,), None, "no value column -1"),
        ("count", ("n",), "int", "long, not int"),
        ("sum", ("text",), None, "sum cannot be computed exactly from (text string)"),
        ("sum", ("money",), None, "sum cannot be computed exactly from (money decimal(30,2))"),
        ("sum", ("money", "is_empty"), "decimal(29,2)", "decimal(30,2), not decimal(29,2)"),
        ("avg", ("real",), None, "avg cannot be computed exactly"),
        ("avg", ("total", "n"), None, "avg cannot be computed exactly"),
        ("avg", ("money", "n"), "decimal(25,6)", "decimal(24,6), not decimal(25,6)"),
        ("avg", ("wide", "n"), None, "does not follow from its sum"),
        ("avg", ("wide", "n"), "decimal(20,6)", "not decimal(20,6)"),
        ("min", ("text", "n"), None, "min cannot be computed exactly"),
        ("max", ("text",), "long", "string, not long"),
    ],
)
def test_a_result_that_the_buffers_do_not_give_is_refused_with_its_reason(
    function: str, buffers: tuple[str | int, ...], kind: str | None, says: str
) -> None:
    with pytest.raises(ResultError) as refused:
        result_of({}, function, *buffers, kind=kind)
    assert says in refused.value.what
    assert refused.value.where == "result out"
    assert refused.value.fix


@given(st.integers(1 - 10**20, 10**20 - 1), st.integers(1, 10**12))
def test_an_average_of_decimals_is_the_exact_quotient_rounded_half_up_once(unscaled: int, count: int) -> None:
    total = Decimal(unscaled).scaleb(-2, DECIMAL_CONTEXT)
    exact = DECIMAL_CONTEXT.divide(total, Decimal(count)).quantize(Decimal("1e-6"), ROUND_HALF_UP, DECIMAL_CONTEXT)
    found = result_of({"money": f"{total:f}", "n": count}, "avg", "money", "n")
    assert isinstance(found, str)
    assert Decimal(found) == exact
    assert len(found.partition(".")[2]) == 6


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**53))
def test_an_average_of_numbers_is_one_division_of_doubles(total: float, count: int) -> None:
    found = result_of({"real": total, "n": count}, "avg", "real", "n")
    assert isinstance(found, float)
    assert math.copysign(1.0, found) == math.copysign(1.0, total)
    assert found == total / count
