"""A token says what a reader has seen: it survives the round trip, merges by maximum, and is refused when not ours."""

from __future__ import annotations

import base64
import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import (
    POSITION_PREFIX,
    BadPositionError,
    LineageChangedError,
    Position,
    decode_position,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)
TIMES = st.none() | st.integers(-(10**18), 10**18)
POSITIONS = st.builds(
    Position,
    application_id=NAMES.map(ApplicationId),
    lineage=NAMES.map(Lineage),
    version=st.integers(0, 2**63),
    committed_at_us=TIMES,
)


def at(
    version: int, committed_at_us: int | None = None, *, lineage: str = "life-1", application: str = "a"
) -> Position:
    return Position(ApplicationId(application), Lineage(lineage), version, committed_at_us)


def token_of(text: str | bytes) -> str:
    raw = text if isinstance(text, bytes) else text.encode()
    return POSITION_PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@given(POSITIONS)
def test_a_token_decodes_to_the_position_it_was_made_from(position: Position) -> None:
    token = position.encode()
    assert decode_position(token) == position
    assert token.isascii()
    assert not set(token) & set("+/=&?# ")


@given(st.text() | st.text().map(POSITION_PREFIX.__add__) | st.binary(max_size=200).map(token_of))
def test_whatever_a_reader_sends_is_a_position_or_refused_as_one(text: str) -> None:
    try:
        position = decode_position(text)
    except BadPositionError:
        return
    assert position.encode() == text


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("418", id="a bare version"),
        pytest.param("us2." + at(3).encode()[4:], id="another release's prefix"),
        pytest.param(at(3).encode()[4:], id="without prefix"),
        pytest.param(at(3).encode() + "=", id="padded"),
        pytest.param(at(3).encode() + "A", id="one character more"),
        pytest.param(POSITION_PREFIX + "é", id="not ASCII"),
        pytest.param(POSITION_PREFIX + "!!!!", id="not base64"),
        pytest.param(token_of(b"\xff\xfe\xff"), id="not UTF-8"),
        pytest.param(token_of('["a","b",1'), id="not JSON"),
        pytest.param(token_of("[" * 1200), id="JSON nested too deep"),
        pytest.param(token_of('{"version":3}'), id="an object"),
        pytest.param(token_of('["a","b",3]'), id="a field missing"),
        pytest.param(token_of('["a","b",3,null,5]'), id="a field too many"),
        pytest.param(token_of('["a",7,3,null]'), id="a numeric lineage"),
        pytest.param(token_of('["a","b","3",null]'), id="a textual version"),
        pytest.param(token_of('["a","b",3.0,null]'), id="a fractional version"),
        pytest.param(token_of('["a","b",-1,null]'), id="a negative version"),
        pytest.param(token_of('["a","b",true,null]'), id="a boolean version"),
        pytest.param(token_of('["a","b",3,true]'), id="a boolean commit time"),
        pytest.param(token_of('["a","\\ud800",3,null]'), id="half a surrogate pair"),
        pytest.param(token_of('["a", "b", 3, null]'), id="written by somebody else"),
    ],
)
def test_a_foreign_token_is_refused_with_what_to_do(token: str) -> None:
    with pytest.raises(BadPositionError) as refusal:
        decode_position(token)
    assert refusal.value.where == "min_position"
    assert refusal.value.fix == "Send the `position` of an earlier answer, unchanged"


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1))
def test_positions_of_one_history_merge_to_the_latest_in_any_order(seen: list[tuple[int, bool]]) -> None:
    positions = [at(version, 1000 + version if is_timed else None) for version, is_timed in seen]
    merged = reduce(Position.merge, positions)
    assert merged.version == max(position.version for position in positions)
    assert merged == reduce(Position.merge, reversed(positions))
    # The commit time is kept if any token of that version had it.
    known = {position.committed_at_us for position in positions if position.version == merged.version}
    assert merged.committed_at_us == max(known, key=lambda time: -1 if time is None else time)


@given(POSITIONS, POSITIONS)
def test_positions_of_two_lineages_or_applications_never_merge(a: Position, b: Position) -> None:
    if (a.application_id, a.lineage) == (b.application_id, b.lineage):
        assert a.merge(a) == a
        return
    with pytest.raises(LineageChangedError) as refusal:
        a.merge(b)
    assert "Drop the older token" in refusal.value.fix


def test_one_version_committed_at_two_times_is_a_rewound_history_and_does_not_merge() -> None:
    with pytest.raises(LineageChangedError, match="version 3 was committed twice") as refusal:
        at(3, 1_000).merge(at(3, 2_000))
    assert isinstance(refusal.value, UnderstudyError)
    assert "rewound" in refusal.value.fix


def test_the_token_is_the_documented_form() -> None:
    body = at(418, 1_700_000_000_000_000).encode().removeprefix("us1.")
    fields = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert fields == ["a", "life-1", 418, 1_700_000_000_000_000]
