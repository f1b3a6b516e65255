"""The applications that patterns choose, with generated ids."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_router.fleet import wanted
from understudy_router.settings import RouterSettings

NAMES = st.text("ab-", min_size=1, max_size=6)


@given(heard=st.sets(NAMES, max_size=20), patterns=st.lists(st.text("ab*", min_size=1, max_size=4), min_size=1))
def test_an_application_is_wanted_when_a_pattern_has_it_as_shells_match(heard: set[str], patterns: list[str]) -> None:
    expected = sorted(name for name in heard if any(fnmatchcase(name, pattern) for pattern in patterns))
    assert wanted(heard, patterns, served=()) == (expected, [])
    assert wanted(heard, patterns, served=expected) == ([], [])


def test_ids_that_are_no_segment_of_a_path_are_never_served() -> None:
    assert wanted(["a/b", "..", "x\n", "", "a" * 257, "good [1]?"], ["*"], served=())[0] == ["good [1]?"]


@pytest.mark.parametrize("given", [{}, {"application_id": "a", "applications": "*"}])
def test_a_router_serves_one_application_or_many_and_says_so(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give application_id, for one query, or applications, for many"):
        RouterSettings(redis="redis://h", **given)  # type: ignore[arg-type]
