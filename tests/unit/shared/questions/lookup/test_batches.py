"""Batches: their parameters, their keys, and an answer that says the same in both forms."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.repository import ROOT
from tests.support.spark.values import struct_of

from understudy.commands.reading import expanded
from understudy_shared.auth.principals import KeyScope
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.batches import (
    BatchAnswer,
    BatchForm,
    BatchKeys,
    batch_form,
    problem_result,
    resolve_keys,
)
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import StringType

DOCUMENT = (ROOT / "docs/api.md").read_text()
TEXTS = KeyCodec(struct_of(StringType()))
PARTITIONS, MAX_KEY_BYTES = 4, 100


@pytest.mark.parametrize(
    ("query", "form"),
    [
        (b"", BatchForm(is_compact=False, longs_as_text=False)),
        (b"compact=true", BatchForm(is_compact=True, longs_as_text=False)),
        (b"compact=True&longs=string", BatchForm(is_compact=True, longs_as_text=True)),
        (b"compact=1", BatchForm(is_compact=True, longs_as_text=False)),
        (b"compact=false&longs=number", BatchForm(is_compact=False, longs_as_text=False)),
    ],
)
def test_a_batch_is_long_with_numbers_unless_its_query_asks_for_something_else(query: bytes, form: BatchForm) -> None:
    assert batch_form(query) == form


keys = st.text(max_size=5).map(lambda text: [text]) | st.sampled_from(
    [None, 7, [7], ["a", "b"], {"c0": "a"}, {"c1": "a"}, [None], ["x" * MAX_KEY_BYTES]]
)


@given(st.lists(keys, max_size=12))
def test_each_key_of_a_batch_becomes_what_it_becomes_alone_or_is_a_problem_alone(batch: list[object]) -> None:
    whole = resolve_keys(TEXTS, batch, PARTITIONS, MAX_KEY_BYTES)
    one_by_one = BatchKeys([], [], [], {})
    for key in batch:
        one_by_one.extend(resolve_keys(TEXTS, [key], PARTITIONS, MAX_KEY_BYTES))
    assert whole == one_by_one
    assert set(whole.problems) == {index for index, key in enumerate(batch) if key_problem(key)}
    for index, problem in whole.problems.items():
        assert problem.type.slug == key_problem(batch[index])
    placed = sorted(index for indexes in whole.by_partition().values() for index in indexes)
    assert placed == [index for index in range(len(batch)) if index not in whole.problems]


@given(st.lists(keys, max_size=12), st.sampled_from(["", "a", "b"]))
def test_a_key_outside_of_what_was_granted_is_a_problem_and_all_others_are_as_ever(
    batch: list[object], may: str
) -> None:
    scope = KeyScope(((orjson.dumps(may),),))
    free, bound = (resolve_keys(TEXTS, batch, PARTITIONS, MAX_KEY_BYTES, *more) for more in ((), (scope,)))
    for index in range(len(batch)):
        granted = index not in free.problems and free.printed[index] == b'{"c0":%b}' % orjson.dumps(may)
        if granted:
            assert (bound.partitions[index], bound.rows[index], bound.printed[index]) == (
                free.partitions[index], free.rows[index], free.printed[index],
            )  # fmt: skip
        else:
            assert (bound.rows[index], bound.printed[index]) == (b"", b"")
            slug = key_problem(batch[index]) or "forbidden"
            assert bound.problems[index].type.slug == slug
    assert sorted(index for indexes in bound.by_partition().values() for index in indexes) == [
        index for index in range(len(batch)) if index not in bound.problems
    ]


def key_problem(key: object) -> str:
    """Why a key of `keys` has none; "" for a good one."""
    if key == ["x" * MAX_KEY_BYTES]:
        return "too-large"
    is_good = key in ({"c0": "a"}, [None]) or (isinstance(key, list) and len(key) == 1 and isinstance(key[0], str))
    return "" if is_good else "bad-key"


READS = [
    b'"partition":%d,"version":%d,"lag":{"offset_lag":null},"served_by":{"host":"n%d"},"marks":["x"],"position":"us1.a"}\n'
    % (number % 2, 7 + number, number)
    for number in range(4)
]
"""Two reads of each of two partitions: one of a router's attempts may have come from another node, or later."""
PROBLEM = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "none", extra={"candidates": [{"reason": "lag-exceeded"}]})
values: st.SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(["read", "status", "store", "n"]), st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
)
results = st.lists(st.none() | st.tuples(st.text(max_size=4), st.none() | values, st.sampled_from(READS)), max_size=9)


def answered(items: list[Any], *, is_compact: bool) -> bytes:
    """An answer of problems (None) and of (key, value, read)."""
    answer = BatchAnswer(b'"words"', is_compact=is_compact)
    joined = []
    for item in items:
        if item is None:
            joined.append(problem_result(PROBLEM))
            continue
        key, value, tail = item
        found = b'"found":false,' if value is None else b'"found":true,"value":%b,' % orjson.dumps(value)
        head = answer.absent if value is None else answer.found
        joined.append(head + orjson.dumps({"word": key}) + b"," + found + answer.end_of(tail))
    return answer.body(joined)


@given(results)
def test_a_compact_answer_expanded_is_the_long_answer(items: list[Any]) -> None:
    long, compact = (orjson.loads(answered(items, is_compact=form)) for form in (False, True))
    assert expanded(compact) == long["results"] == expanded(long)
    assert [list(item) for item in expanded(compact)] == [list(item) for item in long["results"]]
    assert len(compact["results"]) == len(items)
    used = {result["read"] for result in compact["results"] if "read" in result}
    assert used == set(range(len(compact["reads"])))
    assert len(compact["reads"]) == len({item[2] for item in items if item is not None})


@given(results)
def test_the_function_that_the_documentation_gives_expands_a_compact_answer(items: list[Any]) -> None:
    (function,) = [block for block in DOCUMENT.split("```") if "def expanded" in block]
    names: dict[str, Any] = {}
    exec(function.removeprefix("python"), names)  # our own documentation
    long, compact = (orjson.loads(answered(items, is_compact=form)) for form in (False, True))
    assert names["expanded"](compact) == long["results"]
