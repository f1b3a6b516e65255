"""Which applications have keys on a bus, and what is said of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus.gossip import MAX_NAMED, Applications, Names, unheard_fix, unheard_text


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50), max_size=5))
def test_every_application_is_found_by_its_keys_whatever_its_name(names: set[str]) -> None:
    keys = [key for name in names for key in (Names(name).node("a"), Names(name).node("b"), Names(name).lease)]
    assert Applications.of_keys(keys, is_all=True).nodes == dict.fromkeys(sorted(names), 2)


@pytest.mark.parametrize(
    "key", ["", "us:{", "us:{}:node:a", "us:{a", "us:{a b}:node:a", "us:{%FF}:node:a", "x{a}:node:b"]
)
def test_keys_that_no_application_has_are_left_out(key: str) -> None:
    assert Applications.of_keys([key, f"us:{{{'n' * 257}}}:lease"], is_all=True).nodes == {}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "no other application is heard there"),
        ({"fligths": 0}, "no other application is heard there"),
        ({"old": 0}, "no other application is heard there, but there are keys of: 'old'"),
        ({"flights": 2, "old": 0}, "heard there: 'flights'"),
    ],
)
def test_applications_with_nodes_are_named_before_those_that_left_keys(found: dict[str, int], text: str) -> None:
    said = unheard_text("fligths", Applications(found), where="redis://h")
    assert said == f"no node of application 'fligths' is heard on redis://h; {text}"


def test_what_is_said_is_bounded_and_printable() -> None:
    found = Applications({f"{number}\x1b[2J{'x' * 200}": 1 for number in range(50)}, is_all=False)
    said = unheard_fix("y" * 256, found, where="redis://h")
    assert said.isprintable()
    assert f"and {50 - MAX_NAMED} more (it has more keys than were read)" in said
    assert len(said) < 1000
