"""A place in a cursor is believed by the process that sealed it, for the list that it was sealed for, by no other."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.stores.finder import MAX_START_BYTES, PlaceSealer
from understudy_shared.reads.bounds import FIRST_PLACE, ElementPlace
from understudy_shared.reads.tokens import PageCursor, decode_cursor, key_digest

CURSOR = PageCursor("visits", "life-1", key_digest(b"row"), 7, 1_000, 20)
OURS, THEIRS = PlaceSealer(b"ours"), PlaceSealer(b"theirs")
PLACES = st.builds(ElementPlace, st.integers(0, 20), st.binary(min_size=1, max_size=MAX_START_BYTES))


@given(PLACES)
def test_a_place_is_known_again_by_its_issuer_alone(place: ElementPlace) -> None:
    cursor = decode_cursor(OURS.put(CURSOR, place).encode())
    assert OURS.of(cursor) == place
    assert THEIRS.of(cursor) == FIRST_PLACE
    assert replace(cursor, place="") == CURSOR


@pytest.mark.parametrize(
    "other",
    [{"store": "x"}, {"lineage": "x"}, {"key": "00"}, {"version": 8}, {"committed_at_us": None}, {"offset": 4}],
    ids=lambda other: next(iter(other)),
)
def test_a_place_of_another_list_or_behind_the_offset_is_none(other: dict[str, object]) -> None:
    cursor = OURS.put(CURSOR, ElementPlace(5, b"five"))
    assert OURS.of(replace(cursor, **other)) == FIRST_PLACE  # type: ignore[arg-type]
    assert OURS.of(replace(cursor, offset=5)) == ElementPlace(5, b"five")


@given(PLACES, st.data())
def test_a_place_that_was_changed_is_none(place: ElementPlace, data: st.DataObject) -> None:
    sealed = bytearray(base64.b85decode(OURS.put(CURSOR, place).place))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    assert OURS.of(replace(CURSOR, place=base64.b85encode(sealed).decode())) == FIRST_PLACE


def test_issuers_in_turn_keep_each_others_places_and_replace_their_own() -> None:
    first = OURS.put(CURSOR, ElementPlace(1, b"one"))
    second = THEIRS.put(CURSOR, ElementPlace(2, b"two"), beside=first)
    third = OURS.put(CURSOR, ElementPlace(3, b"three"), beside=second)
    assert (OURS.of(second), THEIRS.of(second)) == (ElementPlace(1, b"one"), ElementPlace(2, b"two"))
    assert (OURS.of(third), THEIRS.of(third)) == (ElementPlace(3, b"three"), ElementPlace(2, b"two"))
