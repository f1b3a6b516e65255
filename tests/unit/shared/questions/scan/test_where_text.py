"""A filter as an expression means what its JSON means, and a wrong one is shown at its place."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.calls.options import question_of
from understudy.terminal.exits import CommandError
from understudy_shared.questions.scan.requests import parse_scan
from understudy_shared.questions.scan.where import WhereTextError, parse_where_text
from understudy_shared.reads.bounds import BadBoundError

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
    """Return a comparison as a person writes it."""
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
        ("a in 1", "     ^", "`(` is expected"),
        ("a = 1 b = 2", "      ^", "`and` between them"),
        ("a = 1 and", "         ^", "the name of a column"),
        ("a is\nnot 1", "         ^", "null is expected"),
        ("a = 12x", "    ^", "not understood"),
        ("a ? 1", "  ^", "not understood"),
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


@given(st.text(alphabet="ab1.'\"`=<>() ,andinotul\n-é"))
def test_any_text_is_comparisons_or_refused(text: str) -> None:
    with suppress(BadBoundError):
        assert parse_scan("scan", {"where": parse_where_text(text)}).question.where
