"""Keys and sessions as requests carry them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from understudy_shared.auth.presented import (
    COOKIE,
    KEY,
    LIFETIME_S,
    ApiKey,
    derived_key,
    digest_of,
    new_key,
    new_session,
    presented_in,
    session_in,
)
from understudy_shared.auth.principals import ANONYMOUS
from understudy_shared.auth.sign_in import sign_in_page

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


OLD, NEW = b"old secret", b"new secret"
NOW_S = 1_800_000_000.0
OWN_KEY = ApiKey("0" * 16, digest_of(b"key"), ANONYMOUS)


def cookie(value: str) -> list[tuple[bytes, bytes]]:
    return [(b"cookie", f"theme=dark; {COOKIE}={value}; other=1".encode())]


@given(st.floats(-10, LIFETIME_S + 10))
@example(-1.0)
@example(LIFETIME_S - 1.0)
@example(float(LIFETIME_S))
def test_a_session_holds_for_its_lifetime(later_s: float) -> None:
    session = session_in(cookie(new_session(OWN_KEY, OLD, NOW_S)))
    assert session is not None
    assert session.is_of(OWN_KEY, [OLD], NOW_S + later_s) == (later_s < LIFETIME_S)


SHORT = ApiKey(OWN_KEY.key_id, OWN_KEY.digest, ANONYMOUS, NOW_S + 60)


@pytest.mark.parametrize(
    ("made_of", "asked_of", "secrets", "later_s", "holds"),
    [
        pytest.param(SHORT, SHORT, [OLD], 59, True, id="until its key ends"),
        pytest.param(SHORT, SHORT, [OLD], 60, False, id="no longer than its key"),
        pytest.param(SHORT, OWN_KEY, [OLD], 60, False, id="nor when the key is written again without an end"),
        pytest.param(OWN_KEY, OWN_KEY, [OLD, NEW], 0, True, id="while the secret is replaced"),
        pytest.param(OWN_KEY, OWN_KEY, [NEW, OLD], 0, True, id="while the replaced secret is known"),
        pytest.param(OWN_KEY, OWN_KEY, [NEW], 0, False, id="with another secret"),
        pytest.param(OWN_KEY, OWN_KEY, [], 0, False, id="without a secret"),
        pytest.param(
            OWN_KEY, ApiKey(OWN_KEY.key_id, digest_of(b"x"), ANONYMOUS), [OLD], 0, False, id="another key of its id"
        ),
        pytest.param(OWN_KEY, ApiKey("1" * 16, OWN_KEY.digest, ANONYMOUS), [OLD], 0, False, id="another id"),
    ],
)
def test_a_session_holds_for_its_key_and_its_secret_only(
    made_of: ApiKey, asked_of: ApiKey, secrets: list[bytes], later_s: float, *, holds: bool
) -> None:
    session = session_in(cookie(new_session(made_of, OLD, NOW_S)))
    assert session is not None
    assert session.is_of(asked_of, secrets, NOW_S + later_s) == holds
    assert not session.proves(asked_of), "as the key itself would"


def test_whoever_knows_the_digest_of_a_key_cannot_make_a_session() -> None:
    forged = session_in(cookie(new_session(OWN_KEY, OWN_KEY.digest, NOW_S)))
    assert forged is not None
    assert not forged.is_of(OWN_KEY, [OLD], NOW_S)


@given(st.integers(0, 200), st.characters(codec="ascii", categories=["L", "N"]))
def test_no_character_of_a_session_can_be_another(place: int, character: str) -> None:
    value = new_session(OWN_KEY, OLD, NOW_S)
    at = place % len(value)
    changed = value[:at] + character + value[at + 1 :]
    session = session_in(cookie(changed))
    assert session is not None
    # The last character of the signature has two bits that say nothing; they are compared all the same.
    assert session.is_of(OWN_KEY, [OLD], NOW_S) == (changed == value)


@given(st.binary(max_size=80))
def test_no_cookie_does_more_than_be_refused(value: bytes) -> None:
    session = session_in([(b"cookie", COOKIE.encode() + b"=" + value)])
    assert session is not None
    assert not session.is_of(OWN_KEY, [OLD], NOW_S)


@pytest.mark.parametrize("has_sessions", [True, False])
def test_the_form_is_there_where_it_leads_somewhere_and_nothing_becomes_markup(has_sessions: bool) -> None:
    page = sign_in_page({"raw_path": b"/admin/"}, "<script>", has_sessions=has_sessions).decode()
    assert ("<form" in page) == has_sessions
    assert ("--cluster-secret-file" in page) == (not has_sessions)
    assert "<script" not in page
