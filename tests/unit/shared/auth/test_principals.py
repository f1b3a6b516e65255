"""What no grant allows is denied; a prefix of a key is compared value by value, by type."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.principals import (
    ANONYMOUS,
    ANYBODY,
    EVERY_KEY,
    EVERY_STORE,
    OF_STORES,
    PEER,
    Action,
    Grant,
    KeyScope,
    Principal,
)

STORES = ("a", "b", "c")
VALUES = st.sampled_from([0, 1, "", "1", "a", True, False])
PREFIXES = st.lists(VALUES, max_size=3).map(lambda values: tuple(map(orjson.dumps, values)))
GRANTS = st.lists(
    st.builds(
        Grant,
        st.frozensets(st.sampled_from(sorted(OF_STORES)), min_size=1),
        st.frozensets(st.sampled_from([*STORES, EVERY_STORE]), min_size=1, max_size=2),
        PREFIXES,
    ),
    max_size=4,
)
KEYS = st.lists(VALUES, max_size=4).map(lambda values: {f"k{index}": value for index, value in enumerate(values)})


def allows(grant: Grant, store: str, action: Action, key: dict[str, Any]) -> bool:
    """The meaning of one grant, said as simply as possible."""
    values = [orjson.dumps(value) for value in key.values()]
    is_named = store in grant.stores or EVERY_STORE in grant.stores
    return action in grant.actions and is_named and values[: len(grant.key_prefix)] == list(grant.key_prefix)


@given(GRANTS, st.sampled_from([*STORES, "unheard-of"]), st.sampled_from(sorted(OF_STORES)), KEYS)
def test_a_key_may_be_asked_for_if_and_only_if_some_grant_allows_it(
    grants: list[Grant], store: str, action: Action, key: dict[str, Any]
) -> None:
    scope = Principal("p", grants).keys_of(store, action)
    assert (scope is not None and scope.allows(key)) == any(allows(grant, store, action, key) for grant in grants)


@given(GRANTS, st.lists(st.sampled_from([*STORES, "unheard-of"]), max_size=6))
def test_a_remembered_decision_is_the_decision(grants: list[Grant], stores: list[str]) -> None:
    principal = Principal("p", grants)
    for store in stores:
        remembered, keys = principal.points(store.encode()), principal.keys_of(store, Action.POINT)
        assert (None if remembered is None else remembered.keys) == keys
        assert remembered is None or remembered.principal is principal


def test_what_is_remembered_is_bounded_and_stays_right() -> None:
    principal = Principal("p", [Grant(frozenset({Action.POINT}), frozenset({"a"}))])
    for number in range(5000):
        assert principal.points(b"store-%d" % number) is None
        assert principal.points(b"a") is not None
    assert len(principal._points) <= 1024


@pytest.mark.parametrize("action", list(Action))
def test_nobody_who_is_unknown_may_do_anything_and_anybody_may_where_nobody_is_asked(action: Action) -> None:
    assert not ANONYMOUS.may(action)
    assert ANONYMOUS.keys_of("a", action) is None
    assert not ANONYMOUS.sees("a")
    assert ANYBODY.may(action)
    assert ANYBODY.keys_of("a", action) is EVERY_KEY


def test_another_service_of_the_application_reads_nothing_by_the_calls_of_readers() -> None:
    assert PEER.is_peer
    assert PEER.keys_of("a", Action.POINT) is None
    assert not PEER.may(Action.MONITOR)
    assert [each.is_peer for each in (ANONYMOUS, Principal("p", []))] == [False, False]


@pytest.mark.parametrize(
    ("prefix", "key", "is_allowed"),
    [
        (["t"], {"tenant": "t", "id": 1}, True),
        (["t"], {"tenant": "t2", "id": 1}, False),
        (["t"], {}, False),
        (["t", 1], {"tenant": "t", "id": 1}, True),
        (["t", 1], {"tenant": "t", "id": True}, False),
        (["t", 1], {"tenant": "t", "id": "1"}, False),
        (["t", 1], {"tenant": "t"}, False),
    ],
)
def test_a_prefix_is_whole_values_of_the_same_type(prefix: list[Any], key: dict[str, Any], is_allowed: bool) -> None:
    assert KeyScope((tuple(map(orjson.dumps, prefix)),)).allows(key) == is_allowed
