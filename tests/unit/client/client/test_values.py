"""Keys and bounds as the Python client sends them, and the position that it keeps."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.client.core.session import SessionPosition
from understudy.client.core.values import bound_members, json_value, key_target, query_of
from understudy.client.errors import UsageError
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.position import Position


def received(parts: list[Any]) -> Any:
    """The key as a server reads it out of the target."""
    target, _ = key_target(parts)
    path, _, query = target.partition("?")
    form = split_path(path.encode())
    return form[1:] if form[0] == "keys" else orjson.loads(parse_query(query.encode())["key"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_every_text_arrives_as_it_is(parts: list[str]) -> None:
    assert received(list(parts)) == parts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**62, 2**62),
        (10**30, str(10**30)),
        (Decimal("12.340"), "12.340"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (date(2026, 11, 20), "2026-11-20"),
        (datetime(2026, 11, 20, 11, tzinfo=UTC), "2026-11-20T11:00:00+00:00"),
        (b"\x00\xff", "AP8="),
        ({"a": (1, None)}, {"a": [1, None]}),
        ({1: "a"}, [[1, "a"]]),
        (True, True),
    ],
)
def test_python_values_are_sent_as_the_api_writes_them(value: Any, expected: Any) -> None:
    assert json_value(value) == expected
    assert received([{"k": value}]) == {"k": expected}


def test_a_value_without_a_form_is_refused() -> None:
    with pytest.raises(UsageError, match="object"):
        key_target([object()])


def test_bounds_are_understood_by_the_server() -> None:
    position = Position(ApplicationId("a"), Lineage("b"), 3, None).encode()
    members = bound_members(
        {"max_staleness": timedelta(milliseconds=1.5), "max_lag": 5, "require_active": True, "unknown_lag": "refuse"},
        session=position,
    )
    bound = parse_bound(parse_query(query_of(members)[1:].encode()))
    assert (bound.max_staleness_ms, bound.max_lag, bound.require_active) == (2, 5, True)
    assert bound.min_position is not None
    at = bound_members({"at": datetime(2026, 11, 25, 12, tzinfo=UTC), "wait": timedelta(seconds=1)}, session=position)
    parsed = parse_bound(parse_query(query_of(at)[1:].encode()))
    assert (parsed.min_position, parsed.wait_ms) == (None, 1000)
    assert query_of(bound_members({"max_lag": None})) == "?max_lag=none", "it takes the store's default back"


positions = st.builds(
    Position,
    st.just(ApplicationId("a")),
    st.sampled_from([Lineage("one"), Lineage("two")]),
    st.integers(0, 50),
    st.sampled_from([None, 1, 2]),
)


@given(st.lists(positions, min_size=1))
def test_a_position_never_goes_back_within_a_history(seen: list[Position]) -> None:
    session = SessionPosition()
    before: Position | None = None
    for position in seen:
        session.observe(position.encode())
        now = session._position
        assert now is not None
        if before is not None and before.lineage == now.lineage:
            assert now.version >= before.version
        assert now.lineage == position.lineage
        before = now


def test_what_is_no_position_changes_nothing() -> None:
    session = SessionPosition()
    for nonsense in (None, 5, "us1.x", "x"):
        session.observe(nonsense)
    assert session.token is None
