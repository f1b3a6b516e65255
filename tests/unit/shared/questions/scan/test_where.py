"""Comparisons mean what Spark's do, as JSON and as an expression; what cannot be compared is refused at its place."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from understudy.calls.options import question_of
from understudy.terminal.exits import CommandError
from understudy_shared.questions.scan.requests import parse_scan
from understudy_shared.questions.scan.where import (
    MAX_TERMS,
    WhereTextError,
    compile_where,
    parse_where,
    parse_where_text,
)
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Columns, walk, walk_row
from understudy_shared.spark.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    Field,
    LongType,
    SparkType,
    StringType,
    StructType,
    TimestampType,
)

WINDOW = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
COLUMNS = Columns(
    [("window", WINDOW), ("word", StringType()), ("n", LongType())],
    [("n", LongType()), ("price", DecimalType(10, 2)), ("items", ArrayType(LongType()))],
    [("mean", DoubleType())],
)
LONGS = st.integers(-(2**63), 2**63 - 1)
OPERATORS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def matches(spark_type: SparkType, op: str, literal: object, value: object) -> bool:
    (term,) = compile_where(parse_where([["c", op, literal]]), Columns([("c", spark_type)]))
    return term.matches(value)


def double_rank(value: float) -> tuple[int, float]:
    """How Spark orders doubles, written a second time: NaN behind infinity, both zeros one."""
    return (1, 0.0) if math.isnan(value) else (0, value + 0.0)


@given(st.sampled_from(sorted(OPERATORS)), LONGS, LONGS)
def test_longs_compare_as_numbers(op: str, literal: int, value: int) -> None:
    assert matches(LongType(), op, literal, value) is OPERATORS[op](value, literal)
    assert matches(LongType(), op, str(literal), value) is OPERATORS[op](value, literal)


@given(st.sampled_from(sorted(OPERATORS)), st.floats(), st.floats())
def test_doubles_compare_with_nan_greatest_and_one_zero(op: str, literal: float, value: float) -> None:
    sent: object = literal
    if not math.isfinite(literal):
        sent = "NaN" if math.isnan(literal) else "Infinity" if literal > 0 else "-Infinity"
    assert matches(DoubleType(), op, sent, value) is OPERATORS[op](double_rank(value), double_rank(literal))


@given(st.sampled_from(sorted(OPERATORS)), st.text(max_size=5), st.text(max_size=5) | st.binary(max_size=5))
def test_strings_compare_by_their_utf8_bytes(op: str, literal: str, value: str | bytes) -> None:
    try:
        wanted = literal.encode()
    except UnicodeEncodeError:
        return  # no JSON has it
    stored = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    decoded = stored.decode("utf-8", "surrogateescape")
    assert matches(StringType(), op, literal, decoded) is OPERATORS[op](stored, wanted)


@given(st.sampled_from(sorted(OPERATORS)), st.decimals(-(10**7), 10**7, places=2), st.integers(-(10**9), 10**9))
def test_decimals_compare_by_value_however_many_digits_are_sent(op: str, literal: Decimal, unscaled: int) -> None:
    value = Decimal(unscaled).scaleb(-2)
    assert matches(DecimalType(10, 2), op, str(literal.normalize()), value) is OPERATORS[op](value, literal)


@given(st.sampled_from(sorted(OPERATORS)), st.integers(-(10**15), 10**15))
def test_timestamps_compare_before_1970_too(op: str, micros: int) -> None:
    assert matches(TimestampType(), op, "1969-12-31T23:59:59.999999Z", micros) is OPERATORS[op](micros, -1)


@given(st.sampled_from([*sorted(OPERATORS), "in"]), LONGS)
def test_null_matches_no_comparison_and_its_own_tests(op: str, literal: int) -> None:
    assert not matches(LongType(), op, [literal] if op == "in" else literal, None)
    (is_null, not_null) = compile_where(
        parse_where([["n2", "is_null"], ["n2", "not_null"]]), Columns([("n2", LongType())])
    )
    assert (is_null.matches(None), not_null.matches(None)) == (True, False)
    assert (is_null.matches(literal), not_null.matches(literal)) == (False, True)


def test_a_name_of_one_column_is_enough_and_a_field_is_named_behind_its_struct() -> None:
    assert COLUMNS.find("word", "where").part == "key"
    assert COLUMNS.find("key.word", "where") == COLUMNS.find("word", "where")
    assert COLUMNS.find("mean", "where").part == "result"
    end = COLUMNS.find("window.end", "where")
    assert (end.path, end.indexes, end.type) == (("window", "end"), (0, 1), TimestampType())
    assert walk_row(((5, 6), "a", 1), end.indexes) == 6
    assert walk_row((None, "a", 1), end.indexes) is None
    assert walk({"window": {"start": "a", "end": "b"}}, end.path) == "b"
    assert walk({"window": None}, end.path) is None


@pytest.mark.parametrize(
    ("where", "says", "fix"),
    [
        pytest.param([["nowhere", "=", 1]], "there is no column 'nowhere'", "word (string)", id="unknown"),
        pytest.param([["n", "=", 1]], "'n' is the name of 2 columns", "key.n or value.n", id="of two parts"),
        pytest.param([["key.n", "=", "many"]], '"many" does not fit: it is not an integer', "42", id="no long"),
        pytest.param([["key.n", "<", None]], "null is not compared", '["key.n","<",42]', id="null"),
        pytest.param([["key.n", "in", 3]], "takes a list of values", '["key.n","in",[42]]', id="in without a list"),
        pytest.param([["items", "=", [1]]], "values of items (array<long>) are not compared", "is_null", id="array"),
        pytest.param([["price", "=", "1.005"]], "more than 2 digits after the point", "1.50", id="too exact"),
        pytest.param([["mean", "~", 1]], "'~' is not an operator", "not_null", id="operator"),
        pytest.param([["mean", "is_null", 1]], "the operator is_null takes no value", "not_null", id="a value more"),
        pytest.param([["mean", "="]], "the operator = takes one value", "not_null", id="a value less"),
        pytest.param([7], "7 is not a comparison", "column", id="no list"),
        pytest.param({"a": 1}, "where is a dict, not a list", "column", id="an object"),
        pytest.param([["mean", "not_null"]] * (MAX_TERMS + 1), "33 comparisons, above 32", "fewer", id="many"),
        pytest.param([["word", "=", "x" * 8_200]], "bytes, above 8192", "shorter", id="long"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(where: Any, says: str, fix: str) -> None:
    with pytest.raises(BadBoundError) as refused:
        compile_where(parse_where(where), COLUMNS)
    assert says in refused.value.what
    assert fix in refused.value.fix
    assert refused.value.where.startswith("where")


OPS = ("=", "!=", "<", "<=", ">", ">=")
values = st.one_of(
    st.text(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
columns = st.text(min_size=1).filter(lambda name: "\0" not in name)
terms = st.one_of(
    st.tuples(columns, st.sampled_from(OPS), values),
    st.tuples(columns, st.just("in"), st.lists(values, min_size=1, max_size=4)),
    st.tuples(columns, st.sampled_from(("is_null", "not_null"))),
)


def quoted(value: object, quote: str) -> str:
    if isinstance(value, str):
        return quote + value.replace(quote, quote * 2) + quote
    return json.dumps(value)


def written(term: tuple[object, ...], quote: str) -> str:
    column, op, *rest = term
    name = str(column)
    shown = name if name.isidentifier() and name.isascii() and name.lower() not in _WORDS else quoted(name, "`")
    if op == "in":
        assert isinstance(rest[0], list)
        return f"{shown} in ({', '.join(quoted(each, quote) for each in rest[0])})"
    if not rest:
        return f"{shown} {'IS NULL' if op == 'is_null' else 'is not null'}"
    return f"{shown}{op}{quoted(rest[0], quote)}"


_WORDS = ("and", "in", "is", "not", "null", "or", "true", "false")


@given(st.lists(terms, min_size=1, max_size=5), st.sampled_from("'\""), st.sampled_from((" and ", "\tAND\n")))
def test_an_expression_is_the_comparisons_of_its_json(found: list[tuple[object, ...]], quote: str, and_: str) -> None:
    text = and_.join(written(each, quote) for each in found)
    assert parse_where_text(text) == [list(each) for each in found]


def test_both_forms_are_one_question_at_a_server() -> None:
    text = """clicks > 990 and country = "de" and value.n <> -1.50 and `count(1)` in (1, 'it''s') and x is not null"""
    asked = [
        ["clicks", ">", 990],
        ["country", "=", "de"],
        ["value.n", "!=", -1.5],
        ["count(1)", "in", [1, "it's"]],
        ["x", "not_null"],
    ]
    assert parse_scan("scan", {"where": text}) == parse_scan("scan", {"where": json.dumps(asked)})
    short = parse_where_text("a=1 and b=.5 AND c=5. and d=+007e1")
    assert short == [["a", "=", 1], ["b", "=", 0.5], ["c", "=", 5.0], ["d", "=", 70.0]]


@pytest.mark.parametrize(
    ("text", "caret", "why"),
    [
        ("", "^", "the name of a column"),
        ("clicks > and b = 1", "         ^", "a value is expected"),
        ("a = 1 or b = 2", "      ^", "`or` is not there"),
        ("a = 'x", "    ^", "a quote is not closed"),
        ("a = null", "    ^", "is null"),
        ("a like 'x'", "  ^", "a comparison is expected"),
        ("a = 1 b = 2", "      ^", "`and` between them"),
        ("a is\nnot 1", "         ^", "null is expected"),
        ("a = 12x", "    ^", "not understood"),
    ],
)
def test_a_wrong_expression_is_shown_with_a_caret(text: str, caret: str, why: str) -> None:
    with pytest.raises(WhereTextError, match=re.escape(why)) as caught:
        parse_where_text(text)
    assert caught.value.shown.split("\n")[1] == caret


def test_the_command_line_shows_the_place_of_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="at character 10"):
        question_of({"comparisons": ["clicks > and b = 1"]})
    assert capsys.readouterr().err == "clicks > and b = 1\n         ^\n"
    assert question_of({"comparisons": ["a = 1 and b is null", '["c", "=", 2]']}) == {
        "where": [["a", "=", 1], ["b", "is_null"], ["c", "=", 2]]
    }


@given(st.text(alphabet="ab1.'\"`=<>() ,andinotul\n-é") | st.from_regex(r"a = [-+.e0-9٣]{1,5}", fullmatch=True))
@example("a > ٣")
@example("a > 1e999")
def test_any_text_is_comparisons_or_refused(text: str) -> None:
    with suppress(BadBoundError):
        assert parse_scan("scan", {"where": parse_where_text(text)}).question.where
