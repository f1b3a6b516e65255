"""The cursor of a scan continues one question of one principal; everything else is refused as what it is (Q4)."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.plausible import CEILING
from understudy_shared.questions.scan.question import PREFIX, ScanCursor, decode_scan_cursor
from understudy_shared.reads.tokens import BadCursorError, OtherLineageError

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)
CURSORS = st.builds(
    ScanCursor,
    application=NAMES,
    lineage=NAMES,
    store=NAMES,
    version=st.integers(0, CEILING),
    committed_at_us=st.none() | st.integers(-(10**18), 10**18),
    partition=st.integers(0, 10_000),
    after=st.none() | st.binary(max_size=300),
    question=st.text("0123456789abcdef", min_size=24, max_size=24),
    counted=st.integers(0, CEILING),
)
SEEN = ScanCursor("flights", "life-1", "aircraft", 7, 1_000, 2, b"key", "00ff" * 6)


def token_of(raw: str | bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(raw if isinstance(raw, bytes) else raw.encode()).decode().rstrip("=")


@given(CURSORS)
def test_a_token_decodes_to_the_cursor_it_was_made_from(cursor: ScanCursor) -> None:
    token = cursor.encode()
    assert decode_scan_cursor(token) == cursor
    assert token.isascii()
    assert not set(token) & set("+/=&?# ")


@given(CURSORS, st.data())
def test_a_token_with_one_changed_or_missing_character_is_refused(cursor: ScanCursor, data: st.DataObject) -> None:
    token = cursor.encode()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCDEFabcdef0123_-.").filter(lambda each: each != token[at]))
    for changed in (token[:at], token[:at] + other + token[at + 1 :], token[:at] + token[at + 1 :]):
        with pytest.raises(BadCursorError):
            decode_scan_cursor(changed)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("uc1." + SEEN.encode()[4:], id="the cursor of a key"),
        pytest.param(SEEN.encode() + "=", id="padded"),
        pytest.param(replace(SEEN, version=2**63).encode(), id="a version beyond all"),
        pytest.param(replace(SEEN, partition=-1).encode(), id="a partition below 0"),
        pytest.param(replace(SEEN, counted=-1).encode(), id="a count below 0"),
        pytest.param(token_of("[" * 1_000), id="deep"),
        pytest.param(7, id="no text"),
    ],
)
def test_what_is_no_cursor_is_refused_with_what_to_send(token: object) -> None:
    with pytest.raises(BadCursorError, match="is not a cursor of a scan") as refused:
        decode_scan_cursor(token)
    assert refused.value.where == "cursor"
    assert "next_cursor" in refused.value.fix


def test_a_cursor_of_something_else_is_refused_by_what_is_different() -> None:
    own = ("flights", "life-1", "aircraft", "00ff" * 6)
    SEEN.require_of(*own)
    with pytest.raises(BadCursorError, match="of the application 'flights', not of 'other'"):
        SEEN.require_of("other", *own[1:])
    with pytest.raises(BadCursorError, match="of the store 'aircraft', not of 'airlines'"):
        SEEN.require_of(*own[:2], "airlines", own[3])
    with pytest.raises(BadCursorError, match="of another question, or of another principal"):
        SEEN.require_of(*own[:3], "ff00" * 6)
    with pytest.raises(OtherLineageError, match="of lineage 'life-1', and this store is of life-2"):
        SEEN.require_of(own[0], "life-2", *own[2:])
