"""The applications that patterns choose, with generated ids."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_router.fleet.patterns import MAX_APPLICATIONS, parse_patterns, wanted
from understudy_router.settings import RouterSettings, folder_name
from understudy_shared.base.errors import SettingsError

NAMES = st.text("ab-", min_size=1, max_size=6)


@given(heard=st.sets(NAMES, max_size=20), patterns=st.lists(st.text("ab*", min_size=1, max_size=4), min_size=1))
def test_an_application_is_wanted_when_a_pattern_has_it_as_shells_match(heard: set[str], patterns: list[str]) -> None:
    expected = sorted(name for name in heard if any(fnmatchcase(name, pattern) for pattern in patterns))
    assert wanted(heard, patterns, served=()) == (expected, [])
    assert wanted(heard, patterns, served=expected) == ([], [])


def test_ids_that_are_no_segment_of_a_path_are_never_served() -> None:
    assert wanted(["a/b", "..", "x\n", "", "a" * 257, "good [1]?"], ["*"], served=()).new == ["good [1]?"]


def test_there_are_at_most_a_thousand() -> None:
    heard = [f"a{number:04}" for number in range(MAX_APPLICATIONS + 5)]
    assert wanted(heard, ["*"], served=()) == (heard[:MAX_APPLICATIONS], heard[MAX_APPLICATIONS:])
    assert wanted(heard, ["*"], served=heard[5 : MAX_APPLICATIONS + 5]) == ([], heard[:5])


@pytest.mark.parametrize("text", [",", "a,,b", " ", "a, "])
def test_an_empty_pattern_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="a pattern without a character"):
        parse_patterns(text)


def test_patterns_may_have_blanks_between_them() -> None:
    assert parse_patterns("orders-*, flights,flights") == ("orders-*", "flights")


@pytest.mark.parametrize("given", [{}, {"application_id": "a", "applications": "*"}])
def test_a_router_serves_one_application_or_many_and_says_so(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give application_id, for one query, or applications, for many"):
        RouterSettings(redis="redis://h", **given)  # type: ignore[arg-type]


IDS = st.text(min_size=1, max_size=300).filter(lambda text: text not in {".", ".."})  # no application is named so


@given(first=IDS, second=IDS)
def test_each_application_has_a_folder_of_its_own(first: str, second: str) -> None:
    names = {folder_name(each) for each in (first, second)}
    assert len(names) == len({first, second})
    assert all("/" not in name and len(name.encode()) < 256 and name not in {".", ".."} for name in names)
