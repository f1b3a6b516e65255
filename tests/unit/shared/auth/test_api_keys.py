"""Keys are made of chance, kept as digests, and recognised in one form only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.presented import KEY, ApiKey, derived_key, digest_of, new_key, presented_in
from understudy_shared.auth.principals import ANONYMOUS

HEADER = b"authorization"


def stored(text: str, *, expires_s: float = float("inf")) -> ApiKey:
    found = KEY.fullmatch(text)
    assert found is not None
    return ApiKey(found[1], digest_of(text.encode()), ANONYMOUS, expires_s)


def test_a_key_is_recognised_in_the_header_of_a_request() -> None:
    key = new_key()
    for scheme in (b"Bearer ", b"bearer ", b"BEARER  "):
        presented = presented_in([(b"host", b"x"), (HEADER, scheme + key.text.encode())])
        assert presented is not None
        assert presented.key_id == key.key_id
        assert presented.proves(stored(key.text))


KEY_TEXT = new_key().text.encode()


@pytest.mark.parametrize(
    "headers",
    [
        [(HEADER, b"")],
        [(HEADER, b"Bearer")],
        [(HEADER, b"Basic " + KEY_TEXT)],
        [(HEADER, KEY_TEXT)],
        [(HEADER, b"Bearer " + KEY_TEXT + b" ")],
        [(HEADER, b"Bearer " + KEY_TEXT + b"\n")],
        [(HEADER, b"Bearer x" + KEY_TEXT)],
        [(HEADER, b"Bearer " + KEY_TEXT[:-1])],
        [(HEADER, b"Bearer " + KEY_TEXT), (HEADER, b"Bearer " + KEY_TEXT)],
    ],
)
def test_a_credential_of_another_form_is_nobodys(headers: list[tuple[bytes, bytes]]) -> None:
    presented = presented_in(headers)
    assert presented is not None
    assert not presented.proves(stored(KEY_TEXT.decode()))


@given(st.binary(max_size=100))
def test_no_bytes_in_the_header_break_or_prove_anything(value: bytes) -> None:
    presented = presented_in([(HEADER, value)])
    assert presented is not None
    assert not presented.proves(stored(KEY_TEXT.decode()))


@given(st.integers(0, 42))
def test_a_key_with_one_other_character_is_not_the_key(at: int) -> None:
    text = KEY_TEXT.decode()
    place = len(text) - 43 + at
    wrong = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
    presented = presented_in([(HEADER, b"Bearer " + wrong.encode())])
    assert presented is not None
    assert not presented.proves(stored(text))


def test_what_was_proved_once_proves_no_other_key() -> None:
    first, second = new_key(), new_key()
    presented = presented_in([(HEADER, b"Bearer " + first.text.encode())])
    assert presented is not None
    assert presented.proves(stored(first.text))
    assert not presented.proves(stored(second.text))
    assert presented.proves(stored(first.text))


def test_who_has_the_secret_has_its_key_and_the_key_of_another_purpose_is_another() -> None:
    first = derived_key(b"s" * 32, "peers of flights")
    assert KEY.fullmatch(first.text)
    assert first == derived_key(b"s" * 32, "peers of flights")
    others = [derived_key(b"t" * 32, "peers of flights"), derived_key(b"s" * 32, "peers of trains")]
    assert len({first.text, *(each.text for each in others)}) == 3
    assert len({first.key_id, *(each.key_id for each in others)}) == 3
    assert first.key_id not in first.text[-43:]
