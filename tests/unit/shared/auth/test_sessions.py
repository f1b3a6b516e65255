"""A session proves that its browser had a key: that very key, until the session or the key ends, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from understudy_shared.auth.presented import COOKIE, LIFETIME_S, ApiKey, digest_of, new_session, session_in
from understudy_shared.auth.principals import ANONYMOUS
from understudy_shared.auth.sign_in import sign_in_page

OLD, NEW = b"old secret", b"new secret"
NOW_S = 1_800_000_000.0
KEY = ApiKey("0" * 16, digest_of(b"key"), ANONYMOUS)


def cookie(value: str) -> list[tuple[bytes, bytes]]:
    return [(b"cookie", f"theme=dark; {COOKIE}={value}; other=1".encode())]


@given(st.floats(-10, LIFETIME_S + 10))
@example(-1.0)
@example(LIFETIME_S - 1.0)
@example(float(LIFETIME_S))
def test_a_session_holds_for_its_lifetime(later_s: float) -> None:
    session = session_in(cookie(new_session(KEY, OLD, NOW_S)))
    assert session is not None
    assert session.is_of(KEY, [OLD], NOW_S + later_s) == (later_s < LIFETIME_S)


def test_a_session_ends_with_its_key() -> None:
    short = ApiKey(KEY.key_id, KEY.digest, ANONYMOUS, NOW_S + 60)
    session = session_in(cookie(new_session(short, OLD, NOW_S)))
    assert session is not None
    assert session.is_of(short, [OLD], NOW_S + 59)
    assert not session.is_of(short, [OLD], NOW_S + 60)
    assert not session.is_of(KEY, [OLD], NOW_S + 60)  # the same key, written to the file again without an end


def test_a_session_holds_while_the_secret_is_replaced_and_no_longer() -> None:
    session = session_in(cookie(new_session(KEY, OLD, NOW_S)))
    assert session is not None
    assert session.is_of(KEY, [OLD, NEW], NOW_S)
    assert session.is_of(KEY, [NEW, OLD], NOW_S)
    assert not session.is_of(KEY, [NEW], NOW_S)
    assert not session.is_of(KEY, [], NOW_S)


def test_a_session_is_of_one_key_and_not_of_another_with_its_id() -> None:
    session = session_in(cookie(new_session(KEY, OLD, NOW_S)))
    assert session is not None
    assert not session.is_of(ApiKey(KEY.key_id, digest_of(b"another"), ANONYMOUS), [OLD], NOW_S)
    assert not session.is_of(ApiKey("1" * 16, KEY.digest, ANONYMOUS), [OLD], NOW_S)


def test_a_session_proves_no_key_as_the_key_itself_would() -> None:
    session = session_in(cookie(new_session(KEY, OLD, NOW_S)))
    assert session is not None
    assert not session.proves(KEY)


def test_whoever_knows_the_digest_of_a_key_cannot_make_a_session() -> None:
    forged = session_in(cookie(new_session(KEY, KEY.digest, NOW_S)))
    assert forged is not None
    assert not forged.is_of(KEY, [OLD], NOW_S)


@given(st.integers(0, 200), st.characters(codec="ascii", categories=["L", "N"]))
def test_no_character_of_a_session_can_be_another(place: int, character: str) -> None:
    value = new_session(KEY, OLD, NOW_S)
    at = place % len(value)
    changed = value[:at] + character + value[at + 1 :]
    session = session_in(cookie(changed))
    assert session is not None
    # The last character of the signature has two bits that say nothing; they are compared all the same.
    assert session.is_of(KEY, [OLD], NOW_S) == (changed == value)


@given(st.binary(max_size=80))
def test_no_cookie_does_more_than_be_refused(value: bytes) -> None:
    session = session_in([(b"cookie", COOKIE.encode() + b"=" + value)])
    assert session is not None
    assert not session.is_of(KEY, [OLD], NOW_S)


@pytest.mark.parametrize("has_sessions", [True, False])
def test_the_form_is_there_where_it_leads_somewhere_and_nothing_becomes_markup(has_sessions: bool) -> None:
    page = sign_in_page({"raw_path": b"/admin/"}, "<script>", has_sessions=has_sessions).decode()
    assert ("<form" in page) == has_sessions
    assert ("--cluster-secret-file" in page) == (not has_sessions)
    assert "<script" not in page
