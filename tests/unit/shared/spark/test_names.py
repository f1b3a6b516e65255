"""Names: every column can be addressed, and the same schema gets the same names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.spark.types import unique_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ()),
        (("count", "max"), ("count", "max")),
        (("sum", "sum", "sum"), ("sum", "sum_2", "sum_3")),
        (("sum", "sum_2", "sum"), ("sum", "sum_2", "sum_3")),
        (("sum", "sum", "sum_2"), ("sum", "sum_3", "sum_2")),
        (("", ""), ("", "_2")),
    ],
)
def test_repeated_names_get_suffixes_that_nobody_has(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert unique_names(names) == expected


@given(st.lists(st.sampled_from(["a", "b", "a_2", "a_3", "a_2_2"])))
def test_names_are_unique_and_first_comers_keep_theirs(names: list[str]) -> None:
    unique = unique_names(names)
    assert len(set(unique)) == len(names)
    for index, name in enumerate(names):
        assert (unique[index] == name) == (name not in names[:index])
