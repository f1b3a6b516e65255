"""Keys and bounds as the Python client sends them, and the position that it keeps."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.client.core.state import SessionPosition
from understudy.client.core.values import json_value, key_target
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.reads.tokens import Position


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
