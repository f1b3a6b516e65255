"""Tokens survive the round trip; positions merge by maximum; what a service did not issue as it stands is refused."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.bound_parsing import bound_fields, parse_bound
from understudy_shared.reads.bounds import MAX_PAGE_ELEMENTS, NO_BOUND, BadBoundError, Bound, Selection
from understudy_shared.reads.tokens import (
    CURSOR_PREFIX,
    LEASE_PREFIX,
    MAX_CURSOR_CHARS,
    MAX_TTL_S,
    POSITION_PREFIX,
    BadCursorError,
    BadPositionError,
    OtherLineageError,
    PageCursor,
    Position,
    SnapshotLease,
    decode_cursor,
    decode_lease,
    decode_position,
    decode_snapshot,
    key_digest,
    new_lease,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)
POSITIONS = st.builds(
    Position,
    application_id=NAMES.map(ApplicationId),
    lineage=NAMES.map(Lineage),
    version=st.integers(0, CEILING),
    committed_at_us=st.none() | st.integers(-(10**18), 10**18),
)
CURSORS = st.builds(
    PageCursor,
    store=NAMES,
    lineage=NAMES,
    key=st.binary(max_size=40).map(key_digest),
    version=st.integers(0, CEILING),
    committed_at_us=st.none() | st.integers(-(10**18), 10**18),
    offset=st.integers(1, CEILING),
    place=st.text("abc!~,", max_size=300),
)
LEASES = st.builds(SnapshotLease, POSITIONS, st.text(min_size=1, max_size=32), st.integers(1, MAX_TTL_S))
SEEN = PageCursor("visits", "life-1", key_digest(b"row"), 7, 1_000, 20)
AT = Position(ApplicationId("flights"), Lineage("6f1c"), 418, 1)


def at(version: int, committed_at_us: int | None = None) -> Position:
    return Position(ApplicationId("a"), Lineage("life-1"), version, committed_at_us)


def token_of(text: str | bytes, prefix: str = POSITION_PREFIX) -> str:
    raw = text if isinstance(text, bytes) else text.encode()
    return prefix + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@given(POSITIONS, CURSORS, LEASES)
def test_a_token_decodes_to_what_it_was_made_from(position: Position, cursor: PageCursor, lease: SnapshotLease) -> None:
    assert decode_position(position.encode()) == position
    assert decode_snapshot(position.encode()) == (position, None)
    assert decode_cursor(cursor.encode()) == cursor
    assert len(cursor.encode()) < MAX_CURSOR_CHARS
    if len(lease.encode()) <= 2048:
        assert decode_lease(lease.encode()) == lease
        assert decode_snapshot(lease.encode()) == (lease.position, lease)
    for token in (position.encode(), cursor.encode(), lease.encode()):
        assert token.isascii()
        assert not set(token) & set("+/=&?# ")


@given(st.text() | st.text().map(POSITION_PREFIX.__add__) | st.binary(max_size=200).map(token_of))
def test_whatever_a_reader_sends_is_a_position_or_refused_as_one(text: str) -> None:
    try:
        position = decode_position(text)
    except BadPositionError:
        return
    assert position.encode() == text


@given(
    st.text()
    | st.text().map(CURSOR_PREFIX.__add__)
    | st.binary(max_size=200).map(lambda raw: token_of(raw, CURSOR_PREFIX))
)
def test_whatever_a_reader_sends_is_a_cursor_or_refused_as_one(text: str) -> None:
    try:
        cursor = decode_cursor(text)
    except BadCursorError:
        return
    assert cursor.encode() == text


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("us2." + at(3).encode()[4:], id="another release's prefix"),
        pytest.param(at(3).encode() + "=", id="padded"),
        pytest.param(at(3).encode() + "A", id="one character more"),
        pytest.param(POSITION_PREFIX + "é", id="not ASCII"),
        pytest.param(token_of(b"\xff\xfe\xff"), id="not UTF-8"),
        pytest.param(token_of('["a","b",1'), id="not JSON"),
        pytest.param(token_of("[" * 1200), id="JSON nested too deep"),
        pytest.param(token_of('["a","b",3,null,5]'), id="a field too many"),
        pytest.param(token_of('["a",7,3,null]'), id="a numeric lineage"),
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
    assert (refusal.value.where, bool(refusal.value.fix)) == ("min_position", True)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("us1." + SEEN.encode()[4:], id="a position"),
        pytest.param(token_of('["visits","l","00",7,null]', CURSOR_PREFIX), id="a field too few"),
        pytest.param(token_of('["visits","l","00",7,null,true]', CURSOR_PREFIX), id="an offset that is a truth"),
        pytest.param(token_of('["visits","l","00",7,null,20,7]', CURSOR_PREFIX), id="a place that is a number"),
        pytest.param(token_of('["visits","l","00",7,null,20,""]', CURSOR_PREFIX), id="a place that is empty"),
        pytest.param(replace(SEEN, offset=0).encode(), id="an offset that no page ends at"),
        pytest.param(replace(SEEN, version=2**63).encode(), id="a version beyond all"),
        pytest.param(CURSOR_PREFIX + "A" * MAX_CURSOR_CHARS, id="long"),
        pytest.param(7, id="no text"),
    ],
)
def test_what_is_no_cursor_is_refused_with_what_to_send(token: object) -> None:
    with pytest.raises(BadCursorError, match="is not a cursor") as refused:
        decode_cursor(token)
    assert refused.value.where == "cursor"
    assert "next_cursor" in refused.value.fix


@pytest.mark.parametrize(
    "fields",
    [
        ["a", "l", 3, 5, "id", 0],
        ["a", "l", 3, 5, "id", MAX_TTL_S + 1],
        ["a", "l", -3, 5, "id", 60],
        ["a", "l", 10**18, 5, "id", 60],
        ["a", "l", True, 5, "id", 60],
        ["a", "l", 3, 5, "", 60],
        ["a", "l", 3, 5, "x" * 33, 60],
        ["a", "l", 3, 5, "id"],
    ],
    ids=str,
)
def test_fields_that_no_service_issues_are_refused(fields: list[object]) -> None:
    token = token_of(json.dumps([*fields, "0" * 12], separators=(",", ":")), LEASE_PREFIX)
    with pytest.raises(BadPositionError, match="fields are not as they were issued"):
        decode_lease(token)


@given(LEASES, st.data())
def test_a_token_that_was_altered_anywhere_is_refused(lease: SnapshotLease, data: st.DataObject) -> None:
    token = lease.encode()
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_.=%").filter(lambda each: each != token[place]))
    for altered in (token[:place] + other + token[place + 1 :], token[:place], token + other):
        with pytest.raises(BadPositionError):
            decode_snapshot(altered)


def test_the_token_is_the_documented_form() -> None:
    body = at(418, 1_700_000_000_000_000).encode().removeprefix("us1.")
    fields = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert fields == ["a", "life-1", 418, 1_700_000_000_000_000]


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
    with pytest.raises(OtherLineageError) as refusal:
        a.merge(b)
    assert "Drop the older token" in refusal.value.fix


def test_one_version_committed_at_two_times_is_a_rewound_history_and_does_not_merge() -> None:
    with pytest.raises(OtherLineageError, match="version 3 was committed twice") as refusal:
        at(3, 1_000).merge(at(3, 2_000))
    assert isinstance(refusal.value, UnderstudyError)
    assert "rewound" in refusal.value.fix


def test_a_cursor_of_something_else_is_refused_by_what_is_different() -> None:
    SEEN.require_of("visits", "life-1")
    SEEN.require_key(b"row")
    with pytest.raises(BadCursorError, match="of the store 'visits', not of 'other'"):
        SEEN.require_of("other", "life-1")
    with pytest.raises(BadCursorError, match="of lineage 'life-1', and this store is of life-2"):
        SEEN.require_of("visits", "life-2")
    with pytest.raises(BadCursorError, match="of another key"):
        SEEN.require_key(b"another")


@given(st.integers(1, MAX_PAGE_ELEMENTS), st.none() | CURSORS, st.booleans())
def test_a_selection_is_parsed_to_itself_and_the_whole_is_no_bound(
    limit: int, cursor: PageCursor | None, include_expired: bool
) -> None:
    selection = Selection(limit, cursor, include_expired)
    bound = parse_bound(selection.fields())
    assert bound == Bound(selection=selection)
    as_text = {name: str(value) for name, value in selection.fields().items()}
    assert parse_bound(as_text) == bound
    assert (bound == NO_BOUND) is (selection == Selection())


def test_a_bound_takes_a_lease_for_a_position_and_a_hop_carries_the_position_alone() -> None:
    lease = new_lease(AT, 60)
    bound = parse_bound({"snapshot": lease.encode()})
    assert (bound.snapshot, bound.lease) == (AT, lease)
    assert bound.read_version == parse_bound({"snapshot": AT.encode()}).read_version
    assert bound_fields(bound) == bound_fields(parse_bound({"snapshot": AT.encode()}))
    assert new_lease(AT, 60) != lease, "each has its own id"
    with pytest.raises(BadBoundError):
        parse_bound({"snapshot": lease.encode(), "max_lag": "1"})
    with pytest.raises(BadPositionError, match="position token"):
        parse_bound({"min_position": lease.encode()})
