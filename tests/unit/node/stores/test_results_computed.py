"""What the query would output, from the stored buffers: exactly Spark's arithmetic, or refused by name."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.stores.result_functions import (
    LEAST_PRECISION,
    REGISTER_BITS,
    REGISTERS_PER_WORD,
    ResultError,
    estimate,
    precision_of,
    words_of,
)
from understudy_node.stores.results import ResultAlias, compile_results
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DecimalType,
    DoubleType,
    Field,
    LongType,
    SparkType,
    StringType,
    StructType,
)
from understudy_shared.spark.unsafe_row import DECIMAL_CONTEXT, compile_row_encoder

COLUMNS: dict[str, SparkType] = {
    "n": LongType(),
    "total": LongType(),
    "real": DoubleType(),
    "text": StringType(),
    "money": DecimalType(30, 2),
    "is_empty": BooleanType(),
    "wide": DecimalType(38, 2),
    "avg": DoubleType(),
    "m2": DoubleType(),
    "m3": DoubleType(),
    "m4": DoubleType(),
    "m5": DoubleType(),
    "stored": BinaryType(),
}
SCHEMA = StructType(tuple(Field(name, kind) for name, kind in COLUMNS.items()))
NOTHING: dict[str, object] = dict.fromkeys(COLUMNS)


MOMENTS = ("real", "avg", "m2", "m3", "m4", "m5")

MANY = (160.0, 5.286855670103093, 5.486587078651685, 54.33112185798675, 160.0, 1472.2647571474122)
"""Buffers of a regression whose intercept has another last digit in Spark 4.2."""


def moments(*stored: float | str) -> dict[str, object]:
    """Buffers of doubles, as they are printed."""
    return dict(zip(MOMENTS, stored, strict=False))


def result_of(printed: dict[str, object], function: str, *buffers: str | int, kind: str | None = None) -> object:
    alias = ResultAlias.model_validate({"function": function, "buffers": buffers, "type": kind})
    return compile_results({"out": alias}, SCHEMA, tuple(COLUMNS)).print({**NOTHING, **printed})["out"]


@pytest.mark.parametrize(
    ("printed", "function", "buffers", "kind", "expected"),
    [
        ({"n": 7}, "count", (0,), "bigint", 7),
        ({"total": -3}, "sum", ("total",), "long", -3),
        ({"total": None}, "sum", ("total",), None, None),
        ({"real": "NaN"}, "sum", ("real",), "double", "NaN"),
        ({"total": -1234}, "sum", ("total",), "decimal(17,2)", "-12.34"),
        ({"total": 10**17}, "sum", ("total",), "decimal(17,2)", None),
        ({"money": "1.50", "is_empty": False}, "sum", ("money", "is_empty"), "decimal(30,2)", "1.50"),
        ({"money": "0.00", "is_empty": True}, "sum", ("money", "is_empty"), None, None),
        ({"money": None, "is_empty": False}, "sum", ("money", "is_empty"), None, None),
        ({"real": 0.0, "n": 0}, "avg", ("real", "n"), None, None),
        ({"real": None, "n": 0}, "avg", ("real", "n"), None, None),
        ({"real": "-Infinity", "n": 2}, "avg", ("real", "n"), None, "-Infinity"),
        ({"real": 200.0, "n": 3}, "avg", ("real", "n"), "decimal(14,6)", "0.666667"),
        ({"real": -200.0, "n": 3}, "avg", ("real", "n"), "decimal(14,6)", "-0.666667"),
        ({"money": "2.00", "n": 3}, "avg", ("money", "n"), "decimal(24,6)", "0.666667"),
        ({"money": "0.00", "n": 0}, "avg", ("money", "n"), None, None),
        ({"wide": "1.00", "n": 4}, "avg", ("wide", "n"), "decimal(36,6)", "0.250000"),
        ({"text": "a"}, "min", ("text",), "string", "a"),
        ({"text": "a"}, "max", ("text",), "struct<a:int>", "a"),
        ({"total": 7, "is_empty": False}, "try_sum", ("total", "is_empty"), "bigint", 7),
        ({"total": 0, "is_empty": True}, "try_sum", ("total", "is_empty"), None, None),
        ({"total": None, "is_empty": False}, "try_sum", ("total", "is_empty"), None, None),
        ({"total": -7, "is_empty": False}, "try_sum", ("total", "is_empty"), "decimal(16,2)", "-0.07"),
        ({"total": 0, "is_empty": True}, "try_sum", ("total", "is_empty"), "decimal(16,2)", None),
        ({"real": "Infinity"}, "try_sum", ("real",), None, "Infinity"),
        ({"text": None, "is_empty": True}, "first", ("text", "is_empty"), "string", None),
        ({"text": "z", "is_empty": True}, "last", ("text", "is_empty"), None, "z"),
        ({"text": "z", "real": "NaN"}, "max_by", ("text", "real"), None, "z"),
        ({"text": "a", "real": -0.0}, "min_by", ("text", "real"), None, "a"),
        ({"n": 5}, "bit_xor", ("n",), None, 5),
        ({"real": "NaN"}, "product", ("real",), "double", "NaN"),
        (moments(0.0, 0.0, 0.0), "var_samp", MOMENTS[:3], None, None),
        (moments(2.0, 0.0), "var_samp", MOMENTS[:3], None, None),
        (moments(3.0, 4.0, 2.0), "var_samp", MOMENTS[:3], "double", 1.0),
        (moments(3.0, 4.0, 8.0), "stddev_samp", MOMENTS[:3], None, 2.0),
        (moments(2.0, "NaN", "NaN"), "stddev_pop", MOMENTS[:3], None, "NaN"),
        (moments(2.0, 1.0, "Infinity"), "var_pop", MOMENTS[:3], None, "Infinity"),
        (moments(2.0, 1.0, -1e-300), "stddev_pop", MOMENTS[:3], None, "NaN"),
        (moments(4.0, 1.0, 0.0, 0.0), "skewness", MOMENTS[:4], None, None),
        (moments(4.0, 1.0, 4.0, 4.0), "skewness", MOMENTS[:4], None, 1.0),
        (moments(4.0, 1.0, 1e-200, 1e-300), "skewness", MOMENTS[:4], None, None),
        (moments(4.0, 1.0, 4.0, 4.0, 16.0), "kurtosis", MOMENTS[:5], None, 1.0),
        (moments(4.0, 1.0, -0.0, 0.0, 0.0), "kurtosis", MOMENTS[:5], None, None),
        (moments(1.0, 4.0, 5.0, 0.0), "covar_samp", MOMENTS[:4], None, None),
        (moments(2.0, 4.0, 5.0, 3.0), "covar_samp", MOMENTS[:4], None, 3.0),
        (moments(2.0, 4.0, 5.0, 3.0), "covar_pop", MOMENTS[:4], None, 1.5),
        (moments(3.0, 0.0, 0.0, 2.0, 4.0, 1.0), "corr", MOMENTS, None, 1.0),
        (moments(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), "corr", MOMENTS, None, None),
        (moments(3.0, 0.0, 0.0, 0.0, 4.0, 0.0), "corr", MOMENTS, None, None),
        (moments(3.0, 0.0, "NaN", "NaN", 0.0, "NaN"), "corr", MOMENTS, None, None),
        (moments(3.0, "NaN", 0.0, "NaN", "NaN", -0.0), "corr", MOMENTS, None, None),
        (moments(3.0, "NaN", 0.0, "NaN", "NaN", 1.0), "corr", MOMENTS, None, "NaN"),
        (moments(3.0, 0.0, "NaN", "NaN", 0.0, "NaN"), "corr_4_2", MOMENTS, None, "NaN"),
        (moments(3.0, 0.0, 0.0, 0.0, 4.0, 0.0), "corr_4_2", MOMENTS, None, None),
        (moments(3.0, 0.0, 0.0, 1.0, 1e-200, 1e-200), "corr", MOMENTS, None, None),
        (moments(0.0, 0.0, 0.0), "regr_sxx", MOMENTS[:3], None, None),
        (moments(1.0, 5.0, 0.0), "regr_sxx", MOMENTS[:3], None, 0.0),
        (moments(2.0, 1.0, 2.0, -3.0), "regr_sxy", MOMENTS[:4], None, -3.0),
        (moments(2.0, 1.0, 2.0, -3.0, 4.0, 9.0), "regr_r2", MOMENTS, None, 0.25),
        (moments(2.0, 1.0, 2.0, 0.0, 4.0, 0.0), "regr_r2", MOMENTS, None, None),
        (moments(2.0, 1.0, 2.0, 0.0, 0.0, "NaN"), "regr_r2", MOMENTS, None, 1.0),
        (moments(2.0, 1.0, 2.0, 0.0, 1e-200, 1e-200), "regr_r2", MOMENTS, None, None),
        (moments(2.0, 1.0, 2.0, 3.0, 2.0, 1.0), "regr_slope", (*MOMENTS[:5], "avg", "m4"), None, 1.5),
        (moments(2.0, 1.0, 2.0, 3.0, 2.0, 0.0), "regr_slope", (*MOMENTS[:5], "avg", "m5"), None, None),
        (moments(2.0, 4.0, 2.0, 3.0, 2.0, 1.0), "regr_intercept", (*MOMENTS[:5], "avg", "m4"), None, -4.0),
        (moments(2.0, 1.0, 2.0, 3.0, 2.0, 0.0), "regr_intercept", (*MOMENTS[:5], "avg", "m5"), None, None),
        (moments(*MANY), "regr_intercept", (*MOMENTS[:5], "avg", "m5"), None, 5.2914857571920155),
        (moments(*MANY), "regr_intercept_4_2", (*MOMENTS[:5], "avg", "m5"), None, 5.291485757192016),
        ({"stored": None}, "collect_list", ("stored",), "array<int>", None),
        ({"n": None}, "approx_count_distinct", ("n",) * 52, None, None),
        ({"n": 0}, "approx_count_distinct", ("n",) * 52, None, 0),
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
        ("count", (70,), None, "no value column 70"),
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
        ("try_sum", ("text", "is_empty"), None, "try_sum cannot be computed exactly"),
        ("first", ("text",), None, "first cannot be computed exactly from (text string)"),
        ("max_by", ("text",), None, "max_by cannot be computed exactly"),
        ("product", ("n",), None, "product cannot be computed exactly from (n long)"),
        ("var_pop", ("real", "avg"), None, "var_pop cannot be computed exactly"),
        ("corr", (*MOMENTS[:5], "n"), None, "corr cannot be computed exactly"),
        ("approx_count_distinct", ("n",) * 53, None, "n long, ...)"),
        ("approx_count_distinct", ("real",) * 52, None, "approx_count_distinct cannot be computed exactly"),
        ("collect_list", ("text",), "array<int>", "collect_list cannot be computed exactly from (text string)"),
        ("collect_set", ("stored",), None, "without the type of its elements"),
        ("collect_set", ("stored",), "array<nothing>", "without the type of its elements"),
        ("collect_list", ("stored",), "int", "without the type of its elements"),
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


@pytest.mark.parametrize("function", ["var_pop", "var_samp", "stddev_pop", "stddev_samp", "skewness", "kurtosis"])
@given(rows=st.integers(1, 10**9), stored=st.lists(st.floats(), min_size=4, max_size=4))
def test_no_buffers_make_a_moment_fail_and_every_one_can_be_printed(
    function: str, rows: int, stored: list[float]
) -> None:
    printed = moments(float(rows), *(value if math.isfinite(value) else repr(value) for value in stored))
    columns = {"skewness": 4, "kurtosis": 5}.get(function, 3)
    found = result_of(printed, function, *MOMENTS[:columns])
    assert found is None or found in ("NaN", "Infinity", "-Infinity") or math.isfinite(float(str(found)))
    json.dumps(found, allow_nan=False)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_variances_are_those_of_the_values(values: list[float]) -> None:
    mean = math.fsum(values) / len(values)
    m2 = math.fsum((value - mean) ** 2 for value in values)
    printed = moments(float(len(values)), mean, m2)
    population, sample = (result_of(printed, name, *MOMENTS[:3]) for name in ("var_pop", "var_samp"))
    assert population == m2 / len(values)
    assert sample == (m2 / (len(values) - 1) if len(values) > 1 else None)
    deviation = result_of(printed, "stddev_pop", *MOMENTS[:3])
    assert deviation == math.sqrt(m2 / len(values))


@given(st.lists(st.text() | st.none()), st.sampled_from(["array<string>", ArrayType(StringType()).name]))
def test_a_list_has_the_elements_that_are_stored_in_their_order(elements: list[str | None], kind: str) -> None:
    row = StructType((Field("elements", ArrayType(StringType())),))
    stored = b64encode(compile_row_encoder(row)((elements,))).decode()
    assert result_of({"stored": stored}, "collect_list", "stored", kind=kind) == elements


@given(st.lists(st.binary()))
def test_a_set_of_binary_is_kept_as_arrays_of_numbers_and_printed_as_binary(elements: list[bytes]) -> None:
    row = StructType((Field("elements", ArrayType(ArrayType(ByteType()))),))
    numbers = [list(memoryview(each).cast("b")) for each in elements]
    stored = b64encode(compile_row_encoder(row)((numbers,))).decode()
    printed = [b64encode(each).decode() for each in elements]
    assert result_of({"stored": stored}, "collect_set", "stored", kind="array<binary>") == printed
    assert result_of({"stored": None}, "collect_set", "stored", kind="array<binary>") is None


@given(st.integers(LEAST_PRECISION, 9), st.data())
def test_a_sketch_counts_something_if_and_only_if_a_register_is_set(bits: int, data: st.DataObject) -> None:
    registers = data.draw(st.lists(st.integers(0, 3), min_size=2**bits, max_size=2**bits))
    words = [0] * words_of(bits)
    assert estimate(words, precision_of(bits)) == 0
    for place, register in enumerate(registers):
        words[place // REGISTERS_PER_WORD] |= register << REGISTER_BITS * (place % REGISTERS_PER_WORD)
    found = estimate(words, precision_of(bits))
    assert (found > 0) is any(registers)
