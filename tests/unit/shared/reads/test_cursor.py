"""A cursor continues one list: of its store, key, lineage and version; everything else is refused as what it is."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.plausible import CEILING
from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.bounds import MAX_PAGE_ELEMENTS, NO_BOUND, Bound, Selection
from understudy_shared.reads.tokens import (
    CURSOR_PREFIX,
    MAX_CURSOR_CHARS,
    BadCursorError,
    PageCursor,
    decode_cursor,
    key_digest,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)
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
SEEN = PageCursor("visits", "life-1", key_digest(b"row"), 7, 1_000, 20)


def token_of(text: str | bytes) -> str:
    raw = text if isinstance(text, bytes) else text.encode()
    return CURSOR_PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@given(CURSORS)
def test_a_token_decodes_to_the_cursor_it_was_made_from(cursor: PageCursor) -> None:
    token = cursor.encode()
    assert decode_cursor(token) == cursor
    assert token.isascii()
    assert not set(token) & set("+/=&?# ")
    assert len(token) < MAX_CURSOR_CHARS


@given(st.text() | st.text().map(CURSOR_PREFIX.__add__) | st.binary(max_size=200).map(token_of))
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
        pytest.param("20", id="a number"),
        pytest.param("us1." + SEEN.encode()[4:], id="a position"),
        pytest.param(SEEN.encode() + "=", id="padded"),
        pytest.param(SEEN.encode() + "A", id="one character more"),
        pytest.param(token_of('["visits","l","00",7,null]'), id="a field too few"),
        pytest.param(token_of('["visits","l","00",7,null,true]'), id="an offset that is a truth"),
        pytest.param(token_of('["visits","l","00",7,null,20,7]'), id="a place that is a number"),
        pytest.param(token_of('["visits","l","00",7,null,20,""]'), id="a place that is empty"),
        pytest.param(token_of('["visits","l","00",7,null,20,"x","y"]'), id="a field too many"),
        pytest.param(replace(SEEN, offset=0).encode(), id="an offset that no page ends at"),
        pytest.param(replace(SEEN, offset=-1).encode(), id="an offset below 0"),
        pytest.param(replace(SEEN, version=2**63).encode(), id="a version beyond all"),
        pytest.param(token_of("[" * 1_000), id="deep"),
        pytest.param(CURSOR_PREFIX + "A" * MAX_CURSOR_CHARS, id="long"),
        pytest.param(7, id="no text"),
        pytest.param([SEEN.encode()], id="a list"),
    ],
)
def test_what_is_no_cursor_is_refused_with_what_to_send(token: object) -> None:
    with pytest.raises(BadCursorError, match="is not a cursor") as refused:
        decode_cursor(token)
    assert refused.value.where == "cursor"
    assert "next_cursor" in refused.value.fix


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
