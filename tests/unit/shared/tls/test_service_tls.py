"""Names in certificates, and the certificates of a service: read again when they change."""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.certificates import APPLICATION, Files, Signer, replace, uri

from understudy_shared.base.errors import SettingsError
from understudy_shared.tls import service_tls
from understudy_shared.tls.certificates import Lifetime, TlsMaterial, TlsPlan, load, tls_plan
from understudy_shared.tls.service_tls import READ_AGAIN_S, SOON_MAX_S, ServiceTls, ends_soon
from understudy_shared.tls.trouble import (
    Accepted,
    PeerName,
    PeerRole,
    TlsReason,
    TlsSide,
    TlsTrouble,
    application_in_names,
    name_in,
    parse_name,
)

NODE = "spiffe://example.org/understudy/flights/node"
ACCEPTED = Accepted("example.org", "flights", tuple(PeerRole))


def certificate(*uris: str, **more: Any) -> dict[str, Any]:
    return {"subjectAltName": (("DNS", "n1.example.org"), *(("URI", uri) for uri in uris)), **more}


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (certificate(NODE), None),
        (certificate(NODE.replace("node", "router")), None),
        (None, TlsReason.NO_CERTIFICATE),
        ({}, TlsReason.NO_CERTIFICATE),
        (certificate(), TlsReason.IDENTITY),
        ({"subjectAltName": (("DNS", NODE),)}, TlsReason.IDENTITY),
        (certificate(NODE, NODE), TlsReason.IDENTITY),
        (certificate("https://example.org/understudy/flights/node"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org/understudy/flights/node/"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org/understudy//node"), TlsReason.IDENTITY),
        (certificate("SPIFFE://example.org/understudy/flights/node"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org.evil/understudy/flights/node"), TlsReason.TRUST_DOMAIN),
        (certificate("spiffe://example.org/understudy/flights2/node"), TlsReason.APPLICATION),
        (certificate("spiffe://example.org/understudy/flights/reader"), TlsReason.ROLE),
    ],
)
def test_a_service_of_the_same_application_is_accepted_and_anybody_else_is_refused_by_name(
    shown: dict[str, Any] | None, reason: TlsReason | None
) -> None:
    trouble = ACCEPTED.why_not(shown)
    assert (None if trouble is None else trouble.reason) is reason
    assert trouble is None or len(trouble.why) < 500


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_application_of_any_name_is_told_from_every_other(one: str, other: str) -> None:
    try:
        names = [application_in_names(text) for text in (one, other)]
    except UnicodeEncodeError:  # half of a surrogate pair is no name of anything
        return
    found = [parse_name(f"spiffe://d/understudy/{name}/node") for name in names]
    assert found == [PeerName("d", name, "node") for name in names]
    assert (found[0] == found[1]) == (one == other)


@given(st.text())
def test_no_text_is_taken_for_a_name_that_it_does_not_write(text: str) -> None:
    found = name_in(certificate(text))
    assert isinstance(found, TlsTrouble) or str(found) == text


NONE = (None, None)
DAY_S = 24 * 3600.0


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


@pytest.fixture
def files(ours: Signer) -> Files:
    return ours.issue("node", uri("node"))


def node(files: Any, ca: Path | None, *, peer: Any = NONE, role: PeerRole = PeerRole.NODE) -> ServiceTls:
    plan = tls_plan(APPLICATION, role, server=files, peer=peer, peer_ca=ca)
    assert plan is not None
    return ServiceTls(plan)


def test_without_settings_there_is_no_tls_and_with_some_of_them_the_missing_one_is_named(ours: Signer) -> None:
    plan: Callable[..., object] = tls_plan
    assert plan(APPLICATION, PeerRole.NODE, server=NONE, peer=NONE, peer_ca=None) is None
    some = (Path("a"), Path("b"))
    for role, server, peer, ca, missing in (
        (PeerRole.NODE, NONE, NONE, ours.file, "tls_cert_file"),
        (PeerRole.NODE, NONE, some, ours.file, "tls_cert_file"),
        (PeerRole.ROUTER, NONE, NONE, ours.file, "peer_cert_file"),
        (PeerRole.ROUTER, some, some, None, "peer_ca_file"),
        (PeerRole.ROUTER, (None, Path("b")), NONE, None, "tls_cert_file"),
        (PeerRole.ROUTER, NONE, (None, Path("b")), None, "peer_cert_file"),
    ):
        with pytest.raises(SettingsError) as caught:
            plan(APPLICATION, role, server=server, peer=peer, peer_ca=ca)
        assert caught.value.where == missing


def test_files_that_would_fail_at_the_first_connection_are_refused_at_the_start(
    ours: Signer, files: Files, tmp_path: Path
) -> None:
    stranger = Signer(tmp_path / "stranger", "stranger")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate\n")
    open_key = Path(shutil.copy(files.key, tmp_path / "open.key"))
    open_key.chmod(0o644)
    expired = ours.issue("expired", uri("node"), lasts=timedelta(hours=1), began=timedelta(hours=2))
    early = ours.issue("early", uri("node"), began=timedelta(hours=-1))
    for server, ca, says, where in (
        ((tmp_path / "nowhere.pem", files.key), None, "the file cannot be read: No such file", "nowhere.pem"),
        ((files.certificate, tmp_path / "nowhere.key"), None, "the file cannot be read: No such file", "nowhere.key"),
        ((garbage, files.key), None, "the certificate or its key cannot be used", "garbage.pem"),
        ((files.certificate, garbage), None, "the certificate or its key cannot be used", "garbage.pem"),
        ((files.certificate, stranger.issue("other").key), None, "the key is not that of the certificate", "other.key"),
        ((files.certificate, open_key), None, "every user of this machine may read", "open.key"),
        (expired, None, "its certificate has expired", "expired.pem"),
        (early, None, "its certificate is not valid yet", "early.pem"),
        (files, garbage, "", "garbage.pem"),
        (files, stranger.file, "not signed by an authority that this service trusts", "node.pem"),
        (expired, ours.file, "its certificate has expired", "expired.pem"),
        (ours.issue("router", uri("router")), ours.file, "is not that of a node of application counting", "router.pem"),
        (ours.issue("far", uri("node", application="x")), ours.file, "it names spiffe://test.local/", "far.pem"),
        (ours.issue("nameless"), ours.file, "names no URI", "nameless.pem"),
    ):
        if isinstance(server[0], Path) and server[1] == garbage:
            garbage.chmod(0o600)
        with pytest.raises(SettingsError) as caught:
            node(server, ca)
        assert says in caught.value.what, (server, caught.value)
        assert where in caught.value.where, caught.value
        assert caught.value.fix


def test_a_changed_file_gives_new_connections_another_context_and_a_broken_one_none(ours: Signer, files: Files) -> None:
    made = node(files, ours.file)
    before = made.server
    made.look()
    assert made.server is before, "nothing changed"
    replace(files, ours.issue("renewed", uri("node"), lasts=timedelta(days=20)))
    made.look()
    after = made.server
    assert after is not before
    assert (made.causes(), made.reloads) == ({}, {"used": 1})
    files.certificate.write_text("no certificate\n")
    made.look()
    made.look()
    assert made.server is after
    assert "node.pem" in made.causes()["tls"]
    assert made.reloads["refused"] == 1, "the same fault counts once"
    files.certificate.unlink()
    made.look()
    assert "No such file" in made.causes()["tls"]
    replace(files, ours.issue("again", uri("node")))
    made.look()
    assert (made.causes(), made.refused) == ({}, None)


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def test_refused_files_are_read_when_they_change_or_may_have_become_valid_and_not_at_every_look(
    ours: Signer, files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[str] = []

    def counting(plan: TlsPlan) -> TlsMaterial:
        read.append("read")
        return load(plan)

    monkeypatch.setattr(service_tls, "load", counting)
    plan, clock = tls_plan(APPLICATION, PeerRole.NODE, server=files, peer=NONE, peer_ca=ours.file), Clock()
    assert plan is not None
    made = ServiceTls(plan, now_s=clock)
    files.certificate.write_text("no certificate\n")
    read.clear()
    for _ in range(50):
        made.look()
        clock.now_s += 1.0
    assert read == ["read"]
    assert made.refused is not None
    said = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(said) == 3, "at once, after ten seconds, and after twenty more"
    files.certificate.write_text("no certificate at all\n")
    made.look()
    assert len(read) == 2
    clock.now_s += READ_AGAIN_S + 1
    made.look()
    made.look()
    assert len(read) == 3
    replace(files, ours.issue("mended", uri("node")))
    made.look()
    assert made.refused is None
    clock.now_s += 10 * READ_AGAIN_S
    made.look()
    assert len(read) == 4, "files that are used are read when they change"


@pytest.mark.parametrize(
    ("life_s", "left_s", "is_soon"),
    [
        (90 * DAY_S, SOON_MAX_S + 60, False),
        (90 * DAY_S, SOON_MAX_S - 60, True),
        (3600.0, 400.0, False),
        (3600.0, 300.0, True),
        (3600.0, -1.0, True),
    ],
)
def test_renewal_is_due_in_the_last_tenth_and_a_week_before_at_most(
    life_s: float, left_s: float, is_soon: bool
) -> None:
    assert ends_soon(Lifetime(0.0, life_s), life_s - left_s) is is_soon


def test_a_refusal_is_counted_each_time_and_logged_once_a_minute_for_each_peer(
    ours: Signer, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    made = node(files, ours.file)
    trouble = TlsTrouble(TlsReason.ROLE, "it is a stranger")
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        made.note(TlsSide.ACCEPT, trouble, host)
    assert made.refusals[TlsSide.ACCEPT, TlsReason.ROLE] == 3
    assert len(caplog.messages) == 2
    assert made.failed_to_connect("n1:7101", ConnectionResetError()) is None
    assert made.failed_to_connect("n1:7101", ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version")) is not None
