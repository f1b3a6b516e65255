"""Signatures: what one key signed is valid for exactly that; nothing that is changed, moved or garbled is."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus.message_auth import (
    MARK,
    MAX_LINE_BYTES,
    Keyring,
    MalformedSignatureError,
    Signature,
    SignedContent,
    Stamp,
    key_id_of,
    parse_line,
    split,
)

OLD, NEW = b"o" * 32, b"n" * 64
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
NUMBERS = st.integers(0, 10**16 - 1)
STAMPS = st.builds(Stamp, TEXT, st.binary(min_size=16, max_size=16).map(bytes.hex), NUMBERS)
CONTENTS = st.builds(
    SignedContent,
    TEXT,
    st.sampled_from([b"heartbeat", b"assignment"]),
    st.binary(),
)
CONTENT = SignedContent("flights", b"heartbeat", b"{}")
STAMP = Stamp("n1", "0" * 32, 7)


def signed(stamp: Stamp, content: SignedContent, *keys: bytes) -> Signature:
    return parse_line(Keyring(keys or (NEW,)).sign(stamp, content))


@given(STAMPS, CONTENTS)
def test_what_is_signed_is_valid_and_says_who_signed_it(stamp: Stamp, content: SignedContent) -> None:
    line = Keyring([NEW]).sign(stamp, content)
    assert len(line) < MAX_LINE_BYTES
    signature, rest = split(line + b"\nheartbeat\n{}")
    assert signature is not None
    assert signature.stamp == stamp
    assert rest == b"heartbeat\n{}"
    assert Keyring([NEW]).is_valid(signature, content)


@given(STAMPS, CONTENTS, STAMPS, CONTENTS)
def test_a_signature_is_valid_for_nothing_else(
    stamp: Stamp, content: SignedContent, other_stamp: Stamp, other_content: SignedContent
) -> None:
    signature = signed(stamp, content)
    moved = signature._replace(stamp=other_stamp, stamped=other_stamp.line())
    assert Keyring([NEW]).is_valid(moved, other_content) == ((stamp, content) == (other_stamp, other_content))
    assert Keyring([NEW]).is_valid(signature, other_content) == (content == other_content)


@given(STAMPS, CONTENTS, st.data())
def test_a_line_with_a_changed_byte_is_refused(stamp: Stamp, content: SignedContent, data: st.DataObject) -> None:
    line = bytearray(Keyring([NEW]).sign(stamp, content))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= data.draw(st.integers(1, 255))
    try:
        signature, _ = split(bytes(line) + b"\nrest")
    except MalformedSignatureError:
        return
    assert signature is None or not Keyring([NEW]).is_valid(signature, content)


def test_the_mac_is_of_these_lines_so_that_another_language_can_make_it() -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    lines = ["understudy-signature-1", key_id_of(NEW).decode(), "flights"]
    lines += [f"n%2F1 {'0' * 32} 7", "heartbeat", digest]
    expected = hmac.new(NEW, "\n".join(lines).encode(), "sha256").hexdigest()
    assert signed(STAMP._replace(sender="n/1"), CONTENT).mac == expected.encode()


def test_the_first_key_signs_and_every_key_is_accepted() -> None:
    for one, other in ((OLD, NEW), (NEW, OLD)):
        both = Keyring([one, other])
        assert both.key_ids == [key_id_of(one).decode(), key_id_of(other).decode()]
        assert signed(STAMP, CONTENT, one, other).key_id == key_id_of(one)
        assert both.is_valid(signed(STAMP, CONTENT, other), CONTENT)
        assert not Keyring([one]).is_valid(signed(STAMP, CONTENT, other), CONTENT)


def test_a_keyring_shows_no_key() -> None:
    assert repr(Keyring([NEW, OLD])) == f"Keyring({key_id_of(NEW).decode()}, {key_id_of(OLD).decode()})"


@given(st.binary().filter(lambda payload: not payload.startswith(MARK)))
def test_what_has_no_signature_stays_as_it_is(payload: bytes) -> None:
    assert split(payload) == (None, payload)


@pytest.mark.parametrize(
    "payload",
    [
        MARK,
        MARK + b"x" * 10_000,
        MARK + b"\n",
        MARK + b"0 0 n1 0 0\nheartbeat\n{}",
        b"signed1 " + b"0" * 16 + b" " + b"0" * 64 + b" n%2f1 " + b"0" * 32 + b" 1\nheartbeat\n{}",
        b"signed1 " + b"0" * 16 + b" " + b"0" * 64 + b" n1 " + b"0" * 32 + b" 01\nheartbeat\n{}",
        b"signed1 " + b"0" * 16 + b" " + b"0" * 64 + b" %FF " + b"0" * 32 + b" 1\nheartbeat\n{}",
    ],
    ids=["nothing", "endless", "empty", "short", "another quoting", "a leading zero", "not UTF-8"],
)
def test_a_signature_that_is_written_otherwise_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedSignatureError):
        split(payload)


@given(st.binary(max_size=300))
def test_no_line_breaks_the_parser(line: bytes) -> None:
    for candidate in (line, MARK + line):
        try:
            parse_line(candidate)
        except MalformedSignatureError:
            continue
