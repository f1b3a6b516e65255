"""Signatures: what one key signed is valid for exactly that. With a key only this cluster is believed, once; without
one everybody, signed or not.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.throttles import FIRST_GAP_MS
from understudy_shared.bus import message_auth as module
from understudy_shared.bus.message_auth import (
    LOOK_EVERY_MS,
    MARK,
    MAX_LINE_BYTES,
    KeyFile,
    Keyring,
    MalformedSignatureError,
    MessageAuth,
    Signature,
    SignedContent,
    Stamp,
    UnauthenticError,
    key_id_of,
    message_auth,
    parse_keys,
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


KEY, OTHER = b"k" * 32, b"o" * 32
DOCUMENT = b'{"x":1}'


def auth(*keys: bytes, application_id: str = "flights", accepts_unsigned: bool = False) -> MessageAuth:
    keyring = Keyring(keys) if keys else None
    return MessageAuth(application_id, keyring, sender="n1", accepts_unsigned=accepts_unsigned, clock=ManualClock())


def refusal(judge: MessageAuth, payload: bytes) -> UnauthenticError:
    with pytest.raises(UnauthenticError) as caught:
        judge.refuse_repeated(judge.opened(payload))
    return caught.value


def test_a_signed_document_is_opened_by_whoever_has_the_key_once() -> None:
    payload = auth(KEY).sealed(b"heartbeat", DOCUMENT)
    judge = auth(OTHER, KEY)
    found = judge.opened(payload)
    assert (found.kind, found.document) == (b"heartbeat", DOCUMENT)
    assert found.stamp is not None
    judge.refuse_repeated(found)
    error = refusal(judge, payload)
    assert (error.reason, error.source) == ("replayed", "n1")


def test_without_a_key_signed_and_unsigned_documents_are_read_and_nothing_is_signed() -> None:
    judge = auth()
    assert judge.sealed(b"heartbeat", DOCUMENT) == b"heartbeat\n" + DOCUMENT
    for payload in (b"heartbeat\n" + DOCUMENT, auth(KEY).sealed(b"heartbeat", DOCUMENT)):
        for _ in range(2):
            found = judge.opened(payload)
            judge.refuse_repeated(found)
            assert (found.kind, found.document, found.stamp) == (b"heartbeat", DOCUMENT, None)


def test_with_a_key_what_is_not_of_this_cluster_is_refused_with_its_reason() -> None:
    good = auth(KEY).sealed(b"heartbeat", DOCUMENT)
    for payload, reason in (
        (b"heartbeat\n" + DOCUMENT, "unsigned"),
        (b"", "unsigned"),
        (auth(OTHER).sealed(b"heartbeat", DOCUMENT), "forged"),
        (auth(KEY, application_id="trains").sealed(b"heartbeat", DOCUMENT), "forged"),
        (good.replace(b'"x":1', b'"x":2'), "forged"),
        (good.replace(b"\nheartbeat\n", b"\nassignment\n"), "forged"),
        (good.replace(b" n1 ", b" n2 "), "forged"),
        (good[: good.index(b" n1 ")], "forged"),
    ):
        assert refusal(auth(KEY), payload).reason == reason, payload


def test_a_message_that_was_overtaken_by_one_of_its_kind_and_application_is_refused() -> None:
    signer, judge = auth(KEY), auth(KEY)
    first, hint, last = (signer.sealed(kind, DOCUMENT) for kind in (b"heartbeat", b"hint", b"heartbeat"))
    elsewhere = signer.within("trains").sealed(b"heartbeat", DOCUMENT)
    after = signer.sealed(b"heartbeat", DOCUMENT)
    other = judge.within("trains")
    other.refuse_repeated(other.opened(elsewhere))
    for payload in (last, hint, after):
        judge.refuse_repeated(judge.opened(payload))
    assert refusal(judge, first).reason == "replayed"
    judge.refuse_repeated(judge.opened(auth(KEY).sealed(b"heartbeat", DOCUMENT)))  # of its next life


def test_what_stands_in_a_key_may_be_heard_as_well_and_is_not_used_once_a_newer_one_was_heard() -> None:
    signer, judge = auth(KEY), auth(KEY)
    first, second = (judge.opened(signer.sealed(b"heartbeat", DOCUMENT)) for _ in range(2))
    assert judge.is_current(first)
    judge.refuse_repeated(first)
    assert judge.is_current(first)
    judge.refuse_repeated(second)
    assert not judge.is_current(first)
    assert judge.is_current(second)


def test_the_last_numbers_that_are_kept_are_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HEARD", 2)
    judge, payloads = auth(KEY), [auth(KEY).sealed(b"heartbeat", DOCUMENT) for _ in range(3)]
    for payload in payloads:
        judge.refuse_repeated(judge.opened(payload))
    assert refusal(judge, payloads[2]).reason == refusal(judge, payloads[1]).reason == "replayed"
    judge.refuse_repeated(judge.opened(payloads[0]))


def test_unsigned_documents_are_accepted_for_a_while_and_that_is_said_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    judge = auth(KEY, accepts_unsigned=True)
    assert "end that when every process signs" in str(judge.accepting_unsigned())
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            judge.refuse_repeated(judge.opened(b"heartbeat\n" + DOCUMENT))
    assert judge.accepted_unsigned == 100
    assert len(caplog.records) == 1
    assert refusal(judge, auth(OTHER).sealed(b"heartbeat", DOCUMENT)).reason == "forged", "what is signed is judged"
    assert auth(KEY).accepting_unsigned() is None
    assert auth(accepts_unsigned=True).accepting_unsigned() is None


def test_a_key_file_has_one_key_or_two_in_lines() -> None:
    assert parse_keys(KEY) == [KEY]
    assert parse_keys(b"# new\n" + KEY + b"\r\n\n# old\n " + OTHER + b" \n") == [KEY, OTHER]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no key in it"),
        (b"# only a remark\n", "no key in it"),
        (b"short\n", "key 1 has no 32"),
        (KEY + b"\n" + b"a b" * 20, "key 2 has no 32"),
        (b"k" * 513, "key 1 has no 32"),
        (KEY + b"\n" + OTHER + b"\n" + b"x" * 32, "3 keys, above 2"),
        (KEY + b"\n" + KEY, "the same key is in it twice"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused_without_a_word_of_it(content: bytes, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        parse_keys(content)
    assert "kkkk" not in str(caught.value)
    assert caught.value.fix


def test_a_key_file_that_everybody_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY)
    for mode, warnings in ((0o600, 0), (0o640, 0), (0o644, 1)):
        file.chmod(mode)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert KeyFile(file, ManualClock()).current().key_ids == Keyring([KEY]).key_ids
        assert len(caplog.records) == warnings
    with pytest.raises(SettingsError, match="cannot be read"):
        KeyFile(tmp_path / "nowhere", ManualClock())
    file.write_bytes(b"#" * 9000)
    with pytest.raises(SettingsError, match="more than 8192 bytes"):
        KeyFile(file, ManualClock())


def test_keys_are_exchanged_while_the_process_runs_and_a_wrong_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "key", ManualClock()
    file.write_bytes(KEY)
    file.chmod(0o600)
    keys = KeyFile(file, clock)
    old, new = Keyring([KEY]).key_ids, Keyring([OTHER]).key_ids

    def after(content: bytes) -> list[str]:
        file.write_bytes(content)
        clock.advance(LOOK_EVERY_MS)
        return keys.current().key_ids

    assert after(KEY + b"\n" + OTHER) == old + new
    assert after(OTHER + b"\n" + KEY) == new + old
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert after(b"short") == new + old
        outcomes = [vars(record)["outcome"] for record in caplog.records]
        assert outcomes == ["used", "used", "refused"], "again only after ten seconds"
        clock.advance(FIRST_GAP_MS)
        assert keys.current().key_ids == new + old
        file.unlink()
        clock.advance(LOOK_EVERY_MS)
        assert keys.current().key_ids == new + old
    assert [vars(record)["action"] for record in caplog.records] == ["audit-config"] * 5
    assert not [record for record in caplog.records if "kkkk" in record.getMessage()]
    assert after(OTHER) == new
    file.write_bytes(KEY)
    assert keys.current().key_ids == new, "it is looked at once a second"


def test_accepting_what_is_unsigned_without_a_key_is_a_mistake(tmp_path: Path) -> None:
    assert not message_auth("flights", None, accept_unsigned=False, sender="n1").is_on
    with pytest.raises(SettingsError, match="without a key"):
        message_auth("flights", None, accept_unsigned=True, sender="n1")
    (tmp_path / "key").write_bytes(KEY)
    assert message_auth("flights", tmp_path / "key", accept_unsigned=True, sender="n1").accepting_unsigned()
